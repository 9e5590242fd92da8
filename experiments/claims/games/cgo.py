"""Competitive gradient optimization in random bilinear games, against its closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import solvers
from jaxrl.core.types import Array, Key
from jaxrl.exact.races import bilinear, race

SIZE, RATE, STEPS = 4, 0.2, 2_000
Directions = Callable[..., tuple[Array, Array]]  # like `solvers.cgo`


def run(key: Key, directions: Directions, interaction: float) -> tuple[Array, Array, Array]:
    """Return the game, the start [2, SIZE] and the iterates [STEPS, 2, SIZE]."""
    game_key, begin_key = jax.random.split(key)
    game = bilinear(game_key, SIZE)
    begin = jax.random.normal(begin_key, (2, SIZE), float)

    def step(game, iterate, t):
        x, y = iterate
        dx, dy = directions(game @ y, game.T @ x, game, interaction)
        return jnp.stack([x - RATE * dx, y + RATE * dy])

    return game, begin, race(step, game, begin, STEPS)


def measure(key: Key, directions: Directions, interaction: float = 1.0) -> Mapping[str, Any]:
    """Return how far from the saddle the iterates end, relative to the start, and by how much 20
    steps differ from the closed form.

    With singular value s of the game, a step turns and shrinks the part of x and y in its singular
    directions: by the complex factor 1 - rate (a s^2 + i s) / (1 + a^2 s^2).
    """
    game, begin, iterates = run(key, directions, interaction)
    left, values, right = jnp.linalg.svd(game)
    parts = lambda z: (left.T @ z[0]) + 1j * (right @ z[1])
    factor = 1 - RATE * (values**2 - 1j * values) / (1 + values**2)
    expected = factor**20 * parts(begin)
    return {
        "distance that is left": jnp.linalg.norm(iterates[-1]) / jnp.linalg.norm(begin),
        "distance from the closed form": jnp.abs(parts(iterates[19]) - expected).max(),
    }


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of CGO."""
    return measure(key, solvers.cgo)


def against_itself(cgo: Directions) -> Directions:
    """Forget how the gradients depend on the other player."""
    return lambda x, y, cross, interaction: cgo(x, y, 0 * cross, interaction)


CLAIM = Exact(
    paper=Paper(
        "Competitive Gradient Optimization",
        "Vyas, Azizzadenesheli and Anandkumar",
        2023,
        "2205.14232",
        "Gradients that anticipate the other player's move, with a weight of interaction apart "
        "from the step size, converge to the saddles of strictly alpha-coherent functions, where "
        "gradient descent ascent may diverge.",
    ),
    claim="In random bilinear games CGO shrinks every singular direction by the factor of its "
    "closed form and ends at the saddle; without interaction it leaves it.",
    left_out="Functions that are not bilinear, the optimistic variant, and generative adversarial "
    "networks.",
    parts=("jaxrl/solvers/dynamics.py", "jaxrl/exact/races.py"),
    errors=errors,
    planted={
        "no interaction": jax.jit(lambda key: measure(key, solvers.cgo, 0.0)),
        "half the interaction": jax.jit(lambda key: measure(key, solvers.cgo, 0.5)),
    },
    tolerance=1e-6,
    effect=1e-3,
    seeds=20,
    minutes=1.0,
    mutations=(Mutation("the cross-Hessian is forgotten", "jaxrl.solvers:cgo", against_itself),),
)
