"""HERON (Bukharin, Li, He and Zhao, 2023, "Deep reinforcement learning from hierarchical weak
preference feedback", arXiv:2309.02632; later "Deep reinforcement learning from hierarchical
preference design"): PPO on the rewards of a model that is trained on comparisons, of which people
say nothing but which factor of the reward matters more.

The factors are the components of the environment's reward, ranked by `order`. Two segments of
experience are compared by a decision tree: the first factor whose sums differ by more than its
margin decides, and where none does the pair is left out (`losses.hierarchical_preference`). A
margin is a number of standard deviations of that factor, so the scales of factors do not matter, as
they do to weights of a sum. The model minimizes the Bradley-Terry loss

    -log sigmoid(sum_t r(preferred) - sum_t r(other))

Each window first trains the reward model, then the policy, by PPO from the model's rewards alone.
As in the authors' code for robots, what is compared are single steps of one window; `length` makes
them longer. There the standard deviation is that of a minibatch, here of the window, and the reward
reads the observation alone. The environment's own reward is logged, never learned from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient import ppo as of_ppo
from jaxrl.algorithms.preferences.shared.segment_rewards import (
    READS,
    model_of,
    pay,
    predict_rewards,
)
from jaxrl.algorithms.preferences.shared.segments import PAIR, accuracy
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Transition
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    loss,
    static,
)
from jaxrl.kit.composing import around
from jaxrl.kit.groups import Epochs, Optimizer, Torso


@group
class RankedFactors:
    """Reward model of comparisons by ranked factors."""

    order: tuple[int, ...] = static((), low=0, high=MANY)
    """Ranking of the factors, the most important first: places of the reward's components among
    their names in alphabetical order. Empty for all in that order; factors that are left out do not
    count."""
    margins: tuple[float, ...] = static((0.0,), low=0, high=MANY, least_length=1)
    """Smallest difference of each ranked factor that decides, in its standard deviations; a single
    number for all."""
    length: int = static(1, low=1, high=MANY)
    """Number of steps of a segment that is compared. 1: authors' code for robots."""
    reads: str = static("action", choices=READS)
    """Input of the reward of a step: action (and the observation before it), or the observation
    that the action led to alone."""
    passes: Epochs = Epochs(epochs=1, minibatches=32)
    """Gradient steps on each window. One pass: authors' code."""
    torso: Torso = Torso(hidden=(256, 256))
    """Hidden layers. Two of 256: authors' code."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings. Adam, 1e-3: authors' code."""


@group
class Config(of_ppo.Config):
    """Settings of HERON: PPO on a reward model of comparisons by ranked factors
    (arXiv:2309.02632)."""

    reward: RankedFactors = RankedFactors()


def factors_of(env: Environment) -> tuple[str, ...]:
    """Return the names of the parts of an environment's reward, in order."""
    return tuple(sorted(example_timestep(env).reward_components or {}))


def ranked_factors(t: Transition, ranking: Sequence[str]) -> Array:
    """Return the factors [..., F] of transitions [...], the most important first."""
    components: Any = t.next_timestep.reward_components
    return jnp.stack([components[name] for name in ranking], -1)


def cut_segments(x: Array, length: int) -> Array:
    """Cut windows [T, B, ...] into segments [length, T / length * B, ...]."""
    x = x.reshape(-1, length, *x.shape[1:])
    return jnp.moveaxis(x, 1, 0).reshape(length, -1, *x.shape[3:])


def compare_segments(
    factors: Array, done: Array, margins: Array, order: Array
) -> tuple[Array, Array]:
    """Pair segments at random and compare them.

    factors: [L, n, F], the most important first. done: [L, n], where an episode ended.
    margins: [F], in standard deviations of the segments' sums. order: a permutation of the n.
    Returns: numbers of the segments, int32 [n], those of a pair next to each other and the
        preferred one first; and which pairs count, bool [n / 2]: those that a factor decides and
        whose segments lie within one episode each.
    """
    total = factors.sum(0)
    whole = ~done[:-1].any(0)
    first, second = order[::2], order[1::2]
    label = losses.hierarchical_preference(total[first], total[second], margins * total.std(0))
    chosen = jnp.where(label >= 0.5, first, second)
    rejected = jnp.where(label >= 0.5, second, first)
    known = (label != 0.5) & whole[first] & whole[second]
    return jnp.stack([chosen, rejected], -1).reshape(-1), known


