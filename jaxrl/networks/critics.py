"""Critics of states and of actions, single or as an ensemble, and deterministic actors."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array, TimeStep, Tree
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import scale
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP, image_encoder

Normalization = Callable[[], nn.Module] | None


class Value(nn.Module):
    """The value of a time step [...] -> [...]."""

    observation_space: Space
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        encoder = image_encoder(self.observation_space)
        x = encoders.features(self.observation_space, timestep, encoder)
        x = MLP(self.widths, self.activation, self.initializer)(x)
        return dense(1, initializer(self.initializer, 1.0))(x)[..., 0]


class _ActionValue(nn.Module):
    widths: tuple[int, ...]
    activation: str
    initializer: str
    outputs: int
    normalization: Normalization
    layer_norm: bool

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        sizes = (self.widths, self.activation, self.initializer)
        x = MLP(*sizes, self.normalization, self.layer_norm)(x, train)
        x = dense(self.outputs or 1, initializer(self.initializer, 1.0))(x)
        return x if self.outputs else x[..., 0]


class ActionValues(nn.Module):
    """Values of one action at a time step by an ensemble of `members` (E) networks, which share
    the convolutions of pictures and no other weights: time step [...], action [..., *shape] ->
    [..., E].

    With `outputs` (K) each network returns that many numbers instead of one value, [..., K, E].
    The action is an input of the networks, so the action space can be of any kind.
    `normalization` and `layer_norm` are as in `MLP`.
    """

    observation_space: Space
    action_space: Space
    widths: tuple[int, ...]
    members: int = 2
    activation: str = "relu"
    initializer: str = "lecun"
    outputs: int = 0
    normalization: Normalization = None
    layer_norm: bool = False

    @nn.compact
    def __call__(self, timestep: TimeStep, action: Tree, train: bool = False) -> Array:
        encoder = image_encoder(self.observation_space)
        x = encoders.state_action_features(
            self.observation_space, self.action_space, timestep, action, encoder
        )
        ensemble = nn.vmap(
            _ActionValue,
            variable_axes={"params": 0, "batch_stats": 0},
            split_rngs={"params": True},
            in_axes=None,  # pyright: ignore[reportArgumentType]
            out_axes=-1,
            axis_size=self.members,
        )
        critic = ensemble(
            self.widths,
            self.activation,
            self.initializer,
            self.outputs,
            self.normalization,
            self.layer_norm,
        )
        return critic(x, train)


class DeterministicActor(nn.Module):
    """A deterministic policy: time step [...] -> action [..., *shape] in a bounded box."""

    observation_space: Space
    action_space: Box
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        center, half_width = scale(self.action_space)
        encoder = image_encoder(self.observation_space)
        x = encoders.features(self.observation_space, timestep, encoder)
        x = MLP(self.widths, self.activation, self.initializer)(x)
        x = dense(center.size, initializer(self.initializer, 0.01))(x)
        squashed = jnp.tanh(x).reshape(*x.shape[:-1], *center.shape)
        return jnp.asarray(center) + half_width * squashed
