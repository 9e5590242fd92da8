"""Imitation from observation with automatic discount scheduling (ADS; Liu, Dong, Hu, Zhao, Lin and
Gao, 2024, "Imitation learning from observation with automatic discount scheduling",
arXiv:2310.07433): the reward is optimal transport to an expert's observations, and the discount
factor grows with the part of the demonstrations that the policy has mastered.

    reward of step t   = -scale sum_j P_tj cost_tj     (P: transport plan to the nearest
                                                        demonstration)
    discount           = weight^(1 / progress)

Where later steps depend on earlier ones, rewards of late steps mislead as long as the first are not
mastered; a small discount leaves them out. Progress is a number of steps, from `start` of the
episode on. It grows by 1 where the policy's first steps follow those of a demonstration in the
right order (`losses.alignment_progress`) as far as `threshold` of how demonstrations follow each
other. No reward and no action of the expert is read.

The formulas and defaults are those of the authors' code, with these differences. The policy learns
by PPO from whole episodes, where they have a variant of DrQ-v2. Progress is judged in each update,
by the episodes that it learns from, and theirs in each evaluation, by ten episodes of the greedy
policy; either way the percentile is over all episodes and demonstrations together. Rewards are
scaled by the mean of the first update's episodes (by the first episode there). Costs are Euclidean
distances of observations, which they have for states (for pixels: cosine distances of a pretrained
encoder). A step is paid for the observation that it leads to; there for the one before it. A single
demonstration is compared with itself.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses, solvers
from jaxrl.algorithms.imitation.shared.adversarial import refuse_reward_scaling
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment, Source, Tree, struct
from jaxrl.envs.policies import expert_policy
from jaxrl.envs.wrappers.expert_channel import expert_channel
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.composing import around, with_rewards
from jaxrl.kit.groups import INF, Rollouts
from jaxrl.networks import encoders
from jaxrl.sources.episodes import episodes


@group
class Shown:
    """Whole episodes of the environment's expert, of which the observations are shown."""

    episodes: int = static(4, low=1)
    """Number of episodes."""
    seed: int = static(0, low=0, high=2**32 - 1)
    """Seed of the episodes."""


@group
class Transport:
    """Rewards from optimal transport."""

    iterations: int = static(100, low=1)
    """Number of Sinkhorn iterations."""
    regularization: float = hyper(0.01, above=0, high=INF, log=True)
    """Weight of the entropy of the transport plan."""
    magnitude: float = hyper(10.0, above=0, high=INF)
    """Mean magnitude of the sum of an episode's rewards in the first update, to which all rewards
    are scaled. (In the second where observations are normalized, since the first batch is not.)"""


@group
class Schedule:
    """Automatic discount scheduling."""

    automatic: bool = True
    """Let the discount factor grow with progress; otherwise it is `discount`."""
    start: float = static(0.2, low=0, high=1)
    """Progress at the start, as a share of the episode."""
    largest_step: int = static(5, low=1)
    """Largest number of steps that progress grows by in an update."""
    weight: float = hyper(0.2, above=0, below=1)
    """Weight of a reward that lies as many steps ahead as have been mastered."""
    threshold: float = hyper(0.9, low=0, high=1)
    """Share of the demonstrations' own alignment at which a step counts as mastered."""
    percentile: float = hyper(90.0, low=0, high=100)
    """Percentile of the alignments of the policy's episodes that counts."""
    reference: float = static(50.0, low=0, high=100)
    """Percentile of the alignments of demonstrations with each other that is compared with."""


@group
class Config(PPOConfig):
    """Settings of ADS: PPO on optimal transport to an expert's observations, under a discount
    factor that grows with progress (arXiv:2310.07433)."""

    rollouts: Rollouts = Rollouts(num_envs=16, num_steps=1000)
    """Whole episodes; `num_steps` must be the environment's time limit."""
    shown: Shown = Shown()
    transport: Transport = Transport()
    schedule: Schedule = Schedule()


