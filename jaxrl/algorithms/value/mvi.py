"""Munchausen value iteration with Tsallis statistics, MVI(q) (Zhu, Chen, Schlegel and White, 2023,
"General Munchausen reinforcement learning with Tsallis Kullback-Leibler divergence",
arXiv:2301.11476): Munchausen DQN whose logarithm, entropy and policy are those of an index q. At 1,
with the bonus `logarithm`, it is Munchausen DQN; at 2 the policy is the sparsemax, which excludes
actions. What differs: the policy's normalization is found by bisection, not by their approximation;
theirs predicts quantiles (QR-DQN)."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl import losses
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.algorithms.value import munchausen_dqn as munchausen
from jaxrl.algorithms.value.shared.heads import MEAN, Head
from jaxrl.core.types import Environment
from jaxrl.kit import Recipe, group, static

BONUSES = ("advantage", "logarithm")


@group
class Config(munchausen.Config):
    """Settings of MVI(q), the rest as those of Munchausen DQN (the paper tunes alpha and tau)."""

    index: float = static(2.0, low=1, high=10)
    """q, the entropic index: 2 in their experiments."""
    bonus: str = static("advantage", choices=BONUSES)
    """What of the action taken is added to the reward: its advantage over pi, as in their section
    4.2, or tau log_q pi(a). Where pi is positive the two differ by a constant of the state."""


def head(index: float, bonus: str) -> Head:
    """Action values with the target of MVI(q); both states are valued by the copy."""

    def target(net, x, discount, evaluated, selector):
        q = MEAN.values(net, net.target.q(x.timestep), x.timestep)
        following, h = MEAN.values(net, evaluated, x.next_timestep), net.hyper
        if bonus == "logarithm":
            return losses.tsallis_munchausen_target(
                x.reward, x.terminated, discount, q, x.action, following,
                h.temperature, h.weight, h.lowest, index,
            )  # fmt: skip
        policy = losses.tsallis_policy(q, h.temperature, index)
        advantage = losses.q_advantage(q, x.action, policy)
        reward = x.reward + h.weight * advantage.clip(h.lowest)
        value = losses.tsallis_value(following, h.temperature, index)
        return losses.td_target(reward, x.terminated, discount, value)

    return dataclasses.replace(MEAN, target=target)


def recipe(env: Environment, config: Any) -> Recipe:
    return dqn_.recipe(env, config, head=head(config.index, config.bonus))


mvi = dataclasses.replace(dqn_.dqn, name="mvi", Config=Config, recipe=recipe)

TINY = dqn_.TINY | {"bonus": "logarithm"}
