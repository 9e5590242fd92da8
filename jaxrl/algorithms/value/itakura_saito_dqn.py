"""DQN that is risk-averse (Udovichenko, Croissant, Toleutaeva, Burnaev and Korotin, 2025,
"Risk-averse reinforcement learning with Itakura-Saito loss", arXiv:2505.16925).

Q(s, a) is the certainty equivalent -(1 / alpha) log E exp(-alpha return) of exponential utility,
which has a Bellman equation (EQQ* there) where nothing is discounted. The Itakura-Saito divergence
(IS) learns it from single samples, and sees values only by their difference from the target. The
paper's experiments are actor-critics; with a discount below 1 alpha would have to change over time,
which it does not here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.algorithms.value.shared.heads import MEAN, Head
from jaxrl.core.types import Array
from jaxrl.kit import group, hyper
from jaxrl.kit.groups import Optimizer


@group
class Config(dqn_.Common):
    """Settings of DQN with the Itakura-Saito loss."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    exploration: dqn_.EpsilonGreedy = dqn_.EpsilonGreedy()
    discount: float = hyper(1.0, low=0, high=1)
    """Gamma, per step: 1 in section 2.1."""
    aversion: float = hyper(1.0, above=0)
    """Alpha, per unit of reward; toward 0 the loss becomes half the squared error."""


def divergence(value: Array, target: Array, aversion: Array) -> Array:
    """Equation IS."""
    return losses.itakura_saito(value, target, aversion) / jnp.square(aversion)


def head(loss: Callable[[Array, Array, Array], Array]) -> Head:
    """The certainty equivalent, by `loss(value, target, aversion)`."""

    def error(net, outputs, target):
        q = outputs[..., 0]
        return loss(q, target, net.hyper.aversion), jnp.abs(q - target)

    return dataclasses.replace(MEAN, error=error)


itakura_saito_dqn = dataclasses.replace(
    dqn_.dqn,
    name="itakura_saito_dqn",
    Config=Config,
    recipe=lambda env, config: dqn_.recipe(env, config, head=head(divergence)),
)

TINY = dqn_.TINY
