"""Pass@k training (Chen et al., 2025, arXiv:2508.10751): GRPO for the chance that one of k answers
is right. The advantage of an answer is the mean over all groups of k that it could be in. From DAPO
it has the mean over all tokens and the higher clip (section 2.1)."""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import recipe as tokens
from jaxrl.algorithms.tokens.shared.recipe import by_groups, clipped_higher, penalized
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, ClippedHigher, Penalty
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static
from jaxrl.kit.groups import Optimizer


@group
class Config(ClippedHigher):
    """Settings of pass@k training."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0, weight_decay=0.1)
    """1e-6: appendix A.2; AdamW: DAPO (section 4.1), decay and bound those of its published runs.
    Without the warm-up of 10 steps."""
    k: int = static(4, low=1)
    """Of pass@k; at most `groups.answers`."""
    kl: Penalty = Penalty()


def recipe(env: Environment, config: Config) -> Recipe:
    judge = lambda returns: losses.pass_at_k_advantage(returns > 0, config.k)
    return by_groups(judge, penalized(clipped_higher))(env, config)


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` as the others do, and for a k beyond the group's size."""
    tokens.check(env, config, name)
    answers = config.groups.answers
    if config.k > answers:
        raise UserError(f"k is {config.k}; it must be at most groups.answers={answers}.")


pass_at_k = AlgorithmBuilder("pass_at_k", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"k": 2}
