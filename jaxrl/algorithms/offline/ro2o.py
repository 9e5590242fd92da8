"""RO2O (Wen et al., 2024,
"Towards robust offline-to-online reinforcement learning via uncertainty and smoothness",
arXiv:2309.16973): SAC-N whose policy and critics change little between a state and its neighbors,
and whose critics are lowered for the policy's actions in these neighbors, by as much as they
disagree there. The same agent continues online with the same losses.

    critics  SAC-N's error + q_weight max_k mean_i (w (Q_i(s_k, a) - Q_i(s, a))^2)
             + ood_weight mean_k mean_i (u std_j Q_j(s_k, a_k))^2 / 2, a_k of the policy in s_k
    policy   SAC-N's loss + policy_weight max_k (KL(pi(s), pi(s_k)) + KL(pi(s_k), pi(s)))

The last term of the critics pulls Q_i(s_k, a_k) to itself less u std_j Q_j(s_k, a_k), a constant.
Neighbors s_k differ from a state by uniform offsets, the same ones for a whole batch, and rises of
the critics count by w = 0.8, falls by 0.2, all as in the authors' code. Deviations are those of the
population (of a sample there), and the order of updates is SAC's (the policy's first there).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control import sac
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.offline import sac_n
from jaxrl.algorithms.offline.shared import soft_offline
from jaxrl.core import schedules
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper, static
from jaxrl.kit.groups import INF, Normalization
from jaxrl.networks.heads import gaussian

EXPECTILE = 0.2  # weight of falls of the critics; rises have 1 minus it: authors' code


@group
class Config(sac_n.Config):
    """Settings of RO2O: SAC-N that is smooth around the data and doubts what it does there
    (arXiv:2309.16973). The defaults are those of the authors' code for locomotion."""

    normalization: Normalization = Normalization(observation=True)
    num_neighbors: int = static(20, low=1)
    """Number of neighbors of each state."""

    radius: float = hyper(0.01, low=0)
    """Largest offset of each number of a neighbor's observation."""
    policy_weight: float = hyper(1.0, low=0)
    """Weight of the policy's largest change."""
    q_weight: float = hyper(5e-5, low=0)
    """Weight of the critics' largest change. Half of the authors', since the squared errors beside
    it are halved here and not there."""
    ood_weight: float = hyper(0.1, low=0)
    """Weight of the loss that lowers the critics in the neighbors."""
    doubt: float = hyper(1.0, low=0)
    """Number of standard deviations by which they are lowered at the start, u."""
    doubt_end: float = hyper(0.1, low=0)
    """Number of standard deviations after `doubt_steps`."""
    doubt_steps: float = hyper(1.8e6, above=0, high=INF)
    """Steps of the run over which that number changes."""


def recipe(env: Environment, config: Config) -> Recipe:
    sample = soft.sample_in_half_widths(env.action_space)

    def beside(
        function: Callable[[TimeStep, Key], Tree], timestep: TimeStep, key: Key, radius: Array
    ) -> Tree:
        """Apply a function to the neighbors of time steps [B]: its results [K, B, ...]."""
        x, count = timestep.observation, config.num_neighbors
        keys = jax.random.split(key, count + 1)
        offsets = jax.random.uniform(keys[0], (count, *x.shape[1:]), x.dtype, -1, 1) * radius
        moved = lambda offset: dataclasses.replace(timestep, observation=x + offset)
        return jax.vmap(lambda offset, key: function(moved(offset), key))(offsets, keys[1:])

    def smooth_values(net, x):
        """Compute the weighted largest change of the critics at the data's actions."""
        near = lambda timestep, key: net.critic(timestep, x.action)
        there = beside(near, x.timestep, net.key("values"), net.hyper.radius)
        here = net.critic(x.timestep, x.action)
        change = losses.q_smoothness(here, jnp.moveaxis(there, 0, 1), EXPECTILE)
        return LossOutput(net.hyper.q_weight * change, {"value_change": change})

    def doubtful_values(net, x):
        """Compute the weighted loss that lowers the critics where the policy goes nearby."""

        def near(timestep, key):
            return net.critic(timestep, sample(net.actor(timestep), key)[0])

        h = net.hyper
        there = beside(near, x.timestep, net.key("doubt"), h.radius)
        share = schedules.progress(net.env_steps, h.doubt_steps)
        lowered = losses.ood_penalty(there, schedules.linear(h.doubt, h.doubt_end, share))
        return h.ood_weight * lowered.mean((0, -1))

    def smooth_policy(net, x):
        """Compute the weighted largest change of the policy, before the tanh."""

        def near(timestep: TimeStep, key: Key | None) -> Any:
            policy: Any = net.actor(timestep)
            return gaussian(policy.distribution)

        there = beside(near, x.timestep, net.key("policy"), net.hyper.radius)
        change = losses.policy_smoothness(
            *near(x.timestep, None), *(jnp.moveaxis(part, 0, 1) for part in there)
        )
        return LossOutput(net.hyper.policy_weight * change, {"policy_change": change})

    return sac.recipe(
        env,
        config,
        reward=scaled_reward,
        critic_terms=(smooth_values, doubtful_values),
        actor_terms=(smooth_policy,),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box and observations one box of real
    numbers, and for a single critic."""
    soft.check(env, config, name)
    if config.num_critics < 2:
        raise UserError(
            f"num_critics is {config.num_critics}, but {name} compares critics; choose at least 2."
        )
    space = env.observation_space
    if not isinstance(space, Box) or not jnp.issubdtype(space.dtype, jnp.floating):
        raise UserError(
            f"{name} moves observations a little, so they must be one Box of real numbers; those "
            f"of '{env.name}' are {space!r}."
        )


ro2o = AlgorithmBuilder("ro2o", Config, recipe, check=check)

TINY = soft_offline.TINY | {"num_critics": 2, "num_neighbors": 2}
