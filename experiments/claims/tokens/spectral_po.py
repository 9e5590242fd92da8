"""Spectral Policy Optimization against GRPO where whole answers are rarely right, in expectation.

An answer is a chain of steps, each one of a few tokens of which one is right, and it is right if
all of its steps are. The policy is a table by the place, after right steps; what is said after an
error changes nothing. So a group of answers is told by how far each gets, and expected gradients
are sums over all groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.tokens.spectral_po import graded_returns
from jaxrl.core.types import Array, Key

STEPS, TOKENS, SIZE, PROBLEMS = 4, 4, 8, 16
RATE, UPDATES, GOAL = 1.0, 2000, 0.5
KINDS = STEPS + 1  # of answers, by the number of right steps before the first error
GROUPS = np.array(list(itertools.combinations_with_replacement(range(KINDS), SIZE)))  # [N, G]
COUNTS = (GROUPS[..., None] == np.arange(KINDS)).sum(1)  # [N, KINDS]
WAYS = np.array([math.factorial(SIZE) / math.prod(map(math.factorial, n)) for n in COUNTS])
Grades = Callable[[Array, Array, Array], Array]


def credits(grades: Grades) -> Array:
    """Return the sum of advantages of each kind of answer in each group, over its size, [N,
    KINDS]."""
    right = jnp.asarray(GROUPS == STEPS)
    given = grades(right.astype(float), right, jnp.asarray(GROUPS) / STEPS)
    advantage = losses.group_relative(given)
    return (advantage[..., None] * jax.nn.one_hot(GROUPS, KINDS)).mean(1)


def chances(logits: Array) -> tuple[Array, Array]:
    """Return how probable each kind of answer is, [KINDS], and each group, [N].

    logits: [STEPS, TOKENS]; the first token is right.
    """
    q = jax.nn.softmax(logits)[:, 0]
    before = jnp.concatenate([jnp.ones(1), jnp.cumprod(q)])
    kinds = before * jnp.concatenate([1 - q, jnp.ones(1)])
    return kinds, jnp.asarray(WAYS) * jnp.exp(COUNTS @ jnp.log(jnp.maximum(kinds, 1e-300)))


def scores(logits: Array) -> Array:
    """Return the expected gradient of the log-probability of each kind of answer, [KINDS, STEPS,
    TOKENS]."""

    def of_kinds(z):
        log_prob = jax.nn.log_softmax(z)
        wrong = jax.lax.stop_gradient(jax.nn.softmax(z[:, 1:]))  # which error, if it is one
        error = (wrong * log_prob[:, 1:]).sum(-1)
        said = jnp.concatenate([jnp.zeros(1), jnp.cumsum(log_prob[:, 0])])
        return said + jnp.concatenate([error, jnp.zeros(1)])

    return jax.jacobian(of_kinds)(logits)


def learn(begin: Array, grades: Grades) -> tuple[Array, Array]:
    """Return the number of updates until half of the answers are right, and the share of groups
    without a gradient at the beginning."""
    credit = credits(grades)

    def step(logits, _):
        kinds, groups = chances(logits)
        gradient = jnp.tensordot(groups @ credit, scores(logits), 1)
        return logits + RATE * gradient, kinds[-1]

    _, right = jax.lax.scan(step, begin, None, UPDATES)
    updates = jnp.where((right >= GOAL).any(), jnp.argmax(right >= GOAL), UPDATES)
    still = (jnp.abs(credit).max(-1) == 0) @ chances(begin)[1]
    return updates.astype(begin.dtype), still


def own_returns(returns: Array, right: Array, partial: Array) -> Array:
    """Return the rewards as they are, GRPO's."""
    return returns


def errors_of(grades: Grades, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed by some grades."""
    begin = 0.3 * jax.random.normal(key, (PROBLEMS, STEPS, TOKENS))
    sides = {"spo": grades, "grpo": own_returns}
    found = {name: jax.vmap(lambda z, g=g: learn(z, g))(begin) for name, g in sides.items()}
    (updates, still), (others, others_still) = (
        [y.mean() for y in found[name]] for name in ("spo", "grpo")
    )
    solved = jnp.asarray((GROUPS == STEPS).any(-1))
    same = jnp.abs(credits(grades) - credits(own_returns)).max(-1)
    return {
        "updates above half of GRPO's": jnp.maximum(updates / others - 0.5, 0),
        "GRPO's groups with a gradient above a tenth": shortfall(others_still, 0.9),
        "groups without a gradient above a quarter": jnp.maximum(still - 0.25, 0),
        "advantages in groups with a right answer, GRPO's": jnp.where(solved, same, 0).max(),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of Spectral Policy Optimization."""
    return errors_of(graded_returns, key)


def ignore_grades(grades: Grades) -> Grades:
    """Grade no answer."""
    return own_returns


def always_graded(grades: Grades) -> Grades:
    """Grade wrong answers beside right ones too."""
    return lambda returns, right, partial: grades(returns, jnp.zeros_like(right), partial)


def wrong(grades: Grades) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of other grades."""
    return jax.jit(lambda key: errors_of(grades, key))


CLAIM = Exact(
    paper=Paper(
        "Spectral Policy Optimization: Coloring your Incorrect Reasoning in GRPO",
        "Chen, Li, Li, Chen and Lin",
        2025,
        "2505.11595",
        "GRPO learns nothing from groups of wrong answers alone. Grading these by AI feedback "
        "gives them a gradient; it speeds learning up in a stylized model, and improves models of "
        "7B, 14B and 32B on ten benchmarks.",
    ),
    claim="Where answers are rarely right, expected steps of graded groups take half of GRPO's "
    "updates or fewer, with its advantages once one is right.",
    left_out="Language models, a judge that errs, samples, and the paper's own stylized model: "
    "here grades are the exact share of right steps, and gradients sums over all groups of eight.",
    parts=("jaxrl/algorithms/tokens/spectral_po.py", "jaxrl/losses/advantages/groups.py"),
    errors=errors,
    planted={
        "no grades": wrong(own_returns),
        "grades beside right answers too": wrong(always_graded(graded_returns)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=5,
    minutes=2.0,
    notes="Updates are those until half of the answers are right, from 0.4 % on average, by steps "
    "of one size; at most 2,000 of them. Means are of 16 problems. A trial of one seed held; a "
    "first attempt, of 32 problems and up to 4,000 updates, was stopped for its time before it had "
    "a figure.",
    mutations=(
        Mutation("no grades", "jaxrl.algorithms.tokens.spectral_po:graded_returns", ignore_grades),
        Mutation(
            "grades beside right answers too",
            "jaxrl.algorithms.tokens.spectral_po:graded_returns",
            always_graded,
        ),
    ),
)
