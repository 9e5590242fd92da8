"""CoPG, contrastive policy gradient (Flet-Berliac et al., 2024, "Contrastive policy gradient:
aligning LLMs on sequence-level scores in a supervised-friendly fashion", arXiv:2406.19185): a
policy gradient for rewards of pairs of answers that any policy may have written, without importance
weights, since the baseline of each answer is the reward of the other. Its only fixed point is the
optimum of reward less divergence from the reference. Rewards are the environment's, and no answers
are compared.

The pairs are a dataset written by the policy that training begins with, which is the reference.
"""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.measures import measure_optimum
from jaxrl.algorithms.preferences.shared.pairs import Answers, check, loss_of_pairs, on_pairs
from jaxrl.algorithms.preferences.shared.settings import (
    SMALL_PAIRS,
    ReferencePolicy,
    UnlabeledPairs,
)
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group


@group
class Config(ReferencePolicy):
    """Settings of CoPG: policy gradients of rewarded pairs from any policy (arXiv:2406.19185)."""

    pairs: UnlabeledPairs = UnlabeledPairs()


def pair_loss(net: Net, first: Answers, second: Answers) -> Array:
    """Return the loss whose gradient is CoPG's, of each pair."""
    return losses.copg(
        first.log_prob,
        second.log_prob,
        first.reference,
        second.reference,
        first.reward,
        second.reward,
        net.hyper.beta,
    )


def recipe(env: Environment, config: Any) -> Recipe:
    own = {"rewards": True, "scores": ("kl_to_optimum",)}
    return on_pairs(env, config, loss_of_pairs(pair_loss), **own)


copg = AlgorithmBuilder("copg", Config, recipe, check=check, measure=measure_optimum)

TINY = SMALL_PAIRS
