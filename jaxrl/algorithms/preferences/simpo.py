"""SimPO (Meng et al., 2024, "SimPO: simple preference optimization with a reference-free reward",
arXiv:2405.14734): the reward of an answer is the mean log-probability of its tokens, and that of
the chosen one should lead by a margin (equation 6). There is no reference."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.measures import measure_return
from jaxrl.algorithms.preferences.shared.pairs import Answers, check, loss_of_pairs, on_pairs
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, PairPolicy
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper


@group
class Config(PairPolicy):
    """Settings of SimPO: mean log-probabilities as rewards, with a margin (arXiv:2405.14734,
    equation 6)."""

    beta: float = hyper(2.0, above=0)
    """Scale of the reward: 2.0 to 2.5 in the paper."""
    margin: float = hyper(1.0, low=0)
    """Margin of the chosen reward (gamma): 0.3 to 1.6 in the paper."""


def pair_loss(net: Net, chosen: Answers, rejected: Answers) -> Array:
    """Return equation 6 of each pair."""
    first, second = chosen.per_token.log_prob, rejected.per_token.log_prob
    return losses.simpo(first, second, net.hyper.beta, net.hyper.margin)


def recipe(env: Environment, config: Config) -> Recipe:
    return on_pairs(env, config, loss_of_pairs(pair_loss), reference=False)


simpo = AlgorithmBuilder("simpo", Config, recipe, check=check, measure=measure_return)

TINY = SMALL_PAIRS
