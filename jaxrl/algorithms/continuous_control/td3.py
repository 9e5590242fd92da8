"""TD3 (Fujimoto, van Hoof and Meger, 2018, "Addressing function approximation error in actor-critic
methods", arXiv:1802.09477): DDPG that believes the more cautious of two critics, of a target action
that is smeared by noise, and updates the policy and all copies less often than the critics.

The replay keeps fewer than the authors' million unless told, and layers are 256 wide as in their
code (400 and 300 in section 6.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control import ddpg as ddpg_
from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.core import spaces
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.acting import add_gaussian_noise, random_at_first
from jaxrl.kit.groups import Optimizer, Replay
from jaxrl.networks.heads import scale


@group
class Cautious:
    """Settings of what makes DDPG TD3. The defaults are those of the authors' code and of the
    paper's section 6.1, which leaves out gamma."""

    num_critics: int = static(2, low=1)
    """Critics, of which the most cautious counts."""
    delay: int = static(2, low=1)
    """Updates of the critics for one of the policy and of all copies."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    target_noise: float = hyper(0.2, low=0)
    """Standard deviation of the noise on the target policy's actions, in half-widths of theirs."""
    target_noise_clip: float = hyper(0.5, low=0)
    """Its largest size."""
    exploration_noise: float = hyper(0.1, low=0)
    """Standard deviation of the noise on actions that are not greedy, in half-widths."""


@group
class Config(Cautious, deterministic.Common):
    """Settings of TD3."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256, warmup=25_000)
    """Actions are random in the warm-up: 25,000 of them, and minibatches of 256, in the authors'
    code (1,000 or 10,000, and 100, in section 6.1)."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Of policy and critics, each for itself. Adam, 3e-4: authors' code (1e-3 in section 6.1)."""


def recipe(
    env: Environment,
    config: Any,
    reward: Callable[[Net, Transition], Array] = lambda net, x: x.reward,
) -> Recipe:
    """TD3, of the `reward` [B] of transitions as it is or otherwise."""
    space = env.action_space
    (low, high), half_width = spaces.bounds(space), scale(space)[1]  # type: ignore[arg-type]

    def target(net: Net, x: Transition) -> Array:
        """Algorithm 1: r + gamma min_i Q'_i(s', a'), a' of the target policy with clipped noise."""
        h = net.hyper
        noise = half_width * h.target_noise * jax.random.normal(net.key(), x.action.shape)
        action = losses.smoothed_action(
            net.target.actor(x.next_timestep),
            noise,
            half_width * h.target_noise_clip,
            jnp.asarray(low),
            jnp.asarray(high),
        )
        next_q = net.target.critic(x.next_timestep, action)
        return losses.td3_target(reward(net, x), x.terminated, h.discount, next_q)

    act = random_at_first(add_gaussian_noise("actor", space, half_width), space)
    sizes = {"num_critics": config.num_critics, "delay": config.delay}
    return deterministic.recipe(env, config, act, target, **sizes)


td3 = AlgorithmBuilder("td3", Config, recipe, check=deterministic.check)

TINY = ddpg_.TINY | {"updates": 3}
