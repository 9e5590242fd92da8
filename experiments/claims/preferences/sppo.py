"""SPPO's regression against multiplicative weights, and its average policy, in tables."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._regressions import minimum_of_policies, shortfall
from experiments.claims.preferences._tables import ANSWERS, Game, distance, draw
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses, solvers
from jaxrl.core.types import Array, Key

STEPS, CYCLE = 1_000, 3
LARGE = 0.5
Loss = Callable[..., Array]  # like `losses.sppo`


def best_eta(answers: int) -> float:
    """Return the step size with the least bound of Hedge's regret."""
    return float(np.sqrt(8 * np.log(answers) / STEPS))


def gap_limit(answers: int) -> float:
    """Return the bound of the gap of Hedge's average policy, twice its regret."""
    return float(2 * np.sqrt(np.log(answers) / (2 * STEPS)))


def wins(policy: Array, preference: Array) -> Array:
    """Return how probably each answer [A] is preferred to a policy's."""
    return preference @ jnp.exp(policy)


def minimizer(loss: Loss, policy: Array, win_rate: Array, eta: float, by: Array) -> Array:
    """Return the policy with the least expected loss of answers `by` a policy [A]."""
    expectation = lambda p: (jnp.exp(by) * loss(p, policy, win_rate, eta)).sum()
    return minimum_of_policies(expectation, policy, by)


def error_of_half(loss: Loss, x: Game, eta: float) -> Array:
    """Return how far the minimum is from multiplicative weights, as 1/2 stands for log Z."""
    rates = wins(x.policy, x.preference)
    found = minimizer(loss, x.policy, rates, eta, x.policy)
    return jnp.abs(found - solvers.mirror_descent(x.policy, rates, eta)).max()


def play(loss: Loss, preference: Array, begin: Array) -> tuple[Array, Array]:
    """Return the duality gap of SPPO's average policy, and its last policy."""
    eta = best_eta(len(begin))

    def body(policy, _):
        rates = wins(policy, preference)
        return minimizer(loss, policy, rates, eta, policy), jnp.exp(policy)

    last, policies = jax.lax.scan(body, begin, None, STEPS)
    average = policies.mean(0)
    return solvers.duality_gap(preference - 0.5, average, average), last


def errors_of(loss: Loss, key: Key) -> dict[str, Array]:
    """Return the errors of a loss like SPPO's."""
    game_key, cycle_key = jax.random.split(key)
    x = draw(game_key)
    rates = wins(x.policy, x.preference)
    exact = solvers.mirror_descent(x.policy, rates, LARGE)
    log_z = jnp.log(jnp.exp(x.policy) @ jnp.exp(LARGE * rates))
    normalized = rates - log_z / LARGE + 0.5  # so that log Z is in the place of eta / 2
    found = minimizer(loss, x.policy, normalized, LARGE, x.behavior)

    of_logits = lambda f: jax.grad(lambda z: f(jax.nn.log_softmax(z)))(x.policy)
    regress = lambda p: (jnp.exp(x.policy) * loss(p, x.policy, rates, LARGE)).sum()
    beat = lambda p: jnp.exp(p) @ rates
    error, of_quarter = (error_of_half(loss, x, eta) for eta in (LARGE, LARGE / 4))

    uniform = jnp.full(ANSWERS, -jnp.log(ANSWERS))
    average, _ = play(loss, x.preference, uniform)
    # Rock, paper and scissors, each of which beats the next by a chance of its own.
    strength = jax.random.uniform(cycle_key, (CYCLE,), minval=0.1, maxval=0.4)
    edge = jnp.zeros((CYCLE, CYCLE)).at[jnp.arange(CYCLE), (jnp.arange(CYCLE) + 1) % CYCLE]
    edge = edge.set(strength)
    equilibrium = jnp.log(jnp.roll(strength, -1) / strength.sum())
    begin = jnp.log(jnp.array([0.5, 0.3, 0.2]))
    in_cycle, last = play(loss, 0.5 + edge - edge.T, begin)
    away = [losses.categorical_kl(equilibrium, p) for p in (begin, last)]
    return {
        "the minimum with log Z, multiplicative weights": distance(found, exact),
        "the first gradient, the policy gradient": distance(
            of_logits(regress), -2 * LARGE * of_logits(beat)
        ),
        "the error of 1/2 falls slower than the cube": shortfall(error / of_quarter / 64, 0.8),
        "the average's gap above the bound": jnp.maximum(average / gap_limit(ANSWERS) - 1, 0),
        "the average's gap above the bound in a cycle": jnp.maximum(
            in_cycle / gap_limit(CYCLE) - 1, 0
        ),
        "the last policy is nearer to the equilibrium of a cycle": shortfall(away[1], away[0]),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of SPPO."""
    return errors_of(losses.sppo, key)


def wrong(loss: Loss, name: str) -> Callable[[Key], dict[str, Array]]:
    """Return one error of a wrong loss."""
    return jax.jit(lambda key: {name: errors_of(loss, key)[name]})


def losing(sppo: Loss) -> Loss:
    """Regress on how often an answer loses."""
    return lambda now, old, win_rate, eta: sppo(now, old, 1 - win_rate, eta)


def without_half(sppo: Loss) -> Loss:
    """Leave out 1/2, so that every log-ratio is pulled up."""
    return lambda now, old, win_rate, eta: sppo(now, old, win_rate + 0.5, eta)


CLAIM = Exact(
    paper=Paper(
        "Self-Play Preference Optimization for Language Model Alignment",
        "Wu, Sun, Yuan, Ji, Yang and Gu",
        2024,
        "2405.00675",
        "Self-play by multiplicative weights, one regression of each answer's log-ratio on its win "
        "rate at a time, with 1/2 in place of the normalizer. The average policy's duality gap is "
        "O(1 / sqrt(T)); trained language models win more often than with iterative DPO and IPO.",
    ),
    claim="SPPO's minimum is a step of multiplicative weights up to O(eta^3); its average policy "
    "is within Hedge's bound, its last one moves off.",
    left_out="Language models, sampled win rates and approximate minimization: here policies are "
    "tables, win rates and minima exact. That the last policy moves away in a cycle is not "
    "the paper's; its theorem is about the average.",
    parts=(
        "jaxrl/losses/preferences/preference_games.py",
        "jaxrl/algorithms/preferences/sppo.py",
        "jaxrl/solvers/dynamics.py",
    ),
    errors=errors,
    planted={
        "losses are paid": wrong(losing(losses.sppo), "the average's gap above the bound"),
        "no 1/2": wrong(without_half(losses.sppo), "the error of 1/2 falls slower than the cube"),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=2.0,
    notes="Third design: the first asked that the last policy's gap in a cycle be beyond the "
    "bound, the second that of the worst of its last half. Both are also a question of where in "
    "the cycle it is, and missed it on a seed; this one asks that the last policy be farther from "
    "the equilibrium than the first. In the second, Newton's steps were ill-conditioned too and "
    "gave no number on 3 of 20 seeds. The bound is twice the regret of Hedge over 1,000 steps "
    "with its best step size. Policies are minima of SPPO's loss among normalized ones, on "
    "answers of the one before.",
    mutations=(
        Mutation("losses are paid", "jaxrl.losses:sppo", losing),
        Mutation("no 1/2", "jaxrl.losses:sppo", without_half),
    ),
)
