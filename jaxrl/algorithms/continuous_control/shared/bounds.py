"""Lagrangian of bounds on the change of a policy, as in MPO and V-MPO."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.types import Array
from jaxrl.kit import Net


def lagrangian(net: Net, divergences: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
    """Return the penalty of bounds for a policy and the loss of their multipliers, [...], and
    metrics.

    divergences: by name, [...]; the one called `name` has the part `name_multiplier` as its
        multiplier, and the hyperparameter `name_bound` as its bound.
    """
    total, metrics = jnp.zeros(()), {}
    for name, kl in divergences.items():
        multiplier, violation = (
            getattr(net, f"{name}_multiplier")(),
            kl - net.hyper[f"{name}_bound"],
        )
        total = total + losses.lagrangian_penalty(violation, multiplier)
        total = total + losses.lagrangian_dual(violation, multiplier)
        metrics |= {f"{name}_kl": kl, f"{name}_multiplier": multiplier}
    return total, metrics
