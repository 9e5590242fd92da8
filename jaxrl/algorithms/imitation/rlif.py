"""Reinforcement learning via intervention feedback (RLIF; Luo, Dong, Zhai, Ma and Levine, 2024,
"RLIF: interactive imitation learning as reinforcement learning", arXiv:2311.12996): an expert steps
in now and then, and the only reward is a penalty for the action before it does.

    r(s_t, a_t) = -1 where the policy acted at t and the expert steps in at t + 1, else 0

Soft actor-critic learns from that, by batches of which half are steps that the expert played alone,
with a reward of 0, and half the steps of the policy and of the expert's interventions (RLPD; Ball
et al., 2023, "Efficient online reinforcement learning with offline data"). No reward of the
environment is read. So the policy learns to avoid states in which the expert steps in, and may do
better than an expert whose actions are poor, as long as it steps in sensibly.

The expert is that of the environment, with random actions in the place of a share of its own
(`expert_skill`). It steps in where the policy's action is far from that of the environment's expert
(`rule` "distance", reversed with the probability `mistakes`), or at random, and acts for `duration`
steps. The published code has both rules, and a third which compares the two actions' values by an
expert's critic; there is no such critic here. It has 10 critics, 2 of which are drawn for a target,
layer normalization and the expert's first intervened steps alone in its replay buffer; here SAC is
that of `sac`, and all steps are kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.sac import TINY as TINY_SAC
from jaxrl.algorithms.continuous_control.sac import Config as SACConfig
from jaxrl.algorithms.continuous_control.sac import sac
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.core import spaces, trees
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source, Transition, Tree
from jaxrl.envs.policies import mixed_skill
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION, expert_channel
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.acting import Act
from jaxrl.kit.composing import around, with_rewards
from jaxrl.kit.groups import INF
from jaxrl.networks.heads import scale
from jaxrl.sources.dataset import mixed
from jaxrl.sources.played import played_dataset, windows


@group
class Prior:
    """Steps that the intervening expert plays alone before learning."""

    size: int = static(2_000, low=1)
    """Number of steps that are played."""
    streams: int = static(4, low=1, high=MANY)
    """Number of streams of episodes that are played side by side; each must have room for a whole
    episode."""


@group
class Config(SACConfig):
    """Settings of RLIF: SAC on a penalty for actions that make an expert step in
    (arXiv:2311.12996)."""

    prior: Prior = Prior()
    expert_skill: float = static(1.0, low=0, high=1)
    """Probability that an action of the intervening expert is that of the environment's expert;
    others are uniformly random."""
    rule: str = static("distance", choices=("distance", "random"))
    """Rule of interventions: distance (of the policy's action from that of the environment's
    expert) or random."""
    duration: int = static(4, low=1)
    """Number of steps of an intervention."""

    threshold: float = hyper(0.5, low=0, high=INF)
    """Distance at which the expert steps in: the sum over the action's dimensions, in
    half-widths."""
    mistakes: float = hyper(0.05, low=0, high=1)
    """Probability that the rule "distance" is reversed at a step."""
    rate: float = hyper(0.1, low=0, high=1)
    """Probability that the expert steps in at a step, for the rule "random"."""
    penalty: float = hyper(1.0, low=0, high=INF)
    """Penalty for the action before the expert steps in."""


def supervise(act: Act, env: Environment, config: Config) -> Act:
    """Return `act`, into which the expert steps wherever time steps hold its advice, as they do in
    training alone. The memory is a pair: that of `act`, and the number of steps [B] that the expert
    goes on to act."""
    half_width = scale(env.action_space)[1]

    def act_or_yield(net: Net, timestep: Any, memory: tuple[Tree, Array], key: Any, greedy: bool):
        inner, left = memory
        action, inner, extras = act(net, timestep, inner, key, greedy)
        channel, h = timestep.privileged, net.hyper
        if not isinstance(channel, dict) or EXPERT_ACTION not in channel:
            return action, (inner, left), extras
        step_key, skill_key, random_key = jax.random.split(jax.random.fold_in(key, 1), 3)
        advised = channel[EXPERT_ACTION]
        shape = left.shape
        if config.rule == "random":
            steps_in = jax.random.bernoulli(step_key, h.rate, shape)
        else:
            apart = jnp.abs((action - advised) / half_width).reshape(*shape, -1).sum(-1)
            mistaken = jax.random.bernoulli(step_key, h.mistakes, shape)
            steps_in = (apart > h.threshold) ^ mistaken
        left = jnp.where(timestep.first, 0, left)
        intervened = (left > 0) | steps_in
        left = jnp.where(left > 0, left - 1, jnp.where(steps_in, config.duration - 1, 0))
        keys = jax.random.split(random_key, shape[0])
        random = jax.vmap(lambda key: spaces.sample(env.action_space, key))(keys)
        skilled = jax.random.bernoulli(skill_key, config.expert_skill, shape)
        experts = trees.where(skilled, advised, random)
        action = trees.where(intervened, experts, action)
        return action, (inner, left), {**extras, "intervened": intervened}

    return act_or_yield


def label(x: Transition, penalty: Array) -> tuple[Transition, Array]:
    """Return the first of two consecutive steps [2, n], and their rewards [n]."""
    intervened = x.extras["intervened"]
    first = jax.tree.map(lambda a: a[0], x)
    following = intervened[1] & ~first.done
    return first, losses.intervention_reward(intervened[0], following, penalty)


def recipe(env: Environment, config: Config) -> Recipe:
    plain = sac.recipe(env, config)
    supervised = dataclasses.replace(
        plain,
        act=supervise(plain.act, env, config),
        memory=lambda n: (plain.memory(n), jnp.zeros(n, jnp.int32)),
    )

    def before(net: Net, batch: Batch) -> tuple[Net, Batch, None]:
        intervened = batch.transitions.extras["intervened"][0]
        first, reward = label(batch.transitions, net.hyper.penalty)
        net = net.report(intervened=intervened.mean(), stepped_in=(reward < 0).mean())
        return net, with_rewards(dataclasses.replace(batch, transitions=first), reward), None

    return around(supervised, before=before, needs=("transitions.extras.intervened",))


def mark_as_experts(source: Source) -> Source:
    """Return `source`, all of whose steps are an expert's, without other extras."""

    def sample(state, fresh, key):
        batch = source.sample(state, fresh, key)
        x = batch.transitions
        extras = {"intervened": jnp.ones(x.reward.shape, bool)}
        return dataclasses.replace(batch, transitions=dataclasses.replace(x, extras=extras))

    return dataclasses.replace(source, sample=sample)


