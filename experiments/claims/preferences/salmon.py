"""A reward model that is told principles against fixed ones, with linear scores of few answers.

Answers are described by features, and each principle scores them in a direction of its own. One
principle is a vice that goes with the virtues, so that what optimizes the virtues has more of it.
Reward models learn from the same labeled pairs; their optima for a KL penalty are looked at on
prompts without pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.preferences import salmon_reward_model as model
from jaxrl.core.types import Array, Key, TimeStep
from jaxrl.exact.answers import optimal_answers

PROMPTS, ANSWERS, FEATURES, PAIRS, PROBLEMS = 64, 64, 12, 2000, 16
VIRTUES, PRINCIPLES, MOST = 4, 6, 3  # the fifth is of no interest, the sixth is the vice
TOGETHER, UNSEEN = 0.5, 0.5  # correlation of vice and virtues; deviation that features do not show
FLIPPED, RIDGE, NEWTON = model.Config().flipped, 1e-3, 10
BEFORE = np.array([1.0] * VIRTUES + [0, 0])
PATCHED = np.array([1.0] * VIRTUES + [0, -1])
BETA = 0.5  # for scores with a deviation of 1
STRENGTHS = np.geomspace(0.1, 30.0, 40)
HACKED, LEFT, KEPT, NEAR, BETTER = 0.5, 0.25, 0.75, 0.9, 0.1


class Problem(NamedTuple):
    """Features [P, A, F] of answers to prompts without pairs, and each principle's score of them,
    [P, A, K]. apart: differences between the features of the two answers of a pair, [N, F].
    difference: between their scores by each principle, [N, K]."""

    features: Array
    scores: Array
    apart: Array
    difference: Array


def draw(key: Key) -> Problem:
    """Draw a problem."""
    keys = jax.random.split(key, 5)
    unit = lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    directions = jnp.linalg.qr(jax.random.normal(keys[0], (FEATURES, PRINCIPLES)))[0].T
    vice = TOGETHER * unit(directions[:VIRTUES].sum(0)) + (1 - TOGETHER**2) ** 0.5 * directions[-1]
    directions = directions.at[-1].set(vice)

    def judge(key, features):
        unseen = jax.random.normal(key, (*features.shape[:-1], PRINCIPLES))
        return features @ directions.T + UNSEEN * unseen

    features = jax.random.normal(keys[1], (PROMPTS, ANSWERS, FEATURES))
    both = jax.random.normal(keys[2], (2, PAIRS, FEATURES))
    judged = judge(keys[3], both)
    return Problem(features, judge(keys[4], features), both[0] - both[1], judged[0] - judged[1])


def read(features: Array, principles: Array) -> Array:
    """Return what a linear reward model reads of answers [..., F] under principles [..., K]."""
    shape = jnp.broadcast_shapes(features.shape[:-1], principles.shape[:-1])
    none, zero = jnp.zeros(shape, bool), jnp.zeros(shape)
    told = model.state_principles(TimeStep(none, zero, none, none, none), principles).goal
    told = jnp.concatenate([jnp.ones((*shape, 1)), told], -1)  # type: ignore[list-item]
    return (told[..., None] * features[..., None, :]).reshape(*shape, -1)


def fit(reading: Array, label: Array) -> Array:
    """Return the weights of a linear reward model by labels of pairs that it reads [N, D]."""

    def objective(w):
        lead = label * (reading @ w)
        loss = losses.bradley_terry(lead, jnp.zeros_like(lead))
        return jnp.where(label == 0, 0, loss).mean() + RIDGE * (w**2).sum()

    step = lambda _, w: w - jnp.linalg.solve(jax.hessian(objective)(w), jax.grad(objective)(w))
    return jax.lax.fori_loop(0, NEWTON, step, jnp.zeros(reading.shape[-1]))


def look(x: Problem, score: Array, beta: Array | float) -> Array:
    """Return the virtues, the vice and their balance, with each principle counted alike, in the
    optimum of a score [P, A], as gains over the reference, [3]."""
    score = (score - score.mean()) / score.std()
    policy = jnp.exp(optimal_answers(score, jnp.full(score.shape, -jnp.log(ANSWERS)), beta))
    found = (policy[..., None] * x.scores).sum(1).mean(0) - x.scores.mean((0, 1))
    return jnp.stack([found[:VIRTUES].sum(), found[-1], found @ PATCHED])


def one(key: Key, later: Array) -> dict[str, Array]:
    """Return the looks at each reward model's optimum in a problem, by name."""
    keys = jax.random.split(key, 3)
    x = draw(keys[0])
    variance = x.difference.var(0)
    wrong = jax.random.bernoulli(keys[1], FLIPPED, (PAIRS,))

    def label(principles):
        found = model.judge_by_principles(x.difference, variance, principles)
        return jnp.where(wrong, -found, found)

    told = model.draw_principles(keys[2], (PAIRS,), PRINCIPLES, MOST)
    weights = fit(read(x.apart, told), label(told))
    instructed = lambda principles: read(x.features, jnp.asarray(principles)) @ weights

    def fixed(principles):
        return x.features @ fit(x.apart, label(jnp.asarray(principles)))

    before = fixed(BEFORE)
    return {
        "first": look(x, instructed(BEFORE), BETA),
        "patched": look(x, instructed(later), BETA),
        "fixed": look(x, before, BETA),
        "fixed at all": jax.vmap(lambda beta: look(x, before, beta))(jnp.asarray(STRENGTHS)),
        "labeled anew": look(x, fixed(PATCHED), BETA),
    }


