"""Poisson quasimetric embeddings (PQE; Wang and Isola, 2022, "On the learning and learnability of
quasimetrics", arXiv:2206.15478): distances to goals learned from true distances of some pairs, as
an embedding that is asymmetric and satisfies the triangle inequality whatever its weights.

    d(u, v) = sum_k alpha_k (1 - exp(-sum_j max(0, u_kj - v_kj)))       (PQE-LH, equation 9)

The true distances are the fewest steps in a maze whose doors open in one direction
(`exact.mazes`), of which a share of all pairs of places is shown. The loss compares discounted
distances, so pairs without a path count too; the error in steps of pairs that were not shown is
logged as `held_out_error`. Other heads learn in the same way, to compare with: IQE, MRN, a
Euclidean distance, or a network without constraint.

The policy imitates actions, weighted by exp((d(s, g) - d(s', g)) / temperature), as QRL's here. In
the paper a quasimetric of states and actions is the value of offline Q-learning instead. Its other
variant (PQE-GG), and deep linear networks for the weights alpha, are left out.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.goals.shared.conditioned import (
    SMALL,
    GoalConditioned,
    approach_loss,
    make_actor,
    make_source,
)
from jaxrl.algorithms.goals.shared.conditioned import check as check_goals_and_actions
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.types import Array, Batch, Environment, Source, struct
from jaxrl.exact.mazes import maze_distances
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import sample
from jaxrl.kit.groups import INF
from jaxrl.networks.distances import HEADS, UNCONSTRAINED, Distance

MOST_HELD_OUT = 1024  # pairs that the error in each update is estimated with


@group
class Config(GoalConditioned):
    """Settings of Poisson quasimetric embeddings (arXiv:2206.15478)."""

    head: str = static("pqe", choices=(*HEADS, UNCONSTRAINED))
    """Head of the distance: pqe, iqe or mrn, which are quasimetrics, euclidean, which is symmetric,
    or unconstrained."""
    components: int = static(64, low=1, high=WIDE)
    """Number of components of the embedding."""
    size: int = static(8, low=1, high=WIDE)
    """Length of each component of the embedding."""
    shown: float = static(0.5, above=0, below=1)
    """Share of all pairs of places whose true distances are shown."""
    split: int = static(0, low=0, high=2**32 - 1)
    """Seed of the choice of the pairs that are shown."""
    pairs: int = static(1024, low=1, high=MANY)
    """Number of pairs in a gradient step of the distance."""

    base: float = hyper(0.9, above=0, below=1)
    """Base of the discounted distances that the loss compares."""
    temperature: float = hyper(1 / 3, above=0, high=INF, log=True)
    """Temperature of the advantage weights."""


@struct
class Pairs:
    """Pairs [n] of places and the fewest steps from the first to the second, infinite without a
    path. Places [n, 2] are on the scale of goals."""

    here: Array
    goal: Array
    steps: Array


def split_pairs(env: Environment, share: float, seed: int) -> tuple[Pairs, Pairs]:
    """Return all pairs of places of a maze in two parts, chosen at random: a `share` of them, and
    the others.

    Raises `UserError` for environments whose distances are not known (`maze_distances`), and where
    a part would be empty.
    """
    maze = maze_distances(env)
    count = len(maze.place)
    shown = round(share * count**2)
    if not 0 < shown < count**2:
        raise UserError(
            f"shown is {share} of the {count**2} pairs of places in '{env.name}'; some must be "
            "shown and some held out."
        )
    here, goal = np.divmod(np.random.default_rng(seed).permutation(count**2), count)
    arrays: Any = (maze.goal[here], maze.goal[goal], maze.steps[here, goal])
    both = Pairs(*arrays)
    return jax.tree.map(lambda x: x[:shown], both), jax.tree.map(lambda x: x[shown:], both)


@loss("distance")
def distance_loss(net: Net, x: Pairs) -> LossOutput:
    """Regress discounted distances on the true ones."""
    found, base = net.distance(x.here, x.goal), net.hyper.base
    error = losses.squared_error(base**found, base**x.steps)
    return LossOutput(error, {"distance": found})


def absolute_error(net: Net, x: Pairs) -> Array:
    """Return the mean absolute error in steps, of pairs with a path."""
    finite = jnp.isfinite(x.steps)
    error = jnp.abs(net.distance(x.here, x.goal) - jnp.where(finite, x.steps, 0.0))
    return jnp.where(finite, error, 0.0).sum() / jnp.maximum(finite.sum(), 1)


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, torso = example_timestep(env), config.torso
    shown, held_out = jax.tree.map(jnp.asarray, split_pairs(env, config.shown, config.split))
    held_out = jax.tree.map(lambda x: x[:MOST_HELD_OUT], held_out)
    distance = Distance(config.head, torso.hidden, torso.activation, config.components, config.size)
    actor_loss = approach_loss(env)

    def update(net: Net, batch: Batch) -> Net:
        row = jax.random.randint(net.key("pairs"), (config.pairs,), 0, len(shown.steps))
        net = net.descend(distance_loss, jax.tree.map(lambda x: x[row], shown))
        net = net.report(held_out_error=absolute_error(net, held_out))
        return net.descend(actor_loss, batch)

    inputs: Any = (timestep.goal, timestep.goal)
    return Recipe(
        parts={
            "distance": Part(distance, inputs, config.optimizer),
            "actor": Part(make_actor(env, config), (timestep,), config.optimizer),
        },
        act=sample("actor", env.action_space),
        losses=(distance_loss, actor_loss),
        update=update,
        needs=("transitions.extras.actor_goal",),
    )


def source(env: Environment, config: Config) -> Source:
    """Return the data of a run, with goals of the policy."""
    shares = config.actor_goals.shares()
    return make_source(env, config, shares, {"actor_goal": shares})


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless `env` has goals, actions that a policy can have, and one maze whose
    true distances are known."""
    check_goals_and_actions(env, config, name)
    split_pairs(env, config.shown, config.split)


pqe = AlgorithmBuilder("pqe", Config, recipe, source, check=check)

TINY = (
    {k: v for k, v in SMALL.items() if k not in ("env", "env_params")}
    | {"env": "one_way_doors", "components": 2, "size": 2, "pairs": 16}
    | {"env_params": {"rows": 2, "columns": 2, "room_size": 3, "observe": "position", "maze": 1}}
)
