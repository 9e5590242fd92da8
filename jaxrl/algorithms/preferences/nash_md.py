"""Nash-MD (Munos et al., 2024, "Nash learning from human feedback", arXiv:2312.00886): the
equilibrium of a preference game, less the divergence from a reference, by mirror descent against
the geometric mixture of the last iteration's policy and the reference, in which the reference has
the weight eta beta. A step begins from that mixture too.

Steps decrease as in the paper's theorem, eta_t = 2 / (beta (t + 2)) in iteration t = 0, 1, ..., and
are at most `eta`; with a constant step the last iterate stays away from the equilibrium by a
multiple of the step. Answers of the mixture are sampled token by token, each from the mixture of
both policies for that token, as in the paper's practical version; this is another distribution than
the mixture of whole answers, and the two meet as steps decrease. A step is regressed on, as
everywhere in this folder; the paper takes policy gradients."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl.algorithms.preferences.shared import games
from jaxrl.algorithms.preferences.shared.games import (
    Group,
    loss_of_groups,
    on_games,
    regression,
    win_rates,
)
from jaxrl.algorithms.preferences.shared.measures import measure_game
from jaxrl.algorithms.preferences.shared.players import played_as
from jaxrl.algorithms.preferences.shared.settings import SMALL_GAME, RegularizedGame
from jaxrl.algorithms.tokens.shared.settings import Groups
from jaxrl.core.types import Array, Batch, Environment, Source, Tree, struct
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.acting import sample_geometric_mixture
from jaxrl.networks.heads import check_discrete
from jaxrl.sources import Player, cast


@struct
class Step:
    """Step of mirror descent in an update.

    mixes: 1 in the state by which the opponent acts, else 0. size: of the step, for the loss.
    """

    mixes: Array
    size: Array


def play_mixture(state: Any) -> Any:
    """Return the state by which an agent acts as the mixture of anchor and reference."""
    anchor: Any = played_as("anchor")(state)
    mixes = jnp.ones_like(state.extra.mixes)
    return dataclasses.replace(anchor, extra=dataclasses.replace(state.extra, mixes=mixes))


@group
class Mixed(Groups):
    """Groups of answers to the same prompt: two by the policy, then two by the mixture."""

    answers: int = static(4, low=4, high=4)
    """Number of answers (G) to each prompt."""

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes that both play."""
        rival = Player(play_mixture)
        return cast(Groups.source(self, env), (Player(), Player(), rival, rival))


@group
class Config(RegularizedGame):
    """Settings of Nash-MD: mirror steps against a mixture with the reference
    (arXiv:2312.00886)."""

    groups: Mixed = Mixed()
    eta: float = hyper(2.0, above=0)
    """Largest size of a step of the game; step t is min(eta, 2 / (beta (t + 2)))."""


def step_size(net: Net, steps: int) -> Array:
    """Return the size of the current step of the game, whose regression takes `steps` updates."""
    h, iteration = net.hyper, net.updates // steps
    return jnp.minimum(h.eta, 2 / (h.beta * (iteration + 2)))


def group_loss(net: Net, group: Group) -> Array:
    """Return the squared error of the regression on a step, of each group."""
    size = net.extra.size
    return regression(group, size, size * net.hyper.beta)


def recipe(env: Environment, config: Config) -> Recipe:
    score = win_rates(env, config.groups.answers, opponents=(2, 3))
    plain = on_games(env, config, loss_of_groups(config.groups.answers, group_loss), score)

    def weight(net: Net) -> Array:
        return net.extra.mixes * step_size(net, config.steps) * net.hyper.beta

    def update(net: Net, batch: Batch) -> Net:
        size = step_size(net, config.steps)
        net = net.replace(extra=dataclasses.replace(net.extra, size=size))
        return plain.update(net, batch).report(step_size=size)

    def memory(n: int) -> Tree:
        return plain.memory(n), plain.memory(n)

    return dataclasses.replace(
        plain,
        act=sample_geometric_mixture("actor_critic", weight),
        update=update,
        memory=memory,
        extra=Step(jnp.float32(0), jnp.float32(0)),
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `games.check`, and for actions that are not `Discrete`."""
    check_discrete(env.action_space, name)
    games.check(env, config, name)


nash_md = AlgorithmBuilder("nash_md", Config, recipe, check=check, measure=measure_game)

TINY = SMALL_GAME
