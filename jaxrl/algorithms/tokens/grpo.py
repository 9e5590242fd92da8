"""GRPO (Shao et al., 2024, "DeepSeekMath", arXiv:2402.03300): answers are judged against their
group, in standard deviations; the loss of a token is PPO's clipped surrogate plus a penalty on the
KL divergence from a reference policy, averaged over the tokens of each answer (equation 3)."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Advantage,
    Sample,
    check,
    evaluate,
    judge_by_groups,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.settings import AVERAGES, SMALL_GROUPS, Clipped, Divergence
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss, static
from jaxrl.kit.groups import Optimizer


@group
class Config(Clipped):
    """Settings of GRPO: PPO's clipped surrogate with returns standardized in groups of answers
    (arXiv:2402.03300, equation 3)."""

    optimizer: Optimizer = Optimizer(
        learning_rate=1e-6, max_grad_norm=1.0, beta2=0.95, weight_decay=0.1
    )
    """Optimizer settings. 1e-6: section 4.2. AdamW, its betas and decay: section 2.2.1, on
    pretraining; the paper describes no other."""
    kl: Divergence = Divergence()
    """Penalty on the KL divergence from the reference policy, none by default. 0.04 in the paper
    (section 4.2)."""
    average: str = static("sequence", choices=AVERAGES)
    """Averaging of token losses: sequence (equal weight per sequence), token (per token, DAPO) or
    constant (a constant weight for every token, Dr. GRPO)."""


@loss("actor_critic", name="loss")
def grpo_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the clipped surrogate plus the divergence penalty (equation 3)."""
    now, h = evaluate(net, x), net.hyper
    token_loss = losses.grpo(
        now.log_prob, x.log_prob, x.reference, x.advantage, h.clip, h.kl.weight
    )
    return token_output(net, x, now, token_loss)


def recipe(
    env: Environment, config: Config, advantage: Advantage = losses.group_relative
) -> Recipe:
    """advantage: of an answer, by the returns of its group; Dr. GRPO's is another."""
    return on_answers(env, config, judge_by_groups(advantage, config.groups.answers), (grpo_loss,))


grpo = AlgorithmBuilder("grpo", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"early_stop": True}
