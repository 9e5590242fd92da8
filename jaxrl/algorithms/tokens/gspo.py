"""GSPO (Zheng et al., 2025, "Group sequence policy optimization", arXiv:2507.18071): GRPO with one
probability ratio for a whole answer, the geometric mean of its tokens', and so one clip.

By default an update is one gradient step, in which no ratio is clipped; the paper's are 4 steps on
minibatches (`passes.minibatches`)."""

from __future__ import annotations

from typing import Protocol

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    answer_output,
    check,
    evaluate,
    judge_by_groups,
    on_answers,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, ClippedHigher
from jaxrl.core.types import Array, Environment
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
    """Settings of GSPO: a clipped surrogate of whole answers (arXiv:2507.18071, equation 5)."""

    clip: float = hyper(3e-4, above=0, high=INF)
    """Lower clip range of an answer's ratio. 3e-4: section 5.1."""
    clip_high: float = hyper(4e-4, above=0, high=INF)
    """Upper clip range of an answer's ratio. 4e-4: section 5.1."""


class AnswerLoss(Protocol):
    """Function that computes the loss of whole answers."""

    def __call__(
        self,
        log_prob: Array,
        old_log_prob: Array,
        advantage: Array,
        clip_low: Array,
        clip_high: Array,
        mask: Array,
        /,
    ) -> Array:
        """Return the loss of each answer, [B].

        log_prob, old_log_prob: [T, B]. advantage: [B]. clip_low, clip_high: scalars.
        mask: [T, B], which tokens count.
        """
        ...


def recipe(env: Environment, config: Config, answer_loss: AnswerLoss = losses.gspo) -> Recipe:
    """Return the recipe. answer_loss: of whole answers; GMPO's is another."""

    @loss("actor_critic", name="loss", unit=SEQUENCE)
    def whole_answer_loss(net: Net, x: Minibatch) -> LossOutput:
        """Compute the loss of each answer (GSPO: equation 5)."""
        sample, h = x.x, net.hyper
        now, advantage = evaluate(net, sample), sample.advantage[0]  # the same for all tokens
        assert x.mask is not None
        value = answer_loss(now.log_prob, sample.log_prob, advantage, h.clip, h.clip_high, x.mask)
        return answer_output(net, x, now, value)

    judge = judge_by_groups(losses.group_relative, config.groups.answers)
    return on_answers(env, config, judge, (whole_answer_loss,))


gspo = AlgorithmBuilder("gspo", Config, recipe, check=check)

TINY = SMALL_GROUPS
