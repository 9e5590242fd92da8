"""REBEL (Gao et al., 2024, "REBEL: reinforcement learning via regressing relative rewards",
arXiv:2404.16767): each iteration writes two answers to a prompt by the last iteration's policy, and
regresses the difference of their log-ratios on that of their returns (algorithm 1). Its minimizer
is a step of mirror descent. It needs no judge."""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.preferences.shared.games import (
    Group,
    check,
    loss_of_groups,
    on_games,
    regression,
)
from jaxrl.algorithms.preferences.shared.measures import measure_return
from jaxrl.algorithms.preferences.shared.settings import SMALL_GAME, Game, SelfPlay
from jaxrl.algorithms.tokens.shared.answers import returns_of
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, static


@group
class Two(SelfPlay):
    """Two answers to each prompt, written by the last iteration's policy."""

    answers: int = static(2, low=2, high=2)
    """Number of answers (G) to each prompt."""


@group
class Config(Game):
    """Settings of REBEL: regression of log-ratios on differences of returns (arXiv:2404.16767,
    algorithm 1)."""

    groups: Two = Two()


def group_loss(net: Net, group: Group) -> Array:
    """Return the squared error of algorithm 1 for each pair."""
    return regression(group, net.hyper.eta, 0.0)


def recipe(env: Environment, config: Any) -> Recipe:
    return on_games(env, config, loss_of_groups(2, group_loss), returns_of, regularized=False)


rebel = AlgorithmBuilder("rebel", Config, recipe, check=check, measure=measure_return)

TINY = SMALL_GAME
