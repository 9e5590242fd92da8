"""Retraining in an environment that answers the policy: when does it settle?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.core.types import Array, Key
from jaxrl.exact import performative
from jaxrl.exact.performative import Answer, FollowerGame

STATES, ACTIONS, DISCOUNT, TEMPERATURE = 4, 2, 0.6, 0.5
REGULARIZER, WEAK, STEPS = 60.0, 1.0, 60
Solve = Callable[..., Array]  # like `performative.regularized_occupancy`


def draw(key: Key) -> FollowerGame:
    """Draw a game in which the leader earns by matching the follower, who earns by not matching."""
    stakes_key, transition_key = jax.random.split(key)
    stakes = jax.random.uniform(stakes_key, (STATES,), float, 1.0, 2.0)
    shape = (STATES, ACTIONS, ACTIONS)
    transition = jax.random.dirichlet(transition_key, jnp.ones(STATES, float), shape, float)
    reward = stakes[:, None, None] * (2 * jnp.eye(ACTIONS) - 1)
    return FollowerGame(transition, reward, -reward, jnp.full(STATES, 1 / STATES, float))


def excess(answer: Answer, initial: Array, occupancy: Array, regularizer: Array | float) -> Array:
    """Return how far an occupancy is from the conditions of the optimum, given its multipliers.

    Multipliers h are those with which r - E h - regularizer d vanishes where d is positive, in the
    least squares; there it must vanish, and elsewhere it must not be positive.
    """
    matrix = performative.flow(answer, DISCOUNT)
    flow = jnp.abs(jnp.einsum("sat,sa->t", matrix, occupancy) - initial).max()
    active = (occupancy > 1e-9).astype(float)
    target = answer.reward - regularizer * occupancy
    rows = (active[..., None] * matrix).reshape(-1, STATES)
    h = jnp.linalg.lstsq(rows, (active * target).ravel())[0]
    slack = target - matrix @ h
    wrong = jnp.where(active > 0, jnp.abs(slack), jnp.maximum(slack, 0)).max()
    return jnp.maximum(jnp.maximum(flow, wrong), jnp.maximum(-occupancy.min(), 0))


def measure(key: Key, regularizer: float = REGULARIZER) -> Mapping[str, Any]:
    """Return the errors of repeated retraining, by solution and by gradient."""
    game = draw(key)
    respond = performative.soft_follower(game, DISCOUNT, TEMPERATURE, tolerance=1e-12)
    # Begin with the occupancy of a leader who always takes the first action.
    first = performative.regularized_occupancy(
        Answer(game.transition.mean(2), jnp.stack([jnp.ones(STATES), jnp.zeros(STATES)], 1)),
        game.initial, DISCOUNT, 0.01,
    )  # fmt: skip
    path = performative.retrain(respond, game.initial, DISCOUNT, regularizer, first, STEPS)
    ascent = performative.retrain_by_gradient(
        respond, game.initial, DISCOUNT, regularizer, first, 4 * STEPS, 0.5 / REGULARIZER
    )
    return {
        "last change of the occupancy": jnp.abs(path[-1] - path[-2]).max(),
        "distance of the last occupancy from the optimum of its own environment": excess(
            respond(path[-1]), game.initial, path[-1], regularizer
        ),
        "distance of gradient ascent from it": jnp.abs(ascent[-1] - path[-1]).max(),
    }


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors with a strong regularizer."""
    return measure(key)


def regularize_weakly(solve: Solve) -> Solve:
    """Solve with a weak regularizer."""
    return lambda answer, initial, discount, regularizer: solve(answer, initial, discount, WEAK)


CLAIM = Exact(
    paper=Paper(
        "Performative Reinforcement Learning",
        "Mandal, Triantafyllou and Radanovic",
        2023,
        "2207.00046",
        "Repeatedly optimizing a regularized objective converges to a performatively stable policy "
        "under smoothness, as do gradient steps; the regularizer decides whether it does.",
    ),
    claim="Against a follower who responds softly, repeated optimization and repeated gradient "
    "ascent with a strong regularizer end at one occupancy, which is optimal in the environment "
    "that answers it; with a weak one, repeated optimization does not settle.",
    left_out="Finite samples, the threshold of the regularizer and its rates, the authors' "
    "gridworld, and performative optimality.",
    parts=("jaxrl/exact/performative.py", "jaxrl/exact/occupancy.py"),
    errors=errors,
    planted={
        "a weak regularizer": jax.jit(lambda key: measure(key, WEAK)),
    },
    tolerance=1e-6,
    effect=1e-2,
    seeds=20,
    minutes=5.0,
    mutations=(
        Mutation(
            "a weak regularizer",
            "jaxrl.exact.performative:regularized_occupancy",
            regularize_weakly,
        ),
    ),
    notes="The follower's policy is optimal with entropy regularization in the environment that "
    "the leader's policy makes for it.",
)
