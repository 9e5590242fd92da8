"""Munchausen value iteration with Tsallis statistics, MVI(q) (Zhu, Chen, Schlegel and White, 2023,
"General Munchausen reinforcement learning with Tsallis Kullback-Leibler divergence",
arXiv:2301.11476): Munchausen DQN with the logarithm, entropy and policy of an entropic index q.

With index 1 and the bonus `logarithm` it is Munchausen DQN; with index 2 the policy is the
sparsemax, which excludes actions. Unlike the paper, the policy's normalization is found by
bisection, not by their approximation; and they predict quantiles (QR-DQN).
"""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.value import munchausen_dqn as munchausen
from jaxrl.algorithms.value.shared.heads import HeadTarget, legal_values
from jaxrl.core.types import Environment
from jaxrl.kit import Recipe, group, static

BONUSES = ("advantage", "logarithm")


@group
class Config(munchausen.Config):
    """Settings of MVI(q); the rest are those of Munchausen DQN (the paper tunes alpha and tau)."""

    index: float = static(2.0, low=1, high=10)
    """Entropic index q: 2 in the paper's experiments."""
    bonus: str = static("advantage", choices=BONUSES)
    """Bonus of the taken action in the reward: its advantage over pi (the paper's section 4.2), or
    tau log_q pi(a). Where pi is positive, the two differ by a constant of the state."""


def tsallis_target(index: float, bonus: str) -> HeadTarget:
    """Return the target of MVI(q) for action values; the target network values both states."""

    def target(net, x, *, discount, evaluated, selector):
        q = legal_values(net.target.q(x.timestep), x.timestep)
        following, h = legal_values(evaluated, x.next_timestep), net.hyper
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

    return target


def recipe(env: Environment, config: Config) -> Recipe:
    target = tsallis_target(config.index, config.bonus)
    return munchausen.munchausen_dqn.recipe(env, config, target=target)


mvi = munchausen.munchausen_dqn.variant("mvi", Config=Config, recipe=recipe)

TINY = munchausen.TINY | {"bonus": "logarithm"}
