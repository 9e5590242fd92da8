"""Complex momentum in random bilinear games, where no real momentum converges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import solvers
from jaxrl.core.types import Array, Key
from jaxrl.exact.races import bilinear, race

SIZE, RATE, STEPS, MAGNITUDE, PHASE = 4, 0.05, 8_000, 0.9, jnp.pi / 8
FAR = 1e6  # distances beyond it, and those of iterates that are no numbers any more
REAL = -0.9, -0.5, 0.0, 0.5, 0.9
Update = Callable[..., tuple[Array, Array]]  # like `solvers.complex_momentum`


def run(game: Array, begin: Array, update: Update, magnitude: float, phase: float) -> Array:
    """Return the iterates [STEPS, 2, SIZE] of players who move at once."""

    def step(game, iterate, t):
        z, momentum = iterate
        gradient = jnp.stack([game @ z[1], -game.T @ z[0]])  # of each player's loss
        momentum, change = update(momentum, gradient, magnitude, phase, RATE)
        return z + change, momentum

    return race(step, game, (begin, jnp.zeros((*begin.shape, 2))), STEPS)[0]


def measure(key: Key, update: Update, phase: float = PHASE) -> Mapping[str, Any]:
    """Return how far from the saddle complex momentum ends, relative to the start; by how much ten
    steps differ from complex arithmetic; and how much closer to the saddle real momentum comes."""
    game_key, begin_key = jax.random.split(key)
    game = bilinear(game_key, SIZE, 0.5)
    begin = jax.random.normal(begin_key, (2, SIZE), float)
    z, momentum = begin, jnp.zeros((2, SIZE), complex)
    for _ in range(10):
        momentum = MAGNITUDE * jnp.exp(1j * PHASE) * momentum
        momentum = momentum - jnp.stack([game @ z[1], -game.T @ z[0]])
        z = z + RATE * momentum.real
    iterates = run(game, begin, update, MAGNITUDE, phase)
    size = jnp.linalg.norm(begin)
    left = jnp.linalg.norm(iterates[-1]) / size
    nearer = [
        jnp.maximum(size - jnp.linalg.norm(run(game, begin, update, beta, 0.0)[99]), 0)
        for beta in REAL
    ]
    return {
        "distance that is left": jnp.nan_to_num(left, nan=FAR).clip(max=FAR),
        "distance from complex arithmetic": jnp.abs(iterates[9] - z).max(),
        "approach of real momentum": jnp.stack(nearer).max(),
    }


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of complex momentum."""
    return measure(key, solvers.complex_momentum)


def real_part(update: Update) -> Update:
    """Let the momentum turn by nothing."""
    return lambda momentum, gradient, magnitude, phase, rate: update(
        momentum, gradient, magnitude, 0.0 * phase, rate
    )


CLAIM = Exact(
    paper=Paper(
        "Complex Momentum for Optimization in Games",
        "Lorraine et al.",
        2022,
        "2102.08431",
        "Gradient descent with complex momentum converges in bilinear zero-sum games for "
        "simultaneous and alternating updates, and improves the training of BigGAN.",
    ),
    claim="In random bilinear games players who move at once end at the saddle with complex "
    "momentum, and leave it with any of five real ones at the same step size.",
    left_out="Alternating updates, the variant of Adam, generative adversarial networks, and other "
    "phases: at a step size of 0.1 the same momentum diverges.",
    parts=("jaxrl/solvers/dynamics.py", "jaxrl/exact/races.py"),
    errors=errors,
    planted={
        "no phase": jax.jit(lambda key: measure(key, solvers.complex_momentum, 0.0)),
        "the opposite phase of half the size": jax.jit(
            lambda key: measure(key, solvers.complex_momentum, -PHASE / 2)
        ),
    },
    tolerance=1e-6,
    effect=1e-3,
    seeds=20,
    minutes=1.0,
    mutations=(Mutation("no phase", "jaxrl.solvers:complex_momentum", real_part),),
)
