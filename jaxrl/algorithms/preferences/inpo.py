"""INPO (Zhang et al., 2025, "Iterative Nash policy optimization: aligning LLMs with general
preferences via no-regret learning", arXiv:2407.00617): self-play in a preference game by online
mirror descent, from comparisons of two answers alone. Each iteration regresses the
policy on a step from the last iteration's, which wrote the pairs; no win rate is estimated. `eta`
is the inverse of the step size, and at least `beta` (the paper's tau)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared import games
from jaxrl.algorithms.preferences.shared.games import Group, loss_of_groups, on_games
from jaxrl.algorithms.preferences.shared.measures import measure_game
from jaxrl.algorithms.preferences.shared.settings import SMALL_GAME, RegularizedGame, SelfPlay
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.sources import judged_pairs


@group
class Compared(SelfPlay):
    """Pairs of answers to the same prompt, written by the anchor and compared once."""

    answers: int = static(2, low=2, high=2)
    """Number of answers (G) to each prompt."""

    def source(self, env: Environment) -> Source:
        """Return a source of pairs, the preferred answer first."""
        return judged_pairs(SelfPlay.source(self, env), env, 2, num_shards=self.num_shards)


@group
class Config(RegularizedGame):
    """Settings of INPO: self-play by mirror descent, from comparisons alone (arXiv:2407.00617)."""

    groups: Compared = Compared()
    eta: float = hyper(1.0, above=0)
    """Inverse of the step size of the game, at least `beta`."""


def group_loss(net: Net, group: Group) -> Array:
    """Return the loss of each pair."""
    chosen, rejected = (Group(*(x[:, i] for x in group)) for i in (0, 1))
    return losses.inpo(
        chosen.log_prob,
        rejected.log_prob,
        chosen.anchor,
        rejected.anchor,
        chosen.reference,
        rejected.reference,
        net.hyper.eta,
        net.hyper.beta,
    )


def outcomes(batch: Batch) -> Array:
    """Score the preferred answer of each pair 1 and the other 0."""
    return (jnp.arange(batch.transitions.reward.shape[1]) % 2 == 0).astype(jnp.float32)


def recipe(env: Environment, config: Config) -> Recipe:
    return on_games(env, config, loss_of_groups(2, group_loss), outcomes)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `games.check`, and for an eta below beta."""
    games.check(env, config, name)
    if config.eta < config.beta:
        raise UserError(
            f"eta is {config.eta:g} and beta {config.beta:g}; eta must be at least beta."
        )


inpo = AlgorithmBuilder("inpo", Config, recipe, check=check, measure=measure_game)

TINY = SMALL_GAME
