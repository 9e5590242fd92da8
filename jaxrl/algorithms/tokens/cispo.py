"""CISPO (MiniMax, 2025, "MiniMax-M1", arXiv:2506.13585, section 3.1): the policy gradient of every
token, weighted by its clipped probability ratio, where PPO's clip drops the gradient of tokens
beyond it. Advantages are GRPO's; the mean is over all tokens."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check,
    evaluate,
    judge_by_groups,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, ClippedHigher
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss
from jaxrl.kit.groups import INF


@group
class Config(ClippedHigher):
    """Settings of CISPO: policy gradients weighted by clipped ratios (arXiv:2506.13585, section
    3.1)."""

    clip: float = hyper(1.0, above=0, high=INF)
    """Lower clip range of the ratio; 1 for none, as in the paper."""
    clip_high: float = hyper(0.28, above=0, high=INF)
    """Upper clip range of the ratio. The paper tunes it and does not say its value; this is
    DAPO's."""


@loss("actor_critic", name="loss")
def cispo_loss(net: Net, x: Sample) -> LossOutput:
    """Compute -stop(clip(r)) A log p of each token."""
    now, h = evaluate(net, x), net.hyper
    token_loss = losses.cispo(now.log_prob, x.log_prob, x.advantage, h.clip, h.clip_high)
    return token_output(net, x, now, token_loss)


def recipe(env: Environment, config: Config) -> Recipe:
    judge = judge_by_groups(losses.group_relative, config.groups.answers)
    return on_answers(env, config, judge, (cispo_loss,))


cispo = AlgorithmBuilder("cispo", Config, recipe, check=check)

TINY = SMALL_GROUPS
