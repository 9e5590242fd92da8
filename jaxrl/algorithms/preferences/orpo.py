"""ORPO (Hong et al., 2024, "ORPO: monolithic preference optimization without reference model",
arXiv:2403.07691): cloning of the chosen answer, and a penalty on the odds of the rejected one
(equation 6). Probabilities are geometric means over tokens, and there is no reference."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.measures import measure_return
from jaxrl.algorithms.preferences.shared.pairs import Answers, check, loss_of_pairs, on_pairs
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, PairPolicy
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper


@group
class Config(PairPolicy):
    """Settings of ORPO: cloning with a penalty on the odds of rejected answers (arXiv:2403.07691,
    equation 6)."""

    beta: float = hyper(0.1, low=0)
    """Weight of the odds ratio (the paper's lambda)."""


def pair_loss(net: Net, chosen: Answers, rejected: Answers) -> Array:
    """Return equation 6 of each pair."""
    first, second = chosen.per_token.log_prob, rejected.per_token.log_prob
    return losses.orpo(first, second, net.hyper.beta)


def recipe(env: Environment, config: Config) -> Recipe:
    return on_pairs(env, config, loss_of_pairs(pair_loss), reference=False)


orpo = AlgorithmBuilder("orpo", Config, recipe, check=check, measure=measure_return)

TINY = SMALL_PAIRS