def recipe(env: Environment, config: Config) -> Recipe:
    h = config.reward
    names = factors_of(env)
    ranking = [names[i] for i in h.order] or list(names)
    margins = jnp.broadcast_to(jnp.asarray(h.margins), (len(ranking),))

    @loss("reward", unit=PAIR)
    def reward_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return the Bradley-Terry loss of each pair."""
        total = predict_rewards(net.reward, h.reads, x.x).sum(0)
        chosen, rejected = total[::2], total[1::2]
        value = losses.bradley_terry(chosen, rejected)
        return LossOutput(value, {"accuracy": accuracy(chosen, rejected)})

    def before(net: Net, batch: Batch) -> tuple[Net, Batch, None]:
        t = batch.transitions
        segments = jax.tree.map(lambda x: cut_segments(x, h.length), t)
        count = segments.reward.shape[1]
        order = jax.random.permutation(net.key("pairs"), count)
        factors = ranked_factors(segments, ranking)
        columns, known = compare_segments(factors, segments.done, margins, order)
        read = dataclasses.replace(segments, task=(), extras={})
        pairs = jax.tree.map(lambda x: x[:, columns], read)
        mask = jnp.broadcast_to(jnp.repeat(known, 2), (h.length, count))
        step = lambda net, some: net.descend(reward_loss, some)
        net = net.epochs(h.passes, Minibatch(pairs, mask), step, unit=PAIR)
        paid = predict_rewards(net.reward, h.reads, t)
        return *pay(net.report(decided=known.mean()), batch, paid), None

    network, inputs = model_of(env, h)
    return around(
        of_ppo.recipe(env, config),
        parts={"reward": Part(network, inputs, h.optimizer)},
        losses=(reward_loss,),
        before=before,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as PPO, for a reward without components, for a ranking or margins that do
    not fit them, and for windows that do not divide into segments and pairs."""
    of_ppo.check(env, config, name)
    h, names, windows = config.reward, factors_of(env), config.rollouts
    if not names:
        raise UserError(
            f"The reward of '{env.name}' has no components, which {name} ranks (see "
            "jaxrl.envs.wrappers.reward_components)."
        )
    if len(set(h.order)) != len(h.order) or any(i >= len(names) for i in h.order):
        raise UserError(
            f"reward.order is {list(h.order)}; it must name different places of the "
            f"{len(names)} components {', '.join(names)}, from 0 on."
        )
    count = len(h.order) or len(names)
    if len(h.margins) not in (1, count):
        raise UserError(
            f"reward.margins has {len(h.margins)} entries; it must have 1, or 1 for each of the "
            f"{count} ranked factors."
        )
    if windows.num_steps % h.length:
        raise UserError(
            f"Windows of {windows.num_steps} steps do not divide into segments of "
            f"reward.length={h.length}."
        )
    segments = windows.num_envs * windows.num_steps // h.length
    h.passes.check(segments, h.length, windows.num_shards, PAIR)


heron = AlgorithmBuilder("heron", Config, recipe, check=check)

TINY = {
    "env": "fruit_collection", "num_envs": 8, "num_steps": 4, "num_shards": 4,
    "passes.epochs": 2, "passes.minibatches": 2, "torso.hidden": (8,), "recurrent": 4,
    "reward.order": (3, 1, 4), "reward.margins": (0.5, 0.0, 0.0), "reward.length": 2,
    "reward.passes.minibatches": 2, "reward.torso.hidden": (8,),
}  # fmt: skip
