"""SPPO (Wu et al., 2024, "Self-play preference optimization for language model alignment",
arXiv:2405.00675): self-play in a preference game by multiplicative weights. Each iteration writes
several answers to a prompt by the last iteration's policy, estimates how often each is preferred to
the others, itself among them, and regresses each answer's log-ratio on it, with 1/2 in place of the
normalizer (equation 4.7). The average policy converges, and there is no reference."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.games import (
    Group,
    check,
    loss_of_groups,
    on_games,
    win_rates,
)
from jaxrl.algorithms.preferences.shared.measures import measure_return
from jaxrl.algorithms.preferences.shared.settings import SMALL_GAME, Game, SelfPlay
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper
from jaxrl.kit.groups import Optimizer


@group
class Config(Game):
    """Settings of SPPO: self-play by multiplicative weights, of each answer's win rate
    (arXiv:2405.00675, equation 4.7)."""

    groups: SelfPlay = SelfPlay(answers=5)
    """Groups of answers. Five: section 5.1."""
    optimizer: Optimizer = Optimizer("rmsprop", learning_rate=5e-7, max_grad_norm=1.0)
    """Optimizer settings. RMSProp, 5e-7: section 5.1. (Small networks need larger steps.)"""
    eta: float = hyper(1.0, above=0)
    """Size of a step of the game. (The authors' code has 1000.)"""


def group_loss(net: Net, group: Group) -> Array:
    """Return the mean of equation 4.7 over the answers of each group."""
    return losses.sppo(group.log_prob, group.anchor, group.score, net.hyper.eta).mean(-1)


def recipe(env: Environment, config: Config) -> Recipe:
    size = config.groups.answers
    score = win_rates(env, size, opponents=tuple(range(size)))
    policy_loss = loss_of_groups(size, group_loss)
    return on_games(env, config, policy_loss, score, regularized=False)


sppo = AlgorithmBuilder("sppo", Config, recipe, check=check, measure=measure_return)

TINY = SMALL_GAME | {"answers": 3}
