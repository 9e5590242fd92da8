"""EGPO's rate of convergence in preference games with cycles, and its loss, in tables."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.claims.preferences._tables import (
    ANSWERS,
    Game,
    chance,
    distance,
    draw,
    minimum,
    pairs,
)
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses, solvers
from jaxrl.core.types import Array, Key
from jaxrl.exact.answers import nash_answers

BETA, STEPS = 0.01, 2_000
ETA = 1 / (BETA + 3)
Step = Callable[..., Array]  # like `solvers.egpo`


def draw_cyclic(key: Key) -> Game:
    """Draw a game whose answers lie on a circle: each mostly beats the half that follows it."""
    game_key, noise_key = jax.random.split(key)
    place = jnp.arange(ANSWERS)
    ahead = jnp.sin(2 * jnp.pi * (place[None] - place[:, None]) / ANSWERS)
    noise = jax.random.normal(noise_key, (ANSWERS, ANSWERS))
    return draw(game_key)._replace(preference=jax.nn.sigmoid(6 * ahead + noise - noise.T))


def excess(step: Step, x: Game) -> Array:
    """Return by how much a divergence from the equilibrium exceeds that of the beginning times
    (1 - eta beta)^t, relative to it: the most of all steps t."""
    nash = nash_answers(x.preference, x.reference, BETA, steps=3_000)

    def body(policy, _):
        policy = step(x.preference, policy, x.reference, ETA, BETA)
        return policy, losses.categorical_kl(nash, policy)

    begin = losses.categorical_kl(nash, x.policy)
    _, later = jax.lax.scan(body, x.policy, None, STEPS)
    bound = begin * (1 - ETA * BETA) ** jnp.arange(1, STEPS + 1)
    return jnp.maximum(later / bound - 1, 0).max()


def by_regression(preference: Array, policy: Array, reference: Array, eta, beta) -> Array:
    """Return both steps of EGPO as minima of the online IPO loss, the policy in it the part of the
    reference that mirror descent keeps."""

    def step(opponent):
        begin = solvers.geometric_mixture(policy, reference, eta * beta)
        wins = preference @ jnp.exp(opponent)
        loss = lambda z: losses.online_ipo(*pairs(z, begin, wins), 1 / eta)  # pyright: ignore[reportCallIssue]
        return minimum(lambda z: (chance(policy) * loss(z)).sum())

    return step(step(policy))


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of EGPO."""
    x = draw_cyclic(key)
    given = x.preference, x.policy, x.reference, ETA, BETA
    return {
        "divergence above the rate": excess(solvers.egpo, x),
        "steps as minima of the online IPO loss": distance(
            by_regression(*given), solvers.egpo(*given)
        ),
    }


def wrong(step: Step) -> Callable[[Key], dict[str, Array]]:
    """Return by how much the divergences of a wrong step exceed the rate."""
    return jax.jit(lambda key: {"divergence above the rate": excess(step, draw_cyclic(key))})


def one_step(egpo: Step) -> Step:
    """Step against the policy itself."""
    return lambda preference, policy, *others: solvers.preference_mirror_step(
        preference, policy, policy, *others
    )


CLAIM = Exact(
    paper=Paper(
        "Extragradient Preference Optimization (EGPO): Beyond Last-Iterate Convergence for Nash "
        "Learning from Human Feedback",
        "Zhou, Fazel and Du",
        2025,
        "2503.08942",
        "Last-iterate linear convergence to the equilibrium of KL-regularized preference games, "
        "implemented by gradients of an online variant of the IPO loss. It exceeds baselines in "
        "win rates after as many epochs.",
    ),
    claim="EGPO's last policy nears the equilibrium at least at the rate 1 - eta beta; its steps "
    "are minima of the online IPO loss.",
    left_out="Language models, noise, and games without a reference: here policies are tables "
    "over ten answers with preferences that have cycles. A step against the policy itself, with "
    "the same step size, goes astray in them.",
    parts=(
        "jaxrl/solvers/preference_games.py",
        "jaxrl/losses/preferences/preference_games.py",
        "jaxrl/algorithms/preferences/egpo.py",
        "jaxrl/exact/answers.py",
    ),
    errors=errors,
    planted={"one step": wrong(one_step(solvers.egpo))},
    tolerance=1e-8,
    effect=1e-2,
    seeds=20,
    minutes=2.0,
    mutations=(Mutation("one step", "jaxrl.solvers:egpo", one_step),),
)
