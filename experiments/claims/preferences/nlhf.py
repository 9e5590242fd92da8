"""Nash-MD's rate of convergence in preference games with cycles, in tables."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.claims.preferences._tables import Game, draw
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses, solvers
from jaxrl.core.types import Array, Key
from jaxrl.exact.answers import nash_answers

BETA, STEPS = 0.5, 20_000
Step = Callable[..., Array]  # like `solvers.nash_md`


def shrinking(t: Array) -> Array:
    """Return the step size eta_t of the paper's theorem."""
    return 2 / (BETA * (t + 2))


def excess(step: Step, x: Game) -> dict[str, Array]:
    """Return by how much divergences from the equilibrium exceed the paper's bounds.

    After a step: (1 - eta_t beta) times the one before it, plus 2 eta_t^2. After t steps: 8 /
    (beta^2 (t + 1)), relative to it.
    """
    nash = nash_answers(x.preference, x.reference, BETA)

    def body(carry, t):
        policy, before = carry
        policy = step(x.preference, policy, x.reference, shrinking(t), BETA)
        now = losses.categorical_kl(nash, policy)
        bound = (1 - shrinking(t) * BETA) * before + 2 * shrinking(t) ** 2
        return (policy, now), (now - bound, now * BETA**2 * (t + 2) / 8 - 1)

    begin = x.reference, losses.categorical_kl(nash, x.reference)
    _, over = jax.lax.scan(body, begin, jnp.arange(STEPS, dtype=x.reward.dtype))
    names = "a step above its bound", "divergence above the rate"
    return {name: jnp.maximum(y, 0).max() for name, y in zip(names, over, strict=True)}


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of Nash-MD."""
    return excess(solvers.nash_md, draw(key))


def wrong(step: Step) -> Callable[[Key], dict[str, Array]]:
    """Return by how much a wrong step's divergences exceed the rate."""
    name = "divergence above the rate"
    return jax.jit(lambda key: {name: excess(step, draw(key))[name]})


def without_reference(nash_md: Step) -> Step:
    """Step from the policy against itself, and not from the mixture with the reference."""
    return lambda preference, policy, reference, eta, beta: nash_md(
        preference, policy, policy, eta, beta
    )


def other_reference(nash_md: Step) -> Step:
    """Mix with the uniform policy."""
    return lambda preference, policy, reference, eta, beta: nash_md(
        preference, policy, 0 * reference, eta, beta
    )


CLAIM = Exact(
    paper=Paper(
        "Nash Learning from Human Feedback",
        "Munos, Valko, Calandriello, Azar, Rowland, Guo, Tang, Geist and others",
        2024,
        "2312.00886",
        "Nash-MD, mirror descent against a mixture of policy and reference, converges in its last "
        "iterate to the equilibrium of a KL-regularized preference model, at the rate 1 / T. "
        "Policy gradients of this kind fine-tune a model of summaries.",
    ),
    claim="With the paper's steps Nash-MD's last policy nears the equilibrium of a game with "
    "cycles as fast as its theorem says.",
    left_out="Language models, and policy gradients: here policies are tables over ten answers, "
    "and win rates are exact.",
    parts=(
        "jaxrl/solvers/preference_games.py",
        "jaxrl/algorithms/preferences/nash_md.py",
        "jaxrl/exact/answers.py",
    ),
    errors=errors,
    planted={
        "no mixture with the reference": wrong(without_reference(solvers.nash_md)),
        "another reference": wrong(other_reference(solvers.nash_md)),
    },
    tolerance=1e-8,
    effect=1e-2,
    seeds=20,
    minutes=2.0,
    mutations=(
        Mutation("no mixture with the reference", "jaxrl.solvers:nash_md", without_reference),
        Mutation("another reference", "jaxrl.solvers:nash_md", other_reference),
    ),
)
