"""GuDA's augmentation of random pushes in a maze: what it returns is played again, and cloned in a
table of cells and goals, in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.offline.shared import augmentation
from jaxrl.core.types import Array, Key, TimeStep, Transition

OBSERVED, PROPOSED, STEPS, REPEATS = 50, 10_000, 80, 4
ENV = envs.make("point_maze", dt=0.05, damping=20.0)
WALLS = np.asarray(ENV.params.walls)
HEIGHT, WIDTH = WALLS.shape
FREE = np.argwhere(WALLS == 0)
REACHED, LEAD = 0.7, 0.5  # share of pairs of a start and a goal; more than with random turns


def center(cells: Any) -> Array:
    """Return the centers [..., 2] of cells [..., 2], given as rows and columns."""
    row, column = cells[..., 0], cells[..., 1]
    return jnp.stack([column - (WIDTH - 1) / 2, (HEIGHT - 1) / 2 - row], -1)


def number(place: Array) -> Array:
    """Return the numbers of the cells that places [..., 2] are in."""
    row, column = jnp.floor(HEIGHT / 2 - place[..., 1]), jnp.floor(place[..., 0] + WIDTH / 2)
    return (row * WIDTH + column).astype(jnp.int32)


def play(timestep: TimeStep, action: Array) -> TimeStep:
    """Return what the environment does after time steps [n]."""
    state_of: Any = ENV.state_of
    step = lambda timestep, action: ENV.step(
        jax.random.key(0), state_of(timestep), action, ENV.params
    )[1]
    return jax.vmap(step)(timestep, action)


def observe(key: Key) -> Transition:
    """Return random pushes [OBSERVED] of a ball at rest, all in one cell."""
    keys = jax.random.split(key, 3)
    first = jax.vmap(lambda key: ENV.reset(key, ENV.params)[1])(jax.random.split(keys[0], OBSERVED))
    offset = jax.random.uniform(keys[1], (OBSERVED, 2), minval=-0.3, maxval=0.3)
    place = center(FREE[0]) + offset
    seen = jnp.concatenate([place, jnp.zeros((OBSERVED, 2))], -1)
    first = dataclasses.replace(first, observation=seen.astype(first.observation.dtype))
    action = jax.random.uniform(keys[2], (OBSERVED, 2), minval=-1, maxval=1)
    action = action.astype(jnp.float32)
    bare = lambda timestep: dataclasses.replace(timestep, metrics=None)
    return Transition(bare(first), action, bare(play(first, action)), (), {})


def clone(x: Transition, counts: Array) -> Array:
    """Return the mean action [cells, cells, 2] by the cells of the ball and of the goal, over the
    transitions [n] that count; 0 where there are none."""
    goal: Any = x.timestep.goal
    at = number(x.observation[..., :2]), number(goal)
    empty = jnp.zeros((WALLS.size, WALLS.size))
    total = jnp.stack([empty, empty], -1).at[at].add(counts[:, None] * x.action)
    return total / jnp.maximum(empty.at[at].add(counts), 1)[..., None]


def reaches(table: Array) -> Array:
    """Return the share of the pairs of a start and a goal that actions of a table lead through."""
    pairs = [(a, b) for a in FREE for b in FREE if (a != b).any()]
    start, goal = (center(np.array(cells)) for cells in zip(*pairs, strict=True))
    first = jax.vmap(lambda key: ENV.reset(key, ENV.params)[1])(
        jax.random.split(jax.random.key(0), len(pairs))
    )
    kind = first.observation.dtype
    seen = jnp.concatenate([start, jnp.zeros(start.shape)], -1).astype(kind)
    begin = dataclasses.replace(first, observation=seen, goal=goal.astype(kind))

    def step(carry: tuple[TimeStep, Array], _: None) -> tuple[tuple[TimeStep, Array], None]:
        timestep, done = carry
        mean = table[number(timestep.observation[:, :2]), number(goal)]
        size = jnp.maximum(jnp.abs(mean).max(-1, keepdims=True), 1e-9)
        action = jnp.where(size > 1e-6, mean / size, 0.0).astype(jnp.float32)  # as far as it goes
        after = play(timestep, action)
        seen = dataclasses.replace(timestep, observation=after.observation)
        return (seen, done | after.terminated), None

    done = jnp.zeros(len(pairs), bool)
    return jax.lax.scan(step, (begin, done), None, length=STEPS)[0][1].mean(dtype=float)


@jax.jit
def errors_of(key: Key, turned: Array | bool, elsewhere: Array | bool) -> dict[str, Array]:
    """Return the errors of augmented transitions.

    "played": the largest difference from what the environment does, in observation, reward and end.
    "reached": what the share of pairs of a start and a goal that a clone of guided ones masters
    lacks of `REACHED`. "lead": what it lacks of that of a clone of randomly turned ones and `LEAD`.
    turned: whether guided ones are turned at random after all. elsewhere: whether they have the
        goals of others.
    """
    keys = jax.random.split(key, 3)
    observed = observe(keys[0])
    many = jax.tree.map(lambda leaf: jnp.resize(leaf, (PROPOSED, *leaf.shape[1:])), observed)

    def augment(guided: bool, key: Key) -> tuple[Transition, Array]:
        change = augmentation.turn_in_maze(ENV, guided)
        return jax.vmap(change)(jax.random.split(key, PROPOSED), many)

    random, fair = augment(False, keys[1])
    guided, valid = augment(True, keys[2])
    goal = jnp.where(elsewhere, jnp.roll(guided.timestep.goal, 1, 0), guided.timestep.goal)
    guided = dataclasses.replace(guided, timestep=dataclasses.replace(guided.timestep, goal=goal))
    choose = lambda a, b: jnp.where(turned, a, b)
    guided, valid = jax.tree.map(choose, (random, fair), (guided, valid))
    again = play(guided.timestep, guided.action)
    wrong = [
        jnp.abs(again.observation - guided.next_observation).max(-1),
        jnp.abs(again.reward - guided.reward),
        (again.terminated != guided.terminated).astype(float),
    ]
    led, lost = reaches(clone(guided, 1.0 * valid)), reaches(clone(random, 1.0 * fair))
    return {
        "played": jnp.where(valid, jnp.stack(wrong).max(0), 0.0).max(),
        "reached": jnp.maximum(REACHED - led, 0.0),
        "lead": jnp.maximum(lost + LEAD - led, 0.0),
    }


def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the augmentation as it is."""
    return errors_of(key, False, False)


