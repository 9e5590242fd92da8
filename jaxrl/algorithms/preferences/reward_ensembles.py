"""Reward model ensembles (Coste et al., 2024, "Reward model ensembles help mitigate
overoptimization", arXiv:2310.02743): PPO on the scores of several reward models, which were trained
on the same pairs from other first weights. An answer is worth the mean of its scores, the smallest
(worst-case optimization, WCO), or the mean less their variance (uncertainty-weighted optimization,
UWO), so that the policy gains nothing where the members disagree.

Warm-start it from a run of `reward_model` with as many members. The members see pairs in one order;
the paper's have an order of their own too. The paper's other optimizer is
`exact.answers.best_of_n`.
"""

from __future__ import annotations

from jaxrl.algorithms.preferences.shared.reward_models import Judges, on_scores
from jaxrl.algorithms.preferences.shared.settings import SMALL_JUDGED
from jaxrl.algorithms.tokens.shared.settings import Divergence
from jaxrl.algorithms.tokens.token_ppo import Config as PPOConfig
from jaxrl.algorithms.tokens.token_ppo import token_ppo
from jaxrl.kit import group, hyper
from jaxrl.kit.groups import Optimizer, Passes


@group
class Config(PPOConfig):
    """Settings of reward model ensembles: PPO on conservative scores (arXiv:2310.02743)."""

    optimizer: Optimizer = Optimizer(
        learning_rate=1e-6, max_grad_norm=1.0, beta2=0.95, weight_decay=1e-6
    )
    """Optimizer settings: those of the authors' code, without its cosine schedule. (Small networks
    need larger steps.)"""
    passes: Passes = Passes(epochs=4, minibatches=1, chunk_rows=0)
    kl: Divergence = Divergence(weight=0.01)
    """Penalty on the KL divergence from the reference policy. 0.01 is the paper's small one, with
    which conservative scores are not over-optimized."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    reward: Judges = Judges(members=5, combine="worst")


reward_ensembles = on_scores("reward_ensembles", token_ppo, Config)

TINY = SMALL_JUDGED | {"combine": "uncertainty"}
