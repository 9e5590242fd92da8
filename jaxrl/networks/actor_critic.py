"""Networks of a policy and a state value, with or without memory, stepped or unrolled."""

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
from jaxrl.networks.torsos import MLP, image_encoder
from jaxrl.networks.transformer import Transformer


class ActorCritic(nn.Module):
    """Policy and value with separate torsos, and optionally shared memory and convolutions.

    With `recurrent` > 0 a GRU of that width precedes both torsos, or, if also `layers` > 0, a
    transformer of that width for episodes of less than `context` steps. With `channels`, or for
    pictures, convolutions precede everything else. Policy and value share these layers.

    With `heads` > 0 policy and value have a separate linear head for each task. The time step
    selects it by a one-hot [heads] in its goal (the last leaf of `timestep.goal`).

    With `values` > 0 the value is a vector of that length, along a last axis.

    With `frozen` > 0 no gradient reaches so many lower blocks of the transformer and the embedding.

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
    values: int = 0
    log_std: float = 0.0  # as in `PolicyHead`
    frozen: int = 0

    def setup(self):
        self.convolution = image_encoder(self.observation_space, self.channels, self.activation)
        if self.recurrent:
            self.embedding = MLP((self.recurrent,), self.activation, self.initializer)
            self.core = self._core()
        self.actor = MLP(self.widths, self.activation, self.initializer)
        self.critic = MLP(self.widths, self.activation, self.initializer)
        self.head = PolicyHead(
            self.action_space, self.initializer, self.log_std, deviation=self.deviation
        )
        self.value_head = dense(self.values or 1, initializer(self.initializer, 1.0))

    def __call__(self, timestep: TimeStep, memory: Tree) -> tuple[Distribution, Array, Tree]:
        """Take one step: time step [B], memory [B] -> policy [B], value [B], memory [B]."""
        x = self._features(timestep)
        if self.recurrent:
            x, memory = self.core(self.embedding(x), memory)
        return self._policy(x, timestep), self._value(x, timestep), memory

    def unroll(self, timestep: TimeStep, memory: Tree) -> tuple[Distribution, Array, Tree]:
        """Unroll over a window: time step [T, B], memory [B] before it -> policy and value [T, B],
        and the memory after each step [T, B]. The memory is reset where `timestep.restarts`."""
        x = self._features(timestep)
        if self.recurrent:
            x, memory = self.core.unroll(self.embedding(x), timestep.restarts, memory)
        return self._policy(x, timestep), self._value(x, timestep), memory

    def read(self, timestep: TimeStep, memory: Tree) -> tuple[Distribution, Array, Tree]:
        """Read the beginnings of episodes: time step [T, B] from their first on, blank memory [B]
        -> policy and value [T, B], and the memory [B] after the last step."""
        x = self._features(timestep)
        if self.recurrent:
            x, memory = self.core.read(self.embedding(x), memory)
        return self._policy(x, timestep), self._value(x, timestep), memory

    def hidden(self, timestep: TimeStep, memory: Tree) -> Array:
        """The features [T, B, D] of a window that policy and value share: time step [T, B], memory
        [B] before it. The memory is reset where `timestep.restarts`."""
        x = self._features(timestep)
        if self.recurrent:
            x, _ = self.core.unroll(self.embedding(x), timestep.restarts, memory)
        return x

    def policy_alone(self, timestep: TimeStep) -> Distribution:
        """The policy [...] at a time step [...], for a network without memory; reads none of the
        value's weights except those of the shared convolutions."""
        return self._policy(self._features(timestep), timestep)

    def value_alone(self, timestep: TimeStep) -> Array:
        """The value [...] at a time step [...], for a network without memory; reads none of the
        policy's weights except those of the shared convolutions."""
        return self._value(self._features(timestep), timestep)

    def _features(self, timestep: TimeStep) -> Array:
        return encoders.features(self.observation_space, timestep, self.convolution)

    def _policy(self, x: Array, timestep: TimeStep) -> Distribution:
        return self.head(self._select_task(self.actor(x), timestep), timestep.legal_actions)

    def _value(self, x: Array, timestep: TimeStep) -> Array:
        value = self.value_head(self._select_task(self.critic(x), timestep))
        return value if self.values else value[..., 0]

    def _select_task(self, x: Array, timestep: TimeStep) -> Array:
        """Return features [..., heads * (D + 1)]: `x` and a 1 (for the bias) in the part of the
        current task, 0 elsewhere. A linear layer of these is a separate linear layer per task."""
        if not self.heads:
            return x
        task = jax.tree.leaves(timestep.goal)[-1]
        x = jnp.concatenate([x, jnp.ones_like(x[..., :1])], -1)
        return (task[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], -1)

    def _core(self) -> Any:
        if not self.layers:
            return GRU(self.recurrent, parent=None)
        sizes = self.recurrent, self.context, self.layers, self.attention_heads
        return Transformer(*sizes, self.frozen, parent=None)

    def initial(self, n: int) -> Tree:
        """Return the memory [n] before an episode's first step."""
        return self._core().initial(n) if self.recurrent else ()


