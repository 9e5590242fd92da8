"""GMPO (Zhao et al., 2025, "Geometric-mean policy optimization", arXiv:2507.20673): GRPO with the
geometric mean of an answer's token ratios, each clipped in logarithms, in the place of the mean of
their clipped surrogates."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    answer_output,
    check,
    evaluate,
    judge_by_groups,
    on_answers,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, ClippedHigher
from jaxrl.core.types import Environment
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
)
from jaxrl.kit.groups import INF


@group
class Config(ClippedHigher):
    """Settings of GMPO: geometric means of clipped token ratios (arXiv:2507.20673)."""

    clip: float = hyper(0.4, above=0, high=INF)
    """Lower clip range of a token's log-ratio; the ratio is at least exp(-0.4)."""
    clip_high: float = hyper(0.4, above=0, high=INF)
    """Upper clip range of a token's log-ratio."""


@loss("actor_critic", name="loss", unit=SEQUENCE)
def gmpo_loss(net: Net, x: Minibatch) -> LossOutput:
    """Compute the geometric mean of the clipped ratios times the advantage of each answer."""
    sample, h = x.x, net.hyper
    now, advantage = evaluate(net, sample), sample.advantage[0]  # the same for all tokens
    answer_loss = losses.gmpo(now.log_prob, sample.log_prob, advantage, h.clip, h.clip_high, x.mask)
    return answer_output(net, x, now, answer_loss)


def recipe(env: Environment, config: Config) -> Recipe:
    judge = judge_by_groups(losses.group_relative, config.groups.answers)
    return on_answers(env, config, judge, (gmpo_loss,))


gmpo = AlgorithmBuilder("gmpo", Config, recipe, check=check)

TINY = SMALL_GROUPS