@jax.jit
def errors_of(key: Key, later: Array) -> dict[str, Array]:
    """Return by how much each finding is missed if the reward model is told `later` [K] at last."""
    each = jax.lax.map(lambda key: one(key, later), jax.random.split(key, PROBLEMS))
    found = jax.tree.map(lambda x: x.mean(0), each)
    (virtue, vice, balance), first = found["patched"], found["first"]
    weak = found["fixed at all"]
    as_clean = jnp.where(weak[:, 1] <= jnp.maximum(vice, 0) + 0.1, weak[:, 0], 0).max()
    return {
        "the vice rises by less than 0.5 at first": shortfall(first[1], HACKED),
        "virtues at first below nine tenths of the fixed model's": shortfall(
            first[0], NEAR * found["fixed"][0]
        ),
        "more than a quarter of the vice is left": shortfall(LEFT * first[1], vice),
        "less than three quarters of the virtues are left": shortfall(virtue, KEPT * first[0]),
        "no better by 0.1 than before": shortfall(balance, first[2] + BETTER),
        "the fixed model has half the virtues with as little vice": shortfall(virtue / 2, as_clean),
        "below nine tenths of a model that is labeled anew": shortfall(
            balance, NEAR * found["labeled anew"][2]
        ),
    }


def telling(later: Array | np.ndarray) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of a reward model that is told these principles at last."""
    return lambda key: errors_of(key, jnp.asarray(later))


CLAIM = Exact(
    paper=Paper(
        "SALMON: Self-Alignment with Principle-Following Reward Models",
        "Sun, Shen, Zhang, Zhou, Chen, Cox, Yang and Gan",
        2023,
        "2310.05910",
        "A reward model that is trained on synthetic preferences by sampled principles scores by "
        "any principles that people define. Adjusting these while a policy learns controls the "
        "reward model's preferences and so the policy, such as against reward hacking, and needs "
        "no new preferences of people.",
    ),
    claim="A principle that is added against a vice removes it and keeps the virtues, nearly as "
    "well as a fixed reward model of new labels; less pushing by the old one does not.",
    left_out="Language models, principles as text, PPO, in whose place is the optimum for a KL "
    "penalty, and the comparison with models that learned from people. Scores and reward models "
    "are linear in features, and the instructed one also in the principles.",
    parts=(
        "jaxrl/algorithms/preferences/salmon_reward_model.py",
        "jaxrl/losses/preferences/reward_models.py",
        "jaxrl/exact/answers.py",
    ),
    errors=telling(PATCHED),
    planted={
        "the principle is not added": telling(BEFORE),
        "the vice is asked for": telling(np.abs(PATCHED)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=6,
    minutes=2.0,
    notes="All models learn from the same 2,000 pairs, with the same tenth of the labels wrong. "
    "Sets of training have at most three principles, those of the policy four and five. Margins "
    "were set after a trial of two other draws, in which the vice rose by 0.78 to 0.80 at first, "
    "then by -0.01 to 0.04 with the principle against it; virtues by 3.2, then 2.7 to 2.8; the "
    "balance was 0.95 of what new labels gave. Means are of 16 problems.",
    mutations=(
        Mutation(
            "no principle is ever negated in a label",
            "jaxrl.algorithms.preferences.salmon_reward_model:judge_by_principles",
            lambda f: lambda difference, variance, told: f(difference, variance, abs(told)),
        ),
        Mutation(
            "the reward model is told nothing",
            "jaxrl.algorithms.preferences.salmon_reward_model:state_principles",
            lambda f: lambda timestep, principles: f(timestep, 0 * principles),
        ),
    ),
)
