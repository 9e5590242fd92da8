"""GSPO-token (Zheng et al., 2025, "Group sequence policy optimization", arXiv:2507.18071, section
4.3): GSPO's ratio and clip of whole answers, with the gradient through each token's own
probability, so that tokens may have advantages of their own. With one advantage for an answer, as
here, its gradient is GSPO's."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens import gspo
from jaxrl.algorithms.tokens.shared.answers import (
    answer_output,
    evaluate,
    judge_by_groups,
    on_answers,
)
from jaxrl.core.types import Environment
from jaxrl.kit import SEQUENCE, LossOutput, Minibatch, Net, Recipe, loss


@loss("actor_critic", name="loss", unit=SEQUENCE)
def gspo_token_loss(net: Net, x: Minibatch) -> LossOutput:
    """Compute the mean surrogate of each answer's tokens (equation 13)."""
    sample, h = x.x, net.hyper
    now = evaluate(net, sample)
    token_loss = losses.gspo_token(
        now.log_prob, sample.log_prob, sample.advantage, h.clip, h.clip_high, x.mask
    )
    answer_loss = losses.sequence_log_prob(token_loss, x.mask, normalize=True)
    return answer_output(net, x, now, answer_loss)


def recipe(env: Environment, config: gspo.Config) -> Recipe:
    judge = judge_by_groups(losses.group_relative, config.groups.answers)
    return on_answers(env, config, judge, (gspo_token_loss,))


gspo_token = gspo.gspo.variant("gspo_token", recipe=recipe)

TINY = gspo.TINY
