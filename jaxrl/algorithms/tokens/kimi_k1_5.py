"""Kimi k1.5's policy optimization (Kimi team, 2025, "Kimi k1.5: scaling reinforcement learning with
LLMs", arXiv:2501.12599, section 2.3): online mirror descent by regression. Each iteration writes
groups of answers by the policy that it begins with, pi_i, and descends

    (r - mean(r) - tau log(pi / pi_i))^2 / (2 tau)

of whole answers, whose gradient is that of equation 3; the mean of the group's rewards stands for
tau log Z. As every iteration is another problem, each begins with a new optimizer. Short answers
earn more and long ones less (2.3.3), and prompts are asked in proportion to 1 - s, where s is their
rate of success (2.3.4); a share of them is drawn evenly here, so that none is forgotten.

An answer is right if its return is above 0. Prompts are of one fixed set, which is drawn when a run
begins. Left out: the curriculum by labels of difficulty, partial rollouts (whole episodes cost the
same however early they end), and what follows (long2short)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    answer_output,
    evaluate,
    on_answers,
    returns_of,
)
from jaxrl.algorithms.tokens.shared.prompts import PromptSet, feed_success
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Grouped, Groups
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    Unit,
    group,
    hyper,
    loss,
)
from jaxrl.kit.groups import Passes


@group
class Prioritized(Groups):
    """Groups of answers to prompts of a fixed set, of which those that fail are asked more."""

    pool: PromptSet = PromptSet()

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes, with those of a group adjacent."""
        return self.episodes(env, prompts=self.pool.tasks(env, "groups.pool"))


@group
class LengthReward:
    """Reward of short answers, compared with the longest and the shortest one of the group."""

    weight: float = hyper(0.0, low=0)
    """Weight of the length reward."""
    begin: float = hyper(0.0, low=0)
    """Environment steps before which length is not rewarded."""


@group
class Config(Grouped):
    """Settings of Kimi k1.5's policy optimization: mirror descent by regression on groups
    (arXiv:2501.12599, section 2.3). Defaults are not the paper's, which names none."""

    groups: Prioritized = Prioritized()
    passes: Passes = Passes(epochs=1, minibatches=4, chunk_rows=0)
    temperature: float = hyper(0.1, above=0)
    """Cost of leaving the policy that an iteration begins with, in rewards (tau)."""
    length: LengthReward = LengthReward()


def shaped_reward(net: Net, batch: Batch, size: int) -> Array:
    """Return the reward of each answer, [P, G], with the length reward.

    batch: whole episodes; its mask marks the steps that are decisions.
    """
    assert batch.mask is not None
    returns = batch.transitions.reward.sum(0).reshape(-1, size)
    length = batch.mask.sum(0).reshape(-1, size)
    own = net.hyper.length
    weight = jnp.where(net.env_steps < own.begin, 0, own.weight)
    return returns + weight * losses.length_penalty(returns > 0, length)


def recipe(env: Environment, config: Config) -> Recipe:
    size = config.groups.answers
    answers.check_groups(size)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        each = shaped_reward(net, batch, size).reshape(-1)
        return {"target": jnp.broadcast_to(each, batch.transitions.reward.shape)}

    @loss("actor_critic", name="loss", unit=Unit(sequences=True, columns=size))
    def regression_loss(net: Net, x: Minibatch) -> LossOutput:
        """Compute the mean loss of a group's answers."""
        sample: Sample = x.x
        now, tau = evaluate(net, sample), net.hyper.temperature
        by_group = lambda y: y.reshape(-1, size)
        mean = lambda y: by_group(y).mean(-1)
        total = lambda y: by_group(losses.sequence_log_prob(y, x.mask))
        error = losses.mirror_descent_regression(
            total(now.log_prob), total(sample.log_prob), by_group(sample.target[0]), tau
        )
        each = answer_output(net, x, now, error.reshape(-1) / (2 * tau))
        metrics = jax.tree.map(mean, each.metrics)
        return LossOutput(mean(each.value), metrics, drift=metrics["approximate_kl"])

    plain = on_answers(env, config, judge, (regression_loss,))

    def update(net: Net, batch: Batch) -> Net:
        begun = net.restart(actor_critic=net.parts["actor_critic"].params)
        return feed_success(plain.update(begun, batch), batch, returns_of(batch) > 0)

    return dataclasses.replace(plain, update=update)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, for minibatches of whole groups."""
    answers.check(env, config, name, Unit(sequences=True, columns=config.groups.answers))


kimi_k1_5 = AlgorithmBuilder("kimi_k1_5", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"prompts": 8, "count": 16, "length.weight": 0.5, "length.begin": 30.0}
