"""Rewarded soups against policies that are trained for each trade-off, by sums over all answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.claims.preferences._flows import LINE, bumps
from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.preferences.rewarded_soups import soup
from jaxrl.core.types import Array, Key
from jaxrl.exact.answers import optimal_answers

BETA, PROBLEMS, STEPS, RATE = 1.0, 32, 400, 0.1
SHARES = (0.25, 0.5, 0.75)  # of the first reward
NEAR = 0.05  # of the distance between policies, by which a soup may fall short
Soup = Callable[..., Array]  # like `soup`


class Problem(NamedTuple):
    """Two rewards [2, A], log-probabilities [A] of the policy before it is tuned, and features
    [A, K] of policies."""

    rewards: Array
    reference: Array
    features: Array


def draw(key: Key) -> Problem:
    """Draw two smooth rewards."""
    rewards = jax.random.normal(key, (2, 16)) @ bumps(16, 0.15).T
    reference = jax.nn.log_softmax(jnp.asarray(-((LINE / 0.4) ** 2) / 2))
    return Problem(rewards - rewards.mean(-1, keepdims=True), reference, bumps(24, 0.08))


def tune(x: Problem, reward: Array) -> Array:
    """Return the weights [K] of a policy after gradient steps on reward less beta KL, from 0."""

    def objective(w):
        log_prob = jax.nn.log_softmax(x.reference + x.features @ w)
        return jnp.exp(log_prob) @ (reward - BETA * (log_prob - x.reference))

    def step(_, w):
        return w + RATE / BETA * jax.grad(objective)(w)

    return jax.lax.fori_loop(0, STEPS, step, jnp.zeros(x.features.shape[1]))


def figures(mix: Soup, x: Problem) -> dict[str, Array]:
    """Return the error of tables, and what soups and tuned policies of few features gain."""
    cooks = tuple(tune(x, reward) for reward in x.rewards)
    policy = lambda w: jnp.exp(jax.nn.log_softmax(x.reference + x.features @ w))
    returns = lambda w: x.rewards @ policy(w)  # [2]

    def objective_of(w, reward):
        p = policy(w)
        return p @ (reward - BETA * (jnp.log(p) - x.reference))

    ends = [returns(w) for w in cooks]
    tables = tuple(x.reference + reward / BETA for reward in x.rewards)  # optimal logits
    found = {"tables": jnp.zeros(())}
    for share in SHARES:
        both = jnp.array([share, 1 - share]) @ x.rewards
        exact = optimal_answers(both, x.reference, BETA)
        error = jnp.abs(jax.nn.log_softmax(mix(tables, share)) - exact).max()
        found["tables"] = jnp.maximum(found["tables"], error)
        straight = share * ends[0] + (1 - share) * ends[1]
        mixed = mix(cooks, share)
        found[f"above the line, {share:g}"] = returns(mixed) - straight
        found[f"distance, {share:g}"] = jnp.abs(ends[0] - ends[1])
        own = objective_of(tune(x, both), both)
        worse = jnp.minimum(*(objective_of(w, both) for w in cooks))
        found[f"lost, {share:g}"] = own - objective_of(mixed, both)
        found[f"extent, {share:g}"] = own - worse
    return found


def errors_of(mix: Soup, key: Key) -> dict[str, Array]:
    """Return the errors of soups."""
    problems = jax.vmap(draw)(jax.random.split(key, PROBLEMS))
    found = jax.vmap(lambda x: figures(mix, x))(problems)
    missed = {"tables, the optimum of the mixed reward": found["tables"].max()}
    for share in SHARES:
        above = found[f"above the line, {share:g}"].mean(0)
        above = above + NEAR * found[f"distance, {share:g}"].mean(0)
        lost = found[f"lost, {share:g}"].mean() - NEAR * found[f"extent, {share:g}"].mean()
        missed[f"{share:g}: a reward far below the line"] = shortfall(above.min(), 0)
        missed[f"{share:g}: far below a policy of its own"] = jnp.maximum(lost, 0)
    return missed


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of rewarded soups."""
    return errors_of(soup, key)


def wrong(mix: Soup) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of another mixture."""
    return jax.jit(lambda key: errors_of(mix, key))


def other_way(right: Soup) -> Soup:
    """Give each policy the other's share."""
    return lambda parameters, share: right(parameters, 1 - share)


def in_halves(right: Soup) -> Soup:
    """Give both policies the same share."""
    return lambda parameters, share: right(parameters, 0.5)


CLAIM = Exact(
    paper=Paper(
        "Rewarded soups: towards Pareto-optimal alignment by interpolating weights fine-tuned on "
        "diverse rewards",
        "Rame, Couairon, Shukor, Dancette, Gaya, Soulier and Cord",
        2023,
        "2306.04488",
        "Policies that are fine-tuned from one initialization, one for each reward, remain "
        "linearly connected: interpolated weights give at least the interpolated rewards, and "
        "trade rewards off nearly as well as policies that are trained for each trade-off.",
    ),
    claim="In tables a soup is the KL-regularized optimum of the mixed reward; with few features "
    "it is near one, and near or above the line.",
    left_out="Networks, images and control, where weights are connected because they are tuned "
    "from one initialization: here policies are log-linear over 48 answers, and the identity of "
    "tables is derived here.",
    parts=("jaxrl/algorithms/preferences/rewarded_soups.py", "jaxrl/gradients/steps.py"),
    errors=errors,
    planted={
        "the other's share": wrong(other_way(soup)),
        "both the same share": wrong(in_halves(soup)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=8,
    minutes=2.0,
    notes="Third design. In a trial of three seeds with a beta of 0.3, where policies are tuned "
    "far, soups of 3 to 1 had a mean reward of 0.09 to 0.15 below the line between the policies, "
    "and soups in halves lost more than a twentieth; with a beta of 1 the largest was 0.02 below. "
    "So the paper's hypothesis, no reward below the line, is not strictly true, and is nearer to "
    "it where policies stay near; this design has a beta of 1 and allows a twentieth of the "
    "distance. With few features each of 24 weights moves a bump of answers, and findings are "
    "about means of 32 problems.",
    mutations=(
        Mutation(
            "both the same share",
            "jaxrl.gradients:parameter_soup",
            lambda f: lambda parameters, weight: f(parameters, jnp.ones_like(weight)),
        ),
    ),
)
