"""Meta-solvers: mixtures over a population of policies, from the payoffs between them.

The game is symmetric: payoff[i, j] is what policy i earns against policy j, sides drawn at random,
and both players choose a policy. `META` holds the solvers by name.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl import losses, solvers
from jaxrl.core.types import Array
from jaxrl.exact.games import matrix_nash

FLOOR = 1e-3  # least share of a policy in projected replicator dynamics


class MetaSolver(Protocol):
    def __call__(self, payoff: Array, mask: Array, risk: Array | float, /) -> Array:
        """Return the mixture [K], which is 0 outside of the mask.

        payoff: float32 [K, K], of the row policy; 0 outside of the mask.
        mask: bool [K], the policies that exist; at least one.
        risk: weight of the payoff's variance; only `risk_averse` reads it.
        """
        ...


def nash(payoff: Array, mask: Array, risk: Array | float = 0.0) -> Array:
    """Return an equilibrium of a zero-sum game.

    In another game it is that of the game of differences, (payoff - payoff') / 2.
    """
    return matrix_nash((payoff - payoff.T) / 2, mask, iterations=500)


def uniform(payoff: Array, mask: Array, risk: Array | float = 0.0) -> Array:
    """Return equal shares, to which PSRO responds as fictitious play does."""
    return mask / mask.sum()


def projected_replicator(
    payoff: Array,
    mask: Array,
    risk: Array | float = 0.0,
    iterations: int = 2000,
    step_size: float = 0.1,
) -> Array:
    """Return the average mixture of projected replicator dynamics.

    After each step the mixture is projected onto those that give every policy at least `FLOOR`.
    Source: Lanctot et al., 2017, "A unified game-theoretic approach to multiagent reinforcement
    learning" (there with a floor of gamma / (K + 1); floor and step size are our choice).
    """
    free = 1 - FLOOR * mask.sum()

    def project(x):
        scaled = jnp.where(mask, (x - FLOOR) / free, -jnp.inf)
        # Far below any other, a policy outside of the mask has no share in the projection.
        scaled = jnp.maximum(scaled, scaled.max() - 2)
        return jnp.where(mask, FLOOR + free * losses.sparsemax(scaled), 0.0)

    def step(x, _):
        x = project(x + step_size * solvers.replicator(x, payoff @ x))
        return x, x

    _, path = jax.lax.scan(step, uniform(payoff, mask), None, iterations)
    return path.mean(0)


def averse_gain(payoff: Array, mixture: Array, risk: Array | float) -> Array:
    """Return what each policy adds [K] to the utility of a player who meets its own mixture.

    It is the gradient of the utility for the player's own strategy, at that mixture:
    M x - 2 risk S(x) x, S(x) the covariance of the policies' payoffs over opponents drawn from x.
    """
    return jax.grad(losses.risk_averse_utility)(mixture, mixture, payoff, risk)


def averse_gap(payoff: Array, mixture: Array, risk: Array | float, mask: Array) -> Array:
    """Return a bound on what a deviation adds to the utility; 0 at a risk-averse equilibrium.

    The utility is concave in the own strategy, so it lies below its tangent.
    """
    gain = averse_gain(payoff, mixture, risk)
    return jnp.where(mask, gain, -jnp.inf).max() - (gain * mixture).sum()


def risk_averse(payoff: Array, mask: Array, risk: Array | float, iterations: int = 1000) -> Array:
    """Return a mixture that answers itself with the most payoff less `risk` times its variance.

    The variance is that of the expected payoff over opponents drawn from the mixture. Regret
    matching+ on `averse_gain`, with the last regrets as a forecast, finds it. Since not all such
    games converge, the result is the iterate, or the average weighted linearly, that had the least
    `averse_gap`. With a risk of 0 it is an equilibrium of the game as it is.
    Source: Slumbers et al., 2023, "A game-theoretic framework for managing risk in multi-agent
    systems" (the utility; there it is solved by stochastic fictitious play).
    """

    def consider(best, mixture):
        gap = averse_gap(payoff, mixture, risk, mask)
        better = gap < best[0]
        return jnp.where(better, gap, best[0]), jnp.where(better, mixture, best[1])

    def step(carry, t):
        regret, forecast, total, best = carry
        mixture = solvers.regret_matching(regret + forecast, mask)
        gain = averse_gain(payoff, mixture, risk)
        new = jnp.where(mask, gain - (gain * mixture).sum(), 0.0)
        total = total + t * mixture
        best = consider(consider(best, mixture), total / total.sum())
        return (solvers.regret_matching_plus(regret, new), new, total, best), None

    zero = jnp.zeros(mask.size, payoff.dtype)
    begin = zero, zero, zero, (jnp.asarray(jnp.inf, payoff.dtype), uniform(payoff, mask) + zero)
    times = jnp.arange(1, iterations + 1, dtype=payoff.dtype)
    (_, _, _, (_, found)), _ = jax.lax.scan(step, begin, times)
    return found


META: dict[str, MetaSolver] = {
    "nash": nash,
    "uniform": uniform,
    "risk_averse": risk_averse,
    "projected_replicator": projected_replicator,
}
