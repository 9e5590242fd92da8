"""GRPO that knows how hard its prompts are (Chen et al., 2025, "Unlocking the potential of
difficulty prior in RL-based multimodal reasoning", arXiv:2505.13261). A survey by the policy that
is not trained yet asks each prompt of a fixed set; the share of right answers in its group is the
prompt's difficulty from then on. Prompts that are too easy or too hard are not asked again, and in
a second stage only the harder ones of the others are. While learning, the advantages of a group are
multiplied by a weight that falls with its own share of right answers.

An answer is right if its return is above 0. Which function the weight is could not be confirmed:
here it is GRPO-LEAD's logistic one, of advantages that are divided by their deviation. By its
reviewers a later version has a steep exponential in place of that division, and asks prompts with
0.084 to 0.87 of right answers. Left out: the sentence that tells the model in the second stage
that a prompt is hard, which only a model that reads such sentences could follow."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens import grpo
from jaxrl.algorithms.tokens.shared.answers import check, check_groups, on_answers, returns_of
from jaxrl.algorithms.tokens.shared.prompts import feed_success
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Groups
from jaxrl.core import trees
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.tasks import by_window, prompts


@group
class CuratedSet:
    """Set of prompts that is drawn when a run begins, and which of them are asked."""

    of_a_source: ClassVar[bool] = True

    count: int = static(1024, low=1, high=MANY)
    """Number of prompts in the set."""
    rate: float = hyper(0.0, low=0, high=1)
    """Share of the newest group of answers in a prompt's rate of success. 0: the rate is that of
    the first group, as in the paper."""
    low: float = hyper(0.0, low=0, high=1)
    """Rate of success above which a prompt is not too hard to be asked."""
    high: float = hyper(0.99, low=0, high=1)
    """Highest rate of success at which a prompt is not too easy to be asked."""
    hard: float = hyper(0.5, low=0, high=1)
    """Highest rate of success of the prompts that are asked in the second stage."""
    later: float = hyper(1e9, low=0)
    """Number of episodes after which the second stage begins."""


@group
class Curated(Groups):
    """Groups of answers to prompts of a fixed set, of which those in between are asked."""

    pool: CuratedSet = CuratedSet()

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes, with those of a group adjacent."""
        pool = self.pool
        draw = by_window(pool.low, pool.high, pool.hard, pool.later)
        chosen = prompts(env.params, Start, pool.count, draw, pool.rate, "groups.pool.")
        return self.episodes(env, prompts=chosen)


@group
class Weight:
    """Weight of a group's advantages: low + (high - low) / (1 + exp(slope (p - middle))), where p
    is the share of right answers. The defaults are GRPO-LEAD's."""

    low: float = hyper(0.4, low=0)
    """Weight of ever easier prompts."""
    high: float = hyper(1.5, low=0)
    """Weight of ever harder prompts."""
    middle: float = hyper(0.75, low=0, high=1)
    """Share of right answers with a weight halfway between."""
    slope: float = hyper(10.0, low=0)
    """Steepness of the fall."""


@group
class Config(grpo.Config):
    """Settings of GRPO with a difficulty prior: prompts in between, and a weight of each group
    (arXiv:2505.13261)."""

    groups: Curated = Curated()
    weight: Weight = Weight()
    survey: float = hyper(64.0, low=0)
    """Number of updates that learn nothing, so that prompts are asked by the first policy. Prompts
    which they leave out are asked first thereafter."""


def weighted_advantage(net: Net, batch: Batch, answers: int) -> Array:
    """Return the advantage of each step [T, B]: that of its answer, times its group's weight."""
    w, returns = net.hyper.weight, returns_of(batch).reshape(-1, answers)
    weight = losses.difficulty_weights(returns > 0, None, w.low, w.high, w.middle, w.slope)
    each = (weight * losses.group_relative(returns)).reshape(-1)
    return jnp.broadcast_to(each, batch.transitions.reward.shape)


def recipe(env: Environment, config: Config) -> Recipe:
    answers = config.groups.answers
    check_groups(answers)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        return {"advantage": weighted_advantage(net, batch, answers)}

    plain = on_answers(env, config, judge, (grpo.grpo_loss,))

    def update(net: Net, batch: Batch) -> Net:
        new, returns = plain.update(net, batch), returns_of(batch)
        surveys = net.updates < net.hyper.survey
        learned = new.replace(parts=trees.where(surveys, net.parts, new.parts))
        informative = losses.informative_groups(returns.reshape(-1, answers)).mean()
        return feed_success(learned.report(informative=informative), batch, returns > 0)

    return dataclasses.replace(plain, update=update)


difficulty_prior = AlgorithmBuilder("difficulty_prior", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"prompts": 4, "count": 8, "survey": 1.0, "later": 16.0}
