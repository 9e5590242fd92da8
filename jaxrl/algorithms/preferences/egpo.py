"""Extragradient preference optimization (Zhou et al., 2025, "Extragradient preference optimization
(EGPO): beyond last-iterate convergence for Nash learning from human feedback", arXiv:2503.08942):
the equilibrium of a preference game, less the divergence from a reference, by steps of mirror
descent against a look-ahead of the policy. Nash mirror prox takes proximal steps instead.

A step is regressed on as there. The paper takes a gradient step of an online variant of IPO for
each, which in a table is the same step."""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.preferences import nash_mirror_prox as of_nash_mirror_prox
from jaxrl.algorithms.preferences.nash_mirror_prox import Config as ProximalConfig
from jaxrl.algorithms.preferences.nash_mirror_prox import nash_mirror_prox
from jaxrl.algorithms.preferences.shared import games
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.kit import group


@group
class Config(ProximalConfig):
    """Settings of EGPO: mirror steps against a look-ahead of the policy (arXiv:2503.08942)."""


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `games.check`, and for steps beyond the reference."""
    games.check(env, config, name)
    if config.eta * config.beta > 1:
        raise UserError(
            f"eta * beta is {config.eta * config.beta:g}; a step of {name} must not go beyond the "
            "reference, so it must be at most 1."
        )


egpo = nash_mirror_prox.variant("egpo", Config=Config, check=check, proximal=False)

TINY = of_nash_mirror_prox.TINY
