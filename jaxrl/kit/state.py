"""The state of every agent that is built on the kit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxrl.core.types import Array, Tree, struct


@struct
class Trained:
    """State of one part of an agent.

    params: its parameters.
    optimizer: state of its optax transformation; of one vector where its settings say `flat`.
    target: parameters of its target network; None where there is none.
    """

    params: Tree
    optimizer: Tree
    target: Tree = None


@struct
class State:
    """State of an agent.

    parts: by name.
    extra: whatever else the recipe keeps, such as running moments.
    updates: number of updates so far, int32.
    env_steps: environment steps at the last update, float32; drives schedules.
    hyper: hyperparameters by dotted name.
    normalizer: what `net.normalize` applies, a `kit.normalization.Normalizer`; set by the wrapper
        that normalizes while the agent acts or learns, and None in what is stored.
    """

    parts: dict[str, Trained]
    extra: Tree
    updates: Array
    env_steps: Array
    hyper: dict[str, Any]
    normalizer: Any = None


def acting_state(params: Mapping[str, Tree]) -> State:
    """Return a state that is enough to act with `params`, but not to train them.

    params: parameters by part, as `wrapping.params_of` returns them. For agents that act by their
        parameters alone.
    """
    parts = {name: Trained(value, ()) for name, value in params.items()}
    return State(parts, (), jnp.int32(0), jnp.float32(0), {})
