"""INPO against mirror descent and the equilibrium of preference games, in tables."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.claims.preferences._tables import Game, chance, distance, draw, minimum, pairs
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses, solvers
from jaxrl.core.types import Array, Key

BETA, ETA, STEPS = 0.5, 2.0, 200
Loss = Callable[..., Array]  # like `losses.inpo`


def minimizer(loss: Loss, x: Game, policy: Array) -> Array:
    """Return the minimum of the expected loss of pairs that `policy` [A] writes, each compared
    once by the preference."""
    comparison = chance(policy) * x.preference  # the first of two is preferred

    def expectation(log_prob):
        given = pairs(log_prob, policy, x.reference)
        return (comparison * loss(*given, ETA, BETA)).sum()

    return minimum(expectation)


def errors_of(loss: Loss, x: Game) -> dict[str, Array]:
    """Return the errors of a loss like INPO's."""
    step = lambda p: minimizer(loss, x, p)
    exact = solvers.preference_mirror_step(
        x.preference, x.policy, x.policy, x.reference, 1 / ETA, BETA
    )
    last = jax.lax.fori_loop(0, STEPS, lambda _, p: step(p), x.policy)
    gap = solvers.preference_gap(x.preference, last, x.reference, BETA)
    given = pairs(x.policy, x.behavior, x.reference)
    ipo = losses.ipo(*given[:2], *given[4:], BETA)  # pyright: ignore[reportCallIssue]
    return {
        "the minimum, mirror descent's step": distance(step(x.policy), exact),
        "the gap of the last policy": jnp.abs(gap),
        "IPO's loss if eta is beta": distance(loss(*given, BETA, BETA), ipo),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of INPO."""
    return errors_of(losses.inpo, draw(key))


def wrong(loss: Loss, name: str) -> Callable[[Key], dict[str, Array]]:
    """Return one error of a wrong loss."""
    return jax.jit(lambda key: {name: errors_of(loss, draw(key))[name]})


@jax.jit
def by_reward_model(key: Key) -> dict[str, Array]:
    """Return the gap of the policy that is best for a reward model of the comparisons."""
    x = draw(key)
    pair = chance(x.policy) * x.preference
    loss = lambda r: (pair * losses.bradley_terry(*pairs(r))).sum()
    step = lambda _, r: r - 20.0 * jax.grad(loss)(r)
    reward = jax.lax.fori_loop(0, 2_000, step, jnp.zeros_like(x.policy))
    best = jax.nn.log_softmax(x.reference + reward / BETA)
    return {"gap": solvers.preference_gap(x.preference, best, x.reference, BETA)}


def without_reference(inpo: Loss) -> Loss:
    """Step from the last policy alone."""
    return lambda *given: inpo(*given[:4], *given[2:4], *given[6:])


def double_step(inpo: Loss) -> Loss:
    """Take steps of twice the size, with the same reference."""
    return lambda *given: inpo(*given[:6], given[6] / 2, given[7] / 2)


MINIMUM = "the minimum, mirror descent's step"
CLAIM = Exact(
    paper=Paper(
        "Iterative Nash Policy Optimization: Aligning LLMs with General Preferences via No-Regret "
        "Learning",
        "Zhang, Yu, Peng, Song, Tian, Huo, Jiang, Mi and Yu",
        2025,
        "2407.00617",
        "Self-play by online mirror descent approximates the Nash policy of general preferences, "
        "with a loss of pairs that needs no win rates. It exceeds iterative DPO and SPPO on "
        "AlpacaEval and Arena-Hard.",
    ),
    claim="The minimum of INPO's loss of comparisons is a mirror step of the preference game, and "
    "such steps end at its equilibrium.",
    left_out="Language models, and the regret of the average policy: here policies are tables over "
    "ten answers with preferences that have cycles, and expectations are sums over all pairs.",
    parts=(
        "jaxrl/losses/preferences/preference_games.py",
        "jaxrl/algorithms/preferences/inpo.py",
        "jaxrl/solvers/preference_games.py",
    ),
    errors=errors,
    planted={
        "no pull toward the reference": wrong(without_reference(losses.inpo), MINIMUM),
        "steps of twice the size": wrong(double_step(losses.inpo), MINIMUM),
        "the best policy for a reward model": by_reward_model,
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation("no pull toward the reference", "jaxrl.losses:inpo", without_reference),
        Mutation("steps of twice the size", "jaxrl.losses:inpo", double_step),
    ),
)
