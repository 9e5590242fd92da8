"""DAPO (Yu et al., 2025, "DAPO: an open-source LLM reinforcement learning system at scale",
arXiv:2503.14476): GRPO with a higher upper clip (section 3.1), groups sampled until all have
different rewards (dynamic sampling, 3.2), a mean over all tokens (3.3) and a penalty on answers
that come near the longest (3.4); no divergence.

By default an update is one gradient step, in which no ratio is clipped; the paper's are 16 steps on
minibatches (`passes.minibatches`)."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Judge,
    Sample,
    check,
    check_groups,
    evaluate,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.informative import informative_source, wait_for_informative
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, ClippedHigher
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer


@group
class Overlong:
    """Soft penalty on long answers (section 3.4)."""

    limit: int = static(0, low=0, high=MANY)
    """Longest answer, in tokens; 0 leaves the penalty out, as where right answers may need all
    tokens. (20,480 in the paper.)"""
    margin: float = hyper(1.0, above=0)
    """Number of tokens before the limit over which the penalty falls from 0 to -1. (4,096.)"""


@group
class Config(ClippedHigher):
    """Settings of DAPO: GRPO with clip-higher, dynamic sampling, a mean over tokens and a penalty
    on overlong answers (arXiv:2503.14476)."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0, weight_decay=0.1)
    """Optimizer settings. AdamW, 1e-6: section 4.1, without its warm-up of 20 steps; weight decay
    and gradient norm are those of the published runs."""
    informative: float = hyper(1.0, low=0, high=1)
    """Fraction of an update's groups that must contain different rewards; with fewer, the update
    waits for more. 1: section 3.2."""
    overlong: Overlong = Overlong()


@loss("actor_critic", name="loss")
def dapo_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the surrogate with a higher upper clip of each token (equation 8)."""
    now, h = evaluate(net, x), net.hyper
    token_loss = losses.clipped_surrogate(
        now.log_prob, x.log_prob, x.advantage, h.clip, h.clip_high
    )
    return token_output(net, x, now, token_loss)


def judge_long_answers(answers: int, limit: int) -> Judge:
    """Return a function that standardizes returns in groups, less the penalty on long answers."""
    check_groups(answers)

    def judge(net, batch):
        reward = batch.transitions.reward
        returns = reward.sum(0)
        if limit:
            length = batch.mask.sum(0)
            returns += losses.overlong_penalty(length, limit, net.hyper.overlong.margin)
        each = losses.group_relative(returns.reshape(-1, answers)).reshape(-1)
        return {"advantage": jnp.broadcast_to(each, reward.shape)}

    return judge


def recipe(env: Environment, config: Config) -> Recipe:
    answers = config.groups.answers
    judge = judge_long_answers(answers, config.overlong.limit)
    return wait_for_informative(on_answers(env, config, judge, (dapo_loss,)), answers)


dapo = AlgorithmBuilder("dapo", Config, recipe, informative_source, check=check)

TINY = SMALL_GROUPS | {"overlong.limit": 3, "informative": 0.5}
