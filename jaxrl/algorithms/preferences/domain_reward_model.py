"""Reward model with domain knowledge (Nath et al., 2024, "Leveraging domain knowledge for efficient
reward modeling in RLHF: a case-study in e-commerce opinion summarization", arXiv:2402.15473): it
reads a few features of an answer that experts of the domain name, instead of the text, so that a
feed-forward network learns a score from few labeled pairs, by the Bradley-Terry loss.

The features are the components of the environment's reward, whose weights it does not know. It is
`reward_model` with another input; policies learn from its scores as from that one's, by `on_scores`
with `reward.reads` features.
"""

from __future__ import annotations

from jaxrl.algorithms.preferences import reward_model as of_reward_model
from jaxrl.algorithms.preferences.reward_model import reward_model
from jaxrl.algorithms.preferences.shared.reward_models import RewardModel
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, LabeledPairs
from jaxrl.kit import group


@group
class Config(of_reward_model.Config):
    """Settings of a reward model that reads features of answers (arXiv:2402.15473)."""

    pairs: LabeledPairs = LabeledPairs(count=940)
    """Dataset of pairs. 940: the paper's."""
    reward: RewardModel = RewardModel(reads="features")


domain_reward_model = reward_model.variant("domain_reward_model", Config=Config)

TINY = SMALL_PAIRS | {"env": "ruled_words", "members": 2, "feature_hidden": (4,)}
