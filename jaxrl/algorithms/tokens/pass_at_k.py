"""Pass@k training (Chen et al., 2025, arXiv:2508.10751): GRPO for the probability that at least one
of k answers is right. The advantage of an answer is its mean over all groups of k that it could be
in. The mean over all tokens and the higher clip are DAPO's (section 2.1)."""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    divergence,
    evaluate,
    judge_by_groups,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, ClippedHigher, Penalty
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss, static
from jaxrl.kit.groups import Optimizer


@group
class Config(ClippedHigher):
    """Settings of pass@k training: GRPO for the probability that one of k answers is right
    (arXiv:2508.10751)."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0, weight_decay=0.1)
    """Optimizer settings. 1e-6: appendix A.2. AdamW: DAPO, section 4.1; weight decay and gradient
    norm are those of its published runs. There is no warm-up (10 steps in the paper)."""
    k: int = static(4, low=1)
    """Number of answers k of pass@k; at most `groups.answers`."""
    kl: Penalty = Penalty()


def recipe(env: Environment, config: Config) -> Recipe:
    @loss("actor_critic", name="loss")
    def token_loss(net: Net, x: Sample) -> LossOutput:
        """Compute DAPO's surrogate plus the divergence penalty."""
        now, h = evaluate(net, x), net.hyper
        penalty = divergence(config.kl.estimate, now, x)
        surrogate = losses.clipped_surrogate(
            now.log_prob, x.log_prob, x.advantage, h.clip, h.clip_high
        )
        return token_output(net, x, now, surrogate + h.kl.weight * penalty)

    advantage = lambda returns: losses.pass_at_k_advantage(returns > 0, config.k)
    return on_answers(env, config, judge_by_groups(advantage, config.groups.answers), (token_loss,))


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, and for a k above the group's size."""
    answers.check(env, config, name)
    size = config.groups.answers
    if config.k > size:
        raise UserError(f"k is {config.k}; it must be at most groups.answers={size}.")


pass_at_k = AlgorithmBuilder("pass_at_k", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"k": 2}