def source(env: Environment, config: Config) -> Source:
    """Return pairs of consecutive steps [2, n]; the first half of each logical shard is played by
    the expert alone."""
    x, prior = config.replay, config.prior
    watched, half = expert_channel(env), x.batch_size // 2
    shown = played_dataset(
        watched,
        mixed_skill(watched, (config.expert_skill,)),
        prior.size,
        half,
        windows(2, pad=True),  # last steps too; what is repeated after one is not read
        streams=prior.streams,
        num_shards=x.num_shards,
    )
    met = dataclasses.replace(x, batch_size=half).source(watched, length=2)
    return mixed(mark_as_experts(shown), met, x.num_shards)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless `env` has bounded actions and an expert, and the batch two halves of
    each logical shard."""
    soft.check(env, config, name)
    if env.expert is None:
        raise UserError(f"In {name} an expert steps in; '{env.name}' has none.")
    x = config.replay
    if x.batch_size % (2 * x.num_shards):
        raise UserError(
            f"batch_size is {x.batch_size}; {name} needs a multiple of {2 * x.num_shards}, for two "
            "halves of each logical shard."
        )


rlif = AlgorithmBuilder("rlif", Config, recipe, source, check=check)

TINY = TINY_SAC | {
    "prior.size": 200,
    "prior.streams": 1,
    "expert_skill": 0.5,
    "duration": 2,
    "num_steps": 2,
}
