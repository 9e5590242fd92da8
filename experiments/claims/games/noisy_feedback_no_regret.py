"""Optimistic gradients with two rates, in bilinear games whose gradients have relative noise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import solvers
from jaxrl.core.types import Array, Key

RATE, EXTRAPOLATION = 0.02, 0.2
Step = Callable[..., tuple[Array, Array]]  # like `solvers.optimistic_gradient`


def draw(key: Key) -> tuple[Array, Array]:
    """Draw the game's strength s in min_x max_y s x y, and the noise."""
    strength, noise = jax.random.split(key)
    uniform = lambda key, *bounds: jax.random.uniform(key, (), float, *bounds)
    return uniform(strength, 0.5, 1.0), uniform(noise, 1.2, 1.5)


def growth(key: Key, step: Step, rate: float, extrapolation: float) -> Array:
    """Return the factor by which the mean square of iterates grows in a step, in the long run.

    Each player's gradient is multiplied by 1 + noise or 1 - noise, equally likely and independent;
    noise above 1 turns gradients around, and equal rates then fail at every step size.
    Given the noise a step is linear, so second moments have a linear map of their own; this is its
    spectral radius, without sampling.
    """
    strength, noise = draw(key)

    def move(z, signs):
        """Step from [x, y, and both extrapolated]."""
        now, ahead = z[:2], z[2:]
        exact = strength * jnp.stack([ahead[1], -ahead[0]])
        return jnp.concatenate(step(now, exact * (1 + noise * signs), rate, extrapolation))

    maps = [
        jax.jacobian(move)(jnp.zeros(4), jnp.asarray(signs, float))
        for signs in itertools.product((-1, 1), repeat=2)
    ]
    moments = jnp.stack([jnp.kron(m, m) for m in maps]).mean(0)
    power = moments
    for _ in range(20):  # (moments)^(2^20) up to a factor, which is what grows
        power = power @ power
        power = power / jnp.linalg.norm(power)
    # A map that keeps second moments positive has a real dominant eigenvalue, so one more product
    # multiplies the norm by it.
    return jnp.linalg.norm(moments @ power)


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of separated rates."""
    step = solvers.optimistic_gradient
    return {
        "growth with separated rates": jnp.maximum(growth(key, step, RATE, EXTRAPOLATION) - 1, 0),
        "decay with equal rates": jnp.maximum(
            1 - growth(key, step, EXTRAPOLATION, EXTRAPOLATION), 0
        ),
    }


def equal_rates(step: Step) -> Step:
    """Update by the rate of the extrapolation."""
    return lambda x, gradient, rate, extrapolation: step(x, gradient, extrapolation, extrapolation)


def no_extrapolation(step: Step) -> Step:
    """Take gradients where the players are."""
    return lambda x, gradient, rate, extrapolation: step(x, gradient, rate, 0.0)


def errors_of(change: Callable[[Step], Step]) -> Callable[[Key], Mapping[str, Any]]:
    """Return the errors of a wrong step."""
    step = change(solvers.optimistic_gradient)
    return jax.jit(
        lambda key: {
            "growth with separated rates": jnp.maximum(
                growth(key, step, RATE, EXTRAPOLATION) - 1, 0
            )
        }
    )


CLAIM = Exact(
    paper=Paper(
        "No-Regret Learning in Games with Noisy Feedback: Faster Rates and Adaptivity via Learning "
        "Rate Separation",
        "Hsieh et al.",
        2022,
        "2206.06015",
        "Optimistic gradients with a larger rate for extrapolation than for updates have constant "
        "regret under multiplicative noise in variationally stable games; adaptive rates need not "
        "know the noise.",
    ),
    claim="Under multiplicative noise in bilinear games, mean squares of the iterates vanish "
    "geometrically with separated rates, and grow with equal ones.",
    left_out="Regret itself, which mean squares that vanish geometrically keep bounded; additive "
    "noise; adaptive rates; games that are not bilinear.",
    parts=("jaxrl/solvers/dynamics.py",),
    errors=errors,
    planted={
        "equal rates": errors_of(equal_rates),
        "no extrapolation": errors_of(no_extrapolation),
    },
    tolerance=1e-9,
    effect=1e-4,
    seeds=20,
    minutes=1.0,
    mutations=(Mutation("equal rates", "jaxrl.solvers:optimistic_gradient", equal_rates),),
)
