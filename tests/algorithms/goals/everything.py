"""All steps of a small maze with one-way doors, toward all goals, and its true distances."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.core.types import TimeStep, Transition
from jaxrl.exact.mazes import maze_distances
from jaxrl.sources.hindsight import Chosen, Shares, hindsight
from jaxrl.sources.played import Record

SMALL = {"rows": 2, "columns": 2, "room_size": 3, "observe": "position", "maze": 1}
ENV = envs.make("one_way_doors", **SMALL)
MAZE = maze_distances(ENV)
PLACES = len(MAZE.place)


def record():
    """Return all actions (4) at all places, as episodes of one step."""
    here, action = np.divmod(np.arange(4 * PLACES, dtype=np.int32), 4)
    no, zero = np.zeros(len(here), bool), np.zeros(len(here), np.float32)
    goal = np.zeros((len(here), 2), np.float32)
    before = TimeStep(MAZE.goal[here], zero, no, no, ~no, goal=goal)
    after = TimeStep(MAZE.goal[MAZE.next[here, action]], zero, no, ~no, no, goal=goal)
    steps = Transition(before, action, after, (), {})
    rows = np.arange(len(here), dtype=np.int32)
    data = Record(steps, rows, np.zeros_like(rows), zero, ~no)
    return jax.tree.map(jnp.asarray, data)


@functools.cache
def steps(*others):
    """Return transitions [places * actions * places], relabeled with each goal; the `others` are
    further goals by name, all equal to it."""
    view = hindsight(ENV, Shares(), dict.fromkeys(others, Shares()))
    data = record()
    prepared = view.prepare(data, {})
    row = np.repeat(np.arange(4 * PLACES, dtype=np.int32), PLACES)
    goal = np.tile(4 * np.arange(PLACES, dtype=np.int32), 4 * PLACES)
    chosen = Chosen(jnp.asarray(goal), jnp.ones(len(goal), bool))
    found = {"row": row, "": chosen, **dict.fromkeys(others, chosen)}
    return jax.tree.map(np.asarray, view.take(data, prepared, found)[0])


def place(x):
    """Return the numbers of places by their coordinates [..., 2]."""
    return jnp.abs(jnp.asarray(x)[..., None, :] - MAZE.goal).sum(-1).argmin(-1)


def distance(here, goal):
    """Return the true distance between coordinates."""
    return jnp.asarray(MAZE.steps)[place(here), place(goal)]


def value(discount):
    """Return the true value of a time step and its goal."""

    def of(timestep):
        d = distance(timestep.observation, timestep.goal)
        return -(1 - discount**d) / (1 - discount)

    return of


def best(x):
    """Return whether steps lead nearer to their goals, or are there already."""
    before = distance(x.observation, x.timestep.goal)
    after = distance(x.next_observation, x.timestep.goal)
    return np.asarray((before == 0) | (after == before - 1))


def policy(log_prob, mode=None):
    """A policy with given log-probabilities, whatever the action, and a given mode."""
    return types.SimpleNamespace(log_prob=lambda action: log_prob, mode=lambda: mode)
