"""Critics: values of states and of actions, one or an ensemble, and deterministic actors."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array, TimeStep, Tree
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import scale
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


class Value(nn.Module):
    """The value of a time step [...] -> [...]."""

    observation_space: Space
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        x = encoders.features(self.observation_space, timestep)
        x = MLP(self.widths, self.activation, self.initializer)(x)
        return dense(1, initializer(self.initializer, 1.0))(x)[..., 0]


class _ActionValue(nn.Module):
    widths: tuple[int, ...]
    activation: str
    initializer: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = MLP(self.widths, self.activation, self.initializer)(x)
        return dense(1, initializer(self.initializer, 1.0))(x)[..., 0]


class ActionValues(nn.Module):
    """The values of one action at a time step, by `members` (E) networks that share no weights:
    time step [...], action [..., *shape] -> [..., E].

    Actions are an input, so that those of any space have a value.
    """

    observation_space: Space
    action_space: Space
    widths: tuple[int, ...]
    members: int = 2
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep, action: Tree) -> Array:
        x = encoders.with_action(self.observation_space, self.action_space, timestep, action)
        ensemble = nn.vmap(
            _ActionValue,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,  # pyright: ignore[reportArgumentType]
            out_axes=-1,
            axis_size=self.members,
        )
        critic = ensemble(self.widths, self.activation, self.initializer)
        return critic(x)


class DeterministicActor(nn.Module):
    """One action [..., *shape] of a bounded box for a time step [...]."""

    observation_space: Space
    action_space: Box
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        centre, half_width = scale(self.action_space)
        x = encoders.features(self.observation_space, timestep)
        x = MLP(self.widths, self.activation, self.initializer)(x)
        x = dense(centre.size, initializer(self.initializer, 0.01))(x)
        squashed = jnp.tanh(x).reshape(*x.shape[:-1], *centre.shape)
        return jnp.asarray(centre) + half_width * squashed
