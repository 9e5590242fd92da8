"""Contrastive preference optimization (CPO; Xu et al., 2024, "Contrastive preference optimization:
pushing the boundaries of LLM performance in machine translation", arXiv:2401.08417): DPO with a
uniform reference, and cloning of the chosen answer (equation 3). Not constrained policy
optimization, which has the same initials."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.measures import measure_return
from jaxrl.algorithms.preferences.shared.pairs import Answers, check, loss_of_pairs, on_pairs
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, PairPolicy
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper


@group
class Config(PairPolicy):
    """Settings of contrastive preference optimization: DPO with a uniform reference, and cloning
    (arXiv:2401.08417, equation 3)."""

    beta: float = hyper(0.1, above=0)
    """Scale of log-probabilities."""
    cloning_weight: float = hyper(1.0, low=0)
    """Weight of cloning the chosen answer, by its mean log-probability per token as in its authors'
    code."""


def pair_loss(net: Net, chosen: Answers, rejected: Answers) -> Array:
    """Return the preference term and the cloning of each pair."""
    preference = losses.cpo(chosen.log_prob, rejected.log_prob, net.hyper.beta)
    likelihood = chosen.per_token.log_prob
    return preference + net.hyper.cloning_weight * losses.behavior_cloning(likelihood)


def recipe(env: Environment, config: Config) -> Recipe:
    return on_pairs(env, config, loss_of_pairs(pair_loss), reference=False)


cpo = AlgorithmBuilder("cpo", Config, recipe, check=check, measure=measure_return)

TINY = SMALL_PAIRS
