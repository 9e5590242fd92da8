"""Quasimetric RL's constrained objective on tables: true distances of directed graphs, in float64.

A table of lengths of a graph's steps stands for the quasimetric of its shortest paths. Every
quasimetric whose steps have these lengths is nowhere longer, so the tables are a family that holds
the best one.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key

STATES, SHARE, STEPS, RATE, OTHERS = 10, 0.15, 400, 2.0, 200
OFFSET, SHARPNESS = 15.0, 0.1  # of the authors' code
Family = Callable[[Array, Array], Array]  # (lengths of pairs, steps) -> distances, all [S, S]


def graph(key: Key) -> Array:
    """Draw the steps of a directed graph, bool [S, S]: one loop through all states, and shortcuts
    in random directions."""
    loop = jnp.roll(jnp.eye(STATES, dtype=bool), 1, 1)
    return (loop | jax.random.bernoulli(key, SHARE, loop.shape)) & ~jnp.eye(STATES, dtype=bool)


def shortest(lengths: Array) -> Array:
    """Return the shortest paths [S, S] by steps of these lengths (Floyd and Warshall)."""
    through = lambda k, d: jnp.minimum(d, d[:, k, None] + d[None, k])
    start = jnp.where(jnp.eye(STATES, dtype=bool), 0.0, lengths)
    for k in range(STATES):
        start = through(k, start)
    return start


def quasimetric(lengths: Array, steps: Array) -> Array:
    return shortest(jnp.where(steps, lengths, jnp.inf))


def metric(lengths: Array, steps: Array) -> Array:
    """Return a symmetric distance: a step is as long as its way back."""
    forth = jnp.where(steps, lengths, jnp.inf)
    return shortest(jnp.minimum(forth, forth.T))


def free_table(lengths: Array, steps: Array) -> Array:
    """Return a table whose steps alone have these lengths: nothing adds up."""
    return jnp.where(steps, lengths, 2.0 * OFFSET) * ~jnp.eye(STATES, dtype=bool)


def push(distance: Array) -> Array:
    """Return the mean of QRL's push over all pairs of states."""
    return losses.quasimetric_push(distance, OFFSET, SHARPNESS).mean()


def errors_of(key: Key, family: Family) -> dict[str, Array]:
    """Return how far the best distances are from the true ones, and what breaks their optimality.

    "distance": after descending the push from random lengths of steps, which are kept at most 1.
    "constraint": the violation by the distances that were found. "others": by how much random
    distances under the constraint have the lesser push.
    """
    graph_key, begin_key, other_key = jax.random.split(key, 3)
    steps = graph(graph_key)
    true = quasimetric(jnp.ones(steps.shape), steps)

    def step(lengths, _):
        slope = jax.grad(lambda x: push(family(x, steps)))(lengths)
        slope = jnp.where(jnp.isfinite(slope), slope, 0.0)
        return jnp.clip(lengths - RATE * STATES * slope, 0.01, 1.0), None

    begin = jax.random.uniform(begin_key, steps.shape, minval=0.2)
    found = family(jax.lax.scan(step, begin, length=STEPS)[0], steps)
    local = losses.quasimetric_constraint(found, 1.0, 1.0, 0.0)
    drawn = jax.random.uniform(other_key, (OTHERS, *steps.shape), minval=0.2)
    others = jax.vmap(lambda x: push(family(x, steps)))(drawn)
    return {
        "distance": jnp.abs(found - true).max(),
        "constraint": jnp.where(steps, local, 0.0).max(),
        "others": jnp.maximum(push(true) - others.min(), 0.0),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of quasimetrics."""
    return errors_of(key, quasimetric)


def plant(family: Family) -> Callable[[Key], dict[str, Array]]:
    return jax.jit(lambda key: errors_of(key, family))


CLAIM = Exact(
    paper=Paper(
        "Optimal Goal-Reaching Reinforcement Learning via Quasimetric Learning",
        "Wang, Torralba, Isola and Zhang",
        2023,
        "2304.01203",
        "A quasimetric that is spread apart as far as steps of cost 1 allow is the optimal "
        "goal-reaching value, and learns better from offline and online data.",
    ),
    claim="Of all quasimetrics whose steps are no longer than 1, the true distances of a directed "
    "graph have the least push; of tables without the triangle inequality, or metrics, they do "
    "not.",
    left_out="Networks, sampled states, the multiplier and its tolerance, and policies: the bound "
    "on steps is kept exactly.",
    parts=("jaxrl/losses/representations/quasimetrics.py",),
    errors=errors,
    planted={
        "no triangle inequality": plant(free_table),
        "a symmetric metric": plant(metric),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "distances are pushed together",
            "jaxrl.losses:quasimetric_push",
            lambda push: lambda distance, *options: -push(distance, *options),
        ),
    ),
)