@struct
class Mastery:
    """Extra state: steps that are mastered, int32, and the scale of rewards."""

    progress: Array
    scale: Array


@struct
class Demonstrations:
    """Observations [T, M, *shape] that the steps of M episodes lead to, and which exist, [T, M]."""

    observation: Tree
    exists: Array


def show(env: Environment, count: int, seed: int) -> Demonstrations:
    """Play `count` episodes of the environment's expert."""
    watched = expert_channel(env)
    source, expert = episodes(watched, count), expert_policy(watched)

    def play(key):
        begin_key, key = jax.random.split(key)
        batch = source.collect(source.init(begin_key, {}, expert), expert, key)[1]
        return Demonstrations(batch.transitions.next_observation, batch.mask)

    return jax.jit(play)(random.key(seed))


def costs(x: Array, y: Array) -> Array:
    """Return distances [B, M, T, T] of the steps of episodes x [T, B, D] and y [T, M, D]."""
    x, y = (jnp.moveaxis(z, 1, 0) for z in (x, y))
    return jnp.sqrt(losses.squared_distances(x[:, None], y[None]))


def alignment(cost: Array, length: Array, shown: Array, progress: Array) -> Array:
    """Return the alignment of the first `progress` steps of one episode and one demonstration.

    cost: [T, T]. length, shown: steps of the episode and of the demonstration, int32 []. progress:
        int32 [], as a whole number of steps.
    """
    column = jnp.arange(len(cost))
    row, there = column[:, None], jnp.minimum(progress, length)
    # A step that does not count matches the first one, which extends no alignment.
    nothing = jnp.where(column == 0, -jnp.inf, jnp.inf)
    seen = jnp.where(column < jnp.minimum(progress, shown), cost, jnp.inf)
    return losses.alignment_progress(jnp.where(row < there, seen, nothing))


def reference_alignments(cost: Array, lengths: Array, percentile: float) -> Array:
    """Return how well demonstrations follow each other in their first 1, 2, ..., T steps, [T].

    cost: [M, M, T, T]. lengths: steps of each, [M].
    """
    others = ~np.eye(len(cost), dtype=bool) if len(cost) > 1 else np.ones((1, 1), bool)
    first, second = np.nonzero(others)
    pairs = (cost[first, second], lengths[first], lengths[second])
    up_to = lambda progress: jax.vmap(alignment, in_axes=(0, 0, 0, None))(*pairs, progress)
    found = jax.vmap(up_to)(jnp.arange(1, cost.shape[-1] + 1))
    return jnp.percentile(found, percentile, axis=1)


def transport_rewards(
    cost: Array, exists: Array, shown: Array, regularization: Array, iterations: int
) -> Array:
    """Return the rewards [T, B] of episodes, from the demonstration to which transport costs least.

    cost: [B, M, T, T]. exists, shown: steps that exist, of the episodes [T, B] and of the
        demonstrations [T, M].
    """
    masses = [(x / x.sum(0)).T for x in (exists, shown)]

    def pair(cost, row_mass, column_mass):
        plan = solvers.sinkhorn(cost, regularization, row_mass, column_mass, iterations)
        return losses.transport_reward(cost, plan)

    of_episode = jax.vmap(pair, in_axes=(0, None, 0))
    reward = jax.vmap(of_episode, in_axes=(0, 0, None))(cost, *masses)  # [B, M, T]
    nearest = reward.sum(-1).argmax(-1)
    return jnp.take_along_axis(reward, nearest[:, None, None], 1)[:, 0].T


def advance(progress: Array, match: Array, reference: Array, threshold: Array) -> Array:
    """Return the progress after a judgment: one step more where `match` is at least the whole part
    of `threshold` times the reference [T] for the steps so far, and at most T."""
    tolerance = 1e-3  # percentiles of whole numbers are rounded
    least = jnp.floor(threshold * reference[progress - 1] + tolerance)
    enough = match + tolerance >= least
    return jnp.where(enough & (progress < len(reference)), progress + 1, progress)


