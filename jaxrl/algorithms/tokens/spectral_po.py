"""Spectral Policy Optimization (Chen et al., 2025, "Spectral Policy Optimization: Coloring your
Incorrect Reasoning in GRPO", arXiv:2505.11595): GRPO in which groups of wrong answers alone are
graded by how far they are correct, so that their advantages are not all 0.

    r = the reward in groups with a right answer, else the partial correctness of each answer
    A = (r - mean(r)) / std(r) in its group

The paper's judge is a language model that reads an answer's steps. Here it is the environment's
checker of steps, `TimeStep.metrics["partial"]`: in countdown, the share of the last attempt's steps
that are right before the first that is not. The abstract is what was read of the paper: its prompts
of the judge and the scale of its grades are not reproduced; a scale has no effect on standardized
advantages.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens import grpo
from jaxrl.algorithms.tokens.grpo import grpo_loss
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import on_answers, returns_of
from jaxrl.algorithms.tokens.shared.outcomes import check_metrics, metric_at_end
from jaxrl.algorithms.tokens.shared.settings import SMALL
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group


@group
class Config(grpo.Config):
    """Settings of GRPO with grades for groups of wrong answers (arXiv:2505.11595)."""


def graded_returns(returns: Array, right: Array, partial: Array) -> Array:
    """Return `partial` [P, G], the partial correctness of answers, in groups without a right one
    (`right`, bool [P, G]), and `returns` [P, G] in the others."""
    return jnp.where(right.any(-1, keepdims=True), returns, partial)


def recipe(env: Environment, config: Config) -> Recipe:
    size = config.groups.answers
    answers.check_groups(size)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        found = returns_of(batch), metric_at_end(batch, "success"), metric_at_end(batch, "partial")
        returns, success, partial = (x.reshape(-1, size) for x in found)
        each = losses.group_relative(graded_returns(returns, success > 0, partial)).reshape(-1)
        return {"advantage": jnp.broadcast_to(each, batch.transitions.reward.shape)}

    return on_answers(env, config, judge, (grpo_loss,))


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, and if `env` does not say which answers are right, and
    how far the others are."""
    answers.check(env, config, name)
    check_metrics(env, name, "success", "partial")


spectral_po = AlgorithmBuilder("spectral_po", Config, recipe, check=check)

TINY = SMALL | {"prompts": 4, "answers": 2, "num_shards": 4, "early_stop": True}
TINY |= {"env": "countdown", "env_params": {"numbers": 2, "attempts": 1}}