def context_length(env: Environment) -> int:
    """Number of time steps that a transformer must hold: those of the longest episode, and its last
    successor. Raise `UserError` if episodes of `env` have no time limit."""
    if env.max_steps is None:
        raise UserError(
            f"A transformer remembers whole episodes, but those of '{env.name}' have no time limit "
            "(see time_limit)."
        )
    return env.max_steps + 1


def check_transformer(width: int, layers: int, heads: int) -> None:
    """Raise `UserError` unless a transformer can have these sizes; 0 layers mean no transformer."""
    if layers < 0:
        raise UserError(f"A transformer cannot have {layers} layers; use 0 or more.")
    if layers and (width < 1 or heads < 1 or width % heads):
        raise UserError(
            f"A transformer with {heads} heads cannot be {width} wide; its width must be a "
            "multiple of its number of heads."
        )


@struct
class Unrolled:
    """Policy and values of a window."""

    policy: Distribution  # [T, B]
    value: Array  # [T, B]
    next_value: Array  # [T, B]: value of next_timestep, given the memory after each step


def unroll(network: Any, params: Tree, transitions: Transition, memory: Tree) -> Unrolled:
    """Compute the policy, value and successor's value of a window [T, B] that began with `memory`
    [B].

    The successor is the true one, so a window, an episode and a time limit may end anywhere.
    """
    policy, value, memories = network.apply(params, transitions.timestep, memory, method="unroll")
    step = lambda timestep, memory: network.apply(params, timestep, memory)[1]
    # A vmap over time, since reshaping to rows would gather arrays that are split over devices.
    return Unrolled(policy, value, jax.vmap(step)(transitions.next_timestep, memories))


class Actor(nn.Module):
    """A policy without memory or value: time step [...] -> distribution over actions [...].

    The mean of a Gaussian lies within the action space's bounds, unless `bounded_mean` is False;
    if `squashed`, the whole distribution does. `deviation` and `log_std` are as in `PolicyHead`, or
    in `SquashedHead` with the deviation "of_noise"; `normalization` is as in `MLP`.
    """

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
        encoder = image_encoder(self.observation_space)
        x = encoders.features(self.observation_space, timestep, encoder)
        x = MLP(self.widths, self.activation, self.initializer, self.normalization)(x, train)
        if self.squashed:
            noisy = {"deviation": "of_noise", "log_std": self.log_std}
            options = noisy if self.deviation == "of_noise" else {}
            return SquashedHead(self.action_space, self.initializer, **options)(x)
        head = PolicyHead(
            self.action_space, self.initializer, self.log_std, self.bounded_mean, self.deviation
        )
        return head(x, timestep.legal_actions)
