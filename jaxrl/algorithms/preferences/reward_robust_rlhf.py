"""Reward-robust RLHF (Yan et al., 2024, "Reward-robust RLHF in LLMs", arXiv:2409.15360): PPO on a
trade-off between performance and robustness, a share of the nominal score of an answer and the rest
of the smallest score within an uncertainty set of reward models.

The uncertainty set here are several reward models with first weights of their own, and the nominal
score is their mean. The paper's are heads of one network that predict a mean and a deviation each
(Bayesian reward model ensembles). Warm-start it from a run of `reward_model` with as many members.
"""

from __future__ import annotations

from jaxrl.algorithms.preferences.shared.reward_models import Judges, on_scores
from jaxrl.algorithms.preferences.shared.settings import SMALL_JUDGED
from jaxrl.algorithms.tokens.token_ppo import Config as PPOConfig
from jaxrl.algorithms.tokens.token_ppo import token_ppo
from jaxrl.kit import group


@group
class Config(PPOConfig):
    """Settings of reward-robust RLHF: PPO on a share of the nominal and the rest of the smallest
    score (arXiv:2409.15360)."""

    reward: Judges = Judges(members=5, combine="robust")


reward_robust_rlhf = on_scores("reward_robust_rlhf", token_ppo, Config)

TINY = SMALL_JUDGED
