"""A policy and a state value, with or without memory, and their unrolling over a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Environment, TimeStep, Transition, Tree, struct
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import Distribution, PolicyHead, SquashedHead
from jaxrl.networks.initializers import initializer
from jaxrl.networks.recurrent import GRU
from jaxrl.networks.torsos import MLP, Convolution
from jaxrl.networks.transformer import Transformer


class ActorCritic(nn.Module):
    """Separate torsos for policy and value; with `recurrent` > 0 a GRU of that width before both,
    or with `layers` > 0 a transformer of that width, for episodes of less than `context` steps.
    Before all of these, with `channels`, convolutions of an image, which policy and value share.

    With `heads` > 0 a linear head of its own for each task, of policy and of value: the one that
    the time step asks for by a one-hot [heads] in its goal (the last leaf of that channel).

    Memory is `()` without recurrence, [B, recurrent] with a GRU, a `Cache` with a transformer.
    """

    observation_space: Space
    action_space: Space
    widths: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    recurrent: int = 0
    initializer: str = "lecun"
    heads: int = 0
    layers: int = 0
    attention_heads: int = 2
    context: int = 0
    channels: tuple[int, ...] = ()
    deviation: str = "learned"  # as in `PolicyHead`

    def setup(self):
        if self.channels:
            self.convolution = Convolution(self.channels, self.activation)
        if self.recurrent:
            self.embedding = MLP((self.recurrent,), self.activation, self.initializer)
            self.core = self._core()
        self.actor = MLP(self.widths, self.activation, self.initializer)
        self.critic = MLP(self.widths, self.activation, self.initializer)
        self.head = PolicyHead(self.action_space, self.initializer, deviation=self.deviation)
        self.value_head = dense(1, initializer(self.initializer, 1.0))

    def __call__(self, timestep: TimeStep, memory: Tree) -> tuple[Distribution, Array, Tree]:
        """One step: time step [B], memory [B] -> policy [B], value [B], memory [B]."""
        x = self._features(timestep)
        if self.recurrent:
            x, memory = self.core(self.embedding(x), memory)
        return self._policy(x, timestep), self._value(x, timestep), memory

    def unroll(self, timestep: TimeStep, memory: Tree) -> tuple[Distribution, Array, Tree]:
        """A window: time step [T, B], memory [B] before it -> policy and value [T, B], and the
        memory after each step [T, B]. The memory is reset where `timestep.first`."""
        x = self._features(timestep)
        if self.recurrent:
            x, memory = self.core.unroll(self.embedding(x), timestep.first, memory)
        return self._policy(x, timestep), self._value(x, timestep), memory

    def policy_alone(self, timestep: TimeStep) -> Distribution:
        """The policy [...] at a time step [...], of a network without memory; reads no
        weights of the value but the convolutions'."""
        return self._policy(self._features(timestep), timestep)

    def value_alone(self, timestep: TimeStep) -> Array:
        """The value [...] at a time step [...], likewise; reads no weights of
        the policy but the convolutions'."""
        return self._value(self._features(timestep), timestep)

    def _features(self, timestep: TimeStep) -> Array:
        convolution = self.convolution if self.channels else None
        return encoders.features(self.observation_space, timestep, convolution)

    def _policy(self, x: Array, timestep: TimeStep) -> Distribution:
        return self.head(self._of_task(self.actor(x), timestep), timestep.legal_actions)

    def _value(self, x: Array, timestep: TimeStep) -> Array:
        return self.value_head(self._of_task(self.critic(x), timestep))[..., 0]

    def _of_task(self, x: Array, timestep: TimeStep) -> Array:
        """Features [..., heads * (D + 1)] that are 0 but for the task's own part, where they are
        `x` and a 1 (its bias): a linear layer of these is a linear layer for each task."""
        if not self.heads:
            return x
        task = jax.tree.leaves(timestep.goal)[-1]
        x = jnp.concatenate([x, jnp.ones_like(x[..., :1])], -1)
        return (task[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], -1)

    def _core(self) -> Any:
        if not self.layers:
            return GRU(self.recurrent, parent=None)
        return Transformer(
            self.recurrent, self.context, self.layers, self.attention_heads, parent=None
        )

    def initial(self, n: int) -> Tree:
        return self._core().initial(n) if self.recurrent else ()


def context(env: Environment) -> int:
    """How many steps of `env` a transformer must hold: the longest episode's, and what follows it.
    Raises `UserError` where there is no longest episode."""
    if env.max_steps is None:
        raise UserError(
            f"A transformer remembers whole episodes, and those of '{env.name}' have no time limit "
            "(see time_limit)."
        )
    return env.max_steps + 1


def check_transformer(width: int, layers: int, heads: int) -> None:
    """Raises `UserError` unless a transformer can have these sizes; 0 layers are none."""
    if layers < 0:
        raise UserError(f"A transformer cannot have {layers} layers; it has at least 0.")
    if layers and (width < 1 or heads < 1 or width % heads):
        raise UserError(
            f"A transformer of {heads} heads cannot be {width} wide; its width must be a multiple "
            "of its heads."
        )


@struct
class Unrolled:
    policy: Distribution  # [T, B]
    value: Array  # [T, B]
    next_value: Array  # [T, B]: of next_timestep, seen with the memory after each step


def unroll(network: Any, params: Tree, transitions: Transition, memory: Tree) -> Unrolled:
    """Policy, value and successor's value of a window [T, B] that began with `memory` [B].

    The successor is the true one, so a window, an episode and a time limit may end anywhere.
    """
    policy, value, memories = network.apply(params, transitions.timestep, memory, method="unroll")
    step = lambda timestep, memory: network.apply(params, timestep, memory)[1]
    # Mapped over time, not reshaped to rows: that would gather what is split over devices.
    return Unrolled(policy, value, jax.vmap(step)(transitions.next_timestep, memories))


class Actor(nn.Module):
    """A policy alone, without memory: time step [...] -> distribution over actions [...]. The mean
    of a Gaussian lies within the action space's bounds, unless it is told not to; `squashed`, all
    of it does. `deviation` and `log_std` are `PolicyHead`'s, `normalization` is that of `MLP`."""

    observation_space: Space
    action_space: Space
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"
    squashed: bool = False
    bounded_mean: bool = True
    deviation: str = "learned"
    log_std: float = 0.0
    normalization: Callable[[], nn.Module] | None = None

    @nn.compact
    def __call__(self, timestep: TimeStep, train: bool = False) -> Distribution:
        x = encoders.features(self.observation_space, timestep)
        x = MLP(self.widths, self.activation, self.initializer, self.normalization)(x, train)
        if self.squashed:
            return SquashedHead(self.action_space, self.initializer)(x)
        head = PolicyHead(
            self.action_space, self.initializer, self.log_std, self.bounded_mean, self.deviation
        )
        return head(x, timestep.legal_actions)
