"""Sequence policies that are asked for a return: settings, what they read of windows of data, and
the window that they remember while they act."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array, Environment, TimeStep, Transition, Tree
from jaxrl.kit import Net, Part, group, static
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import Optimizer
from jaxrl.kit.recipe import Act
from jaxrl.networks import encoders
from jaxrl.networks.actor_critic import check_transformer, context_length
from jaxrl.networks.heads import check_action_space
from jaxrl.networks.sequence_policy import SequencePolicy, Steps


@group
class Sequence:
    """Transformer over the last steps of an episode."""

    context: int = static(20, low=1)
    """Number of steps that the policy looks back at, the present one included."""
    width: int = static(128, low=1, high=WIDE)
    """Width of the transformer."""
    layers: int = static(3, low=1)
    """Number of blocks of the transformer."""
    heads: int = static(1, low=1)
    """Number of attention heads."""

    def network(
        self, env: Environment, predicts: int = 0, longest: int | None = None
    ) -> SequencePolicy:
        """Return the sequence policy for `env`; `predicts` and `longest` are as there. By default
        the longest episode is that of `env`."""
        longest = context_length(env) - 1 if longest is None else longest
        sizes = self.width, self.layers, self.heads
        return SequencePolicy(env.action_space, longest, *sizes, predicts)

    def check(self, env: Environment, name: str) -> None:
        """Raise `UserError` for an action space without a policy head, sizes that no transformer
        has, and episodes without a time limit."""
        check_action_space(env.action_space, name)
        check_transformer(self.width, self.layers, self.heads)
        context_length(env)


def sequence_part(env: Environment, config: Any, optimizer: Optimizer, predicts: int = 0) -> Part:
    """Return the part that holds the sequence policy `config` for `env`."""
    memory = no_steps(env, config.context, 1)
    return Part(config.network(env, predicts), (swap_axes(memory),), optimizer)


def features_of(env: Environment, timestep: TimeStep) -> Array:
    """Return the features [..., F] of time steps: observation and goal."""
    return encoders.features(env.observation_space, timestep)


def read_window(env: Environment, x: Transition, to_go: Array) -> Steps:
    """Return steps of a window [T, B] of data, with returns-to-go in the network's units.

    What lies behind the end of an episode need not be hidden: no step before it sees it.
    """
    action = encoders.action_features(env.action_space, x.action)
    exists = jnp.ones(to_go.shape, bool)
    return Steps(to_go, features_of(env, x.timestep), action, x.extras["time"], exists)


def action_error(space: Space, policy: Any, action: Tree) -> Array:
    """Return the error of a policy [...] at actions [..., *shape]: the mean squared difference of
    its mean, in half-widths, for a box, and -log p otherwise."""
    if not isinstance(space, Box):
        return losses.behavior_cloning(policy.log_prob(action))
    predicted, taken = (encoders.action_features(space, a) for a in (policy.mode(), action))
    return jnp.square(predicted - jax.lax.stop_gradient(taken)).mean(-1)


def no_steps(env: Environment, context: int, n: int) -> Steps:
    """Return the memory [n, K] of a sequence policy before an episode's first step."""
    features = features_of(env, example_timestep(env)).shape[-1]
    action = encoders.action_features(env.action_space, spaces.example(env.action_space)).shape[-1]
    return Steps(
        jnp.zeros((n, context)),
        jnp.zeros((n, context, features)),
        jnp.zeros((n, context, action)),
        jnp.zeros((n, context), jnp.int32),
        jnp.zeros((n, context), bool),
    )


def swap_axes(steps: Steps) -> Steps:
    """Exchange the first two axes: [B, K] to [K, B], or back."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)


def append_step(
    env: Environment, memory: Steps, timestep: TimeStep, asked: Array, *, scale: Array
) -> Steps:
    """Return the memory [B, K] with the present step last, whose action is not known yet, and
    without its oldest step.

    The first step of an episode asks for the return `asked`, each later one for what is left of it
    after the rewards seen. `scale` divides both.
    """
    left = memory.to_go[:, -1] - timestep.reward / scale
    newest = Steps(
        jnp.where(timestep.first, asked / scale, left),
        features_of(env, timestep),
        jnp.zeros_like(memory.action[:, -1]),
        jnp.where(timestep.first, 0, memory.time[:, -1] + 1),
        jnp.ones_like(timestep.first),
    )
    push = lambda old, new: jnp.concatenate([old[:, 1:], new[:, None].astype(old.dtype)], 1)
    return jax.tree.map(push, memory, newest)


class Ask(Protocol):
    """A function that tells what return is asked for."""

    def __call__(self, net: Net, timestep: TimeStep, /) -> Array:
        """Return the return that episodes are asked for: a scalar or [B].

        net: parts and hyperparameters. timestep: of each environment, [B].
        """
        ...


def act_by_sequence(env: Environment, part: str, ask: Ask) -> Act:
    """Act by the sequence policy `part`, which remembers the last steps; greedily by its mode. A
    box's deviation is not learned, so the mean acts there in any case.

    ask: tells the return that is asked for; the hyperparameter `return_scale` divides it.
    """
    space = env.action_space

    def act(net, timestep, memory, key, greedy):
        asked, scale = ask(net, timestep), net.hyper.return_scale
        steps = append_step(env, memory, timestep, asked, scale=scale)
        legal = timestep.legal_actions
        if legal is not None:
            legal = jnp.broadcast_to(legal, (steps.time.shape[1], *legal.shape))
        policy = getattr(net, part)(swap_axes(steps), legal).policy
        drawn = choose(policy, key, greedy or isinstance(space, Box))
        action = spaces.clip(space, jax.tree.map(lambda x: x[-1], drawn))
        taken = steps.action.at[:, -1].set(encoders.action_features(space, action))
        return action, dataclasses.replace(steps, action=taken), {}

    return act
