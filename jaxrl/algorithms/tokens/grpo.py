"""GRPO (Shao et al., 2024, "DeepSeekMath", arXiv:2402.03300): answers are judged by their group, in
standard deviations; tokens learn PPO's clipped surrogate and a penalty for leaving a reference
policy, in means over the tokens of each answer (equation 3)."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.recipe import by_groups, check, clipped, penalized
from jaxrl.algorithms.tokens.shared.settings import AVERAGES, SMALL_GROUPS, Clipped, Penalty
from jaxrl.kit import AlgorithmBuilder, group, static
from jaxrl.kit.groups import Optimizer


@group
class Config(Clipped):
    """Settings of GRPO."""

    optimizer: Optimizer = Optimizer(
        learning_rate=1e-6, max_grad_norm=1.0, beta2=0.95, weight_decay=0.1
    )
    """1e-6: section 4.2. AdamW, its betas and decay: section 2.2.1, on the pretraining; the paper
    describes no other."""
    kl: Penalty = Penalty()
    average: str = static("sequence", choices=AVERAGES)
    """What counts alike: every sequence, every token (DAPO), or a constant for every token (Dr.
    GRPO): sequence, token or constant."""


grpo = AlgorithmBuilder(
    "grpo", Config, by_groups(losses.group_relative, penalized(clipped)), check=check
)

TINY = SMALL_GROUPS | {"early_stop": True}