def recipe(env: Environment, config: Config) -> Recipe:
    demonstrations = show(env, config.shown.episodes, config.shown.seed)
    horizon, schedule = config.rollouts.num_steps, config.schedule
    # The first batch is learned from before the normalizer has counted anything.
    last_scaled = int(config.normalization.observation)
    lengths = demonstrations.exists.sum(0)
    flatten = lambda observation: encoders.flatten(env.observation_space, observation)

    def judge(net: Net, cost: Array, batch: Batch) -> tuple[Array, Array]:
        """Return the new progress and the alignment that it follows from."""
        h = net.hyper.schedule
        known = flatten(net.normalize(demonstrations.observation))
        reference = reference_alignments(costs(known, known), lengths, schedule.reference)
        assert batch.mask is not None
        steps = batch.mask.sum(0)

        def match(progress):
            one = lambda cost, length, shown: alignment(cost, length, shown, progress)
            over_shown = jax.vmap(one, in_axes=(0, None, 0))
            found = jax.vmap(over_shown, in_axes=(0, 0, None))(cost, steps, lengths)
            return jnp.percentile(found, h.percentile)

        def step(progress, _):
            found = match(progress)
            return advance(progress, found, reference, h.threshold), found

        progress, found = jax.lax.scan(step, net.extra.progress, None, length=schedule.largest_step)
        return progress, found[-1]

    def before(net: Net, batch: Batch) -> tuple[Net, Batch, None]:
        x, h, exists = batch.transitions, net.hyper.transport, batch.mask
        assert exists is not None
        shown = flatten(net.normalize(demonstrations.observation))
        cost = costs(flatten(x.next_observation), shown)
        reward = transport_rewards(
            cost, exists, demonstrations.exists, h.regularization, config.transport.iterations
        )
        reward = jnp.where(exists, reward, 0.0)
        size = jnp.abs(reward.sum(0)).mean()
        first = h.magnitude / jnp.maximum(size, 1e-8)
        scale = jnp.where(net.updates <= last_scaled, first, net.extra.scale)
        net = net.report(imitation_reward=(scale * reward).sum(0).mean())
        progress, discount = net.extra.progress, net.hyper.discount
        if schedule.automatic:
            progress, found = judge(net, cost, batch)
            discount = losses.progress_discount(
                progress.astype(jnp.float32), net.hyper.schedule.weight
            )
            net = net.report(alignment=found, progress=progress.astype(jnp.float32))
        net = net.report(scheduled_discount=discount)
        net = net.replace(
            extra=Mastery(progress, scale), hyper=net.hyper.replace(discount=discount)
        )
        return net, with_rewards(batch, scale * reward), None

    begun = Mastery(jnp.int32(max(int(schedule.start * horizon), 1)), jnp.float32(1.0))
    return around(ppo.recipe(env, config), extra=begun, before=before, needs=("mask",))


def source(env: Environment, config: Config) -> Source:
    """Return whole episodes."""
    x = config.rollouts
    return episodes(env, x.num_envs, num_shards=x.num_shards)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where PPO cannot learn in `env` with `config`, without an expert, and for
    rollouts that are not whole episodes."""
    ppo.check(env, config, name)
    refuse_reward_scaling(config, name)
    if env.expert is None:
        raise UserError(f"{name} follows an expert's observations; '{env.name}' has none.")
    config.rollouts.check_whole_episodes(env, name)


ads = AlgorithmBuilder("ads", Config, recipe, source, check=check)

TINY = {
    "env": "catch",
    "env_params": {"rows": 5, "columns": 3},
    "num_envs": 8,
    "num_steps": 4,
    "num_shards": 4,
    "shown.episodes": 2,
    "transport.iterations": 3,
    "passes.epochs": 2,
    "passes.minibatches": 2,
    "torso.hidden": (8,),
    "normalization.observation": True,
}
