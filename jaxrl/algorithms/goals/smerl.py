"""SMERL: structured maximum entropy reinforcement learning (Kumar, Kumar, Levine and Finn, 2020,
"One solution is not all you need: few-shot extrapolation via structured MaxEnt RL",
arXiv:2010.14484, and the authors' code): learn several ways to solve one environment, so that one
of them still works where it has changed.

The policy is told a skill z for each episode. A discriminator learns to tell it from the states of
the episode. As in DIAYN, steps from whose states the skill can be told are paid for; but only in
episodes that are almost as good as the best (`losses.gated_diversity`):

    r + alpha (log q(z | s') - log p(z)) if the episode's return >= R* - epsilon, else r

R* is the return of an optimal policy, which the authors learn beforehand; it is a setting here, as
the bound R* - epsilon is in their code. Their learner is SAC on a replay buffer of whole episodes;
here PPO learns from the episodes that it played last, whose returns are those of the policy as it
is. Skills are told by the wrapper `skills`. To adapt, each skill is tried for a few episodes and
the best one kept (`shared.skills.few_shot`).
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals.shared.skills import (
    SkillDiscriminator,
    check_skills,
    discriminator_loss,
    skill_discriminator,
    skill_rewards,
)
from jaxrl.algorithms.imitation.shared.windows import check_ppo
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Minibatch, Net, Recipe, group, hyper
from jaxrl.kit.composing import around, with_rewards
from jaxrl.kit.groups import INF
from jaxrl.sources.episodes import episodes


@group
class Config(PPOConfig):
    """Settings of SMERL: PPO on skills that are paid for being told apart, where they are almost
    optimal (arXiv:2010.14484)."""

    discriminator: SkillDiscriminator = SkillDiscriminator()
    best_return: float = hyper(0.0, low=-INF, high=INF)
    """Return of an optimal policy, R*; minus infinity pays for diversity in all episodes."""
    tolerance: float = hyper(0.0, low=0, high=INF)
    """Distance from the best return at which an episode's diversity is still paid for, epsilon."""
    diversity_weight: float = hyper(10.0, low=0, high=INF)
    """Weight of the reward for diversity, alpha; 10 as in the authors' commands."""


def gated_rewards(
    reward: Array,
    diversity: Array,
    mask: Array,
    best_return: Array | float,
    tolerance: Array | float,
    weight: Array | float,
) -> tuple[Array, Array]:
    """Return the rewards [T, B] of whole episodes, and which episodes [B] are almost optimal.

    reward, diversity, mask: [T, B]; steps beyond an episode's end are not in its mask.
    """
    returns = jnp.where(mask, reward, 0.0).sum(0)
    paid = losses.gated_diversity(reward, diversity, returns, best_return, tolerance, weight)
    return jnp.where(mask, paid, 0.0), returns >= best_return - tolerance


def recipe(env: Environment, config: Config) -> Recipe:
    passes = config.discriminator.passes

    def before(net: Net, batch: Batch) -> tuple[Net, Batch, None]:
        x, mask, h = batch.transitions, batch.mask, net.hyper
        assert mask is not None
        diversity = skill_rewards(net, x)
        reward, good = gated_rewards(
            x.reward, diversity, mask, h.best_return, h.tolerance, h.diversity_weight
        )
        net = net.report(near_optimal=good.mean(), diversity=losses.masked_mean(diversity, mask))
        window = Minibatch(x, mask, batch.weight)
        net = net.epochs(passes, window, lambda net, part: net.descend(discriminator_loss, part))
        return net, with_rewards(batch, reward), None

    return around(
        ppo.recipe(env, config),
        parts={"discriminator": skill_discriminator(env, config.discriminator)},
        losses=(discriminator_loss,),
        before=before,
        needs=("mask",),
    )


def source(env: Environment, config: Config) -> Source:
    """Return whole episodes."""
    x = config.rollouts
    return episodes(env, x.num_envs, num_shards=x.num_shards)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where PPO or the discriminator cannot learn in `env` with `config`, without
    skills, and for rollouts that are not whole episodes."""
    check_ppo(env, config, config.discriminator.passes, name)
    check_skills(env, name)
    config.rollouts.check_whole_episodes(env, name)


smerl = AlgorithmBuilder("smerl", Config, recipe, source, check=check)

TINY = {
    "env": "corridors",
    "wrappers": [{"skills": {"number": 2}}, {"time_limit": {"max_steps": 4}}],
    "num_envs": 8,
    "num_steps": 4,
    "num_shards": 4,
    "passes.epochs": 2,
    "passes.minibatches": 2,
    "torso.hidden": (8,),
    "discriminator.torso.hidden": (8,),
    "discriminator.passes.minibatches": 2,
    "best_return": -4.0,
    "normalization.observation": True,
}
