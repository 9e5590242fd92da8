"""Nash mirror prox (Tiapkin et al., 2025, "Accelerating Nash learning from human feedback via
mirror prox", arXiv:2505.19731): the equilibrium of a preference game, less the divergence from a
reference. Each iteration takes two proximal steps from the same policy: one against that policy,
whose result is the half step, and one against the half step. Its last iterate converges linearly.

A proximal step is solved by regression on the difference of two answers, whose minimizer it is; the
paper descends its objective by policy gradients. Step and divergence are in units of win rates."""

from __future__ import annotations

from jaxrl.algorithms.preferences.shared.games import (
    Group,
    check,
    loss_of_groups,
    on_games,
    regression,
    win_rates,
)
from jaxrl.algorithms.preferences.shared.measures import measure_game
from jaxrl.algorithms.preferences.shared.settings import SMALL_GAME, RegularizedGame, Rivals
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group


@group
class Config(RegularizedGame):
    """Settings of Nash mirror prox: proximal steps against a half step (arXiv:2505.19731)."""

    groups: Rivals = Rivals()


def recipe(env: Environment, config: Config, proximal: bool = True) -> Recipe:
    """Return the recipe. proximal: whether steps solve a proximal problem; if not they are steps of
    mirror descent, as in EGPO."""

    def group_loss(net: Net, group: Group) -> Array:
        eta, beta = net.hyper.eta, net.hyper.beta
        size = eta / (1 + eta * beta) if proximal else eta
        return regression(group, size, size * beta)

    score = win_rates(env, config.groups.answers, opponents=(2, 3))
    policy_loss = loss_of_groups(config.groups.answers, group_loss)
    return on_games(env, config, policy_loss, score, extragradient=True)


nash_mirror_prox = AlgorithmBuilder(
    "nash_mirror_prox", Config, recipe, check=check, measure=measure_game
)

TINY = SMALL_GAME