CLAIM = Exact(
    paper=Paper(
        "Guided Data Augmentation for Offline Reinforcement Learning and Imitation Learning",
        "Corrado, Qu, Balis, Labiosa and Hanna",
        2023,
        "2310.18247",
        "Of augmented transitions only those that are progress are kept, by a user's simple rule; "
        "so a few suboptimal data are enough, where random augmentation is not.",
    ),
    claim="From 50 random pushes in one cell of a maze, guided augmentation makes transitions that "
    "the environment plays alike, XX",
    left_out="Networks, offline reinforcement learning, driving, soccer and robots. The clone is a "
    "table of mean actions by the cells of ball and goal, and takes actions of the largest size. "
    "The environment computes in float32, which sets the tolerance.",
    notes="It was tried on other seeds before it was declared.",
    parts=(
        "jaxrl/algorithms/offline/shared/augmentation.py",
        "jaxrl/algorithms/offline/guda.py",
    ),
    errors=errors,
    planted={
        "turns at random": lambda key: errors_of(key, True, False),
        "goals of other transitions": lambda key: errors_of(key, False, True),
    },
    tolerance=1e-3,
    effect=1e-2,
    seeds=10,
    minutes=3.0,
    mutations=(
        Mutation(
            "the next cell is the goal itself",
            "jaxrl.envs.planar.mazes:next_cell",
            lambda next_cell: lambda walls, here, there: there,
        ),
        Mutation(
            "turns lead away from the next cell",
            "jaxrl.envs.planar.mazes:next_cell",
            lambda next_cell: lambda walls, here, there: 2 * here - next_cell(walls, here, there),
        ),
    ),
)
