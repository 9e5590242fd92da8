"""Models of an environment's dynamics in the space of its observations: Gaussian ensembles."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array, Key, TimeStep, Tree, struct
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP

LOG_VARIANCE = (-10.0, 0.5)  # soft bounds; the initial ones of Chua et al.


@struct
class Prediction:
    """Predictions of E members for the step after an action at a time step [...]."""

    change: Array  # [E, ..., D]: mean of the next observation minus this one
    log_variance: Array  # [E, ..., D]: log variance of the change
    ended: Array  # [E, ...]: logit of the probability that the task ends there


class _Member(nn.Module):
    widths: tuple[int, ...]
    activation: str
    outputs: int
    initializer: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = MLP(self.widths, self.activation, self.initializer)(x)
        return dense(self.outputs, initializer(self.initializer, 1.0))(x)


def gaussian_ensemble(
    x: Array,
    size: int,
    members: int,
    widths: tuple[int, ...],
    activation: str,
    initializer: str = "lecun",
) -> tuple[Array, Array, Array]:
    """Apply `members` (E) networks that share no weights to features [..., F], in a compact method.

    Returns means and log variances [E, ..., size], and the logits [E, ...] that the task ends.
    """
    ensemble = nn.vmap(
        _Member,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=None,  # pyright: ignore[reportArgumentType]
        axis_size=members,
    )(widths, activation, 2 * size + 1, initializer)
    out = ensemble(x)
    bounds = map(jnp.float32, LOG_VARIANCE)
    return out[..., :size], losses.bounded_log_variance(out[..., size:-1], *bounds), out[..., -1]


class Dynamics(nn.Module):
    """Ensemble of `members` (E) probabilistic dynamics models: time step [...], action ->
    `Prediction`.

    The networks share no weights. Observations are one box of D numbers. Variances are bounded by
    constants, not by parameters. Source: Chua et al., 2018, "Deep reinforcement learning in a
    handful of trials using probabilistic dynamics models".
    """

    observation_space: Box
    action_space: Space
    widths: tuple[int, ...]
    members: int = 3
    activation: str = "silu"

    @nn.compact
    def __call__(self, timestep: TimeStep, action: Tree) -> Prediction:
        x = encoders.state_action_features(
            self.observation_space, self.action_space, timestep, action
        )
        size = encoders.flatten(self.observation_space, timestep.observation).shape[-1]
        return Prediction(*gaussian_ensemble(x, size, self.members, self.widths, self.activation))


def draw_next(prediction: Prediction, timestep: TimeStep, key: Key) -> TimeStep:
    """Draw the next time step [B] after `timestep` [B], each from a random member.

    Only the observation and `terminated` are new; all other channels are those of `timestep`.
    """
    member_key, key = jax.random.split(key)
    members, count = prediction.ended.shape
    member = jax.random.randint(member_key, (count,), 0, members)
    mine: Any = jax.tree.map(lambda x: x[member, jnp.arange(count)], prediction)
    change = mine.change + jnp.exp(mine.log_variance / 2) * jax.random.normal(
        key, mine.change.shape
    )
    observation = timestep.observation
    return dataclasses.replace(
        timestep,
        observation=observation + change.reshape(observation.shape).astype(observation.dtype),
        terminated=mine.ended > 0,
    )
