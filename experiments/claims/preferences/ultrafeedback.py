"""UltraFeedback's dataset against one by a single policy, and against one rating of all aspects.

Prompts have some answers, described by features, in which what is good about an answer by each of
four aspects is linear. A reward model linear in features is fitted to as many rated answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._regressions import fit_linear, prefer_other, shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.preferences.ultrafeedback import CHOICES, Rated
from jaxrl.core.types import Array, Key
from jaxrl.exact.answers import best_of_n, optimal_answers
from jaxrl.sources import feedback

PROMPTS, ANSWERS, FEATURES, ASPECTS, COUNT, PAIRS, PROBLEMS = 32, 64, 24, 4, 64, 256, 32
QUALITIES, SIZE = np.array(Rated().qualities), Rated().answers
NOISE, TASTE = 1.0, 0.5  # deviations of ratings, and of what features do not say
BETTER, NEAR = np.array([0.03, 0.05]), np.array([0.01, 0.02])  # of pairs, and of the gain
Draw = Callable[..., tuple[Array, Array, Array]]  # like `feedback.draw_pairs`


def pool_of(reward: Array, qualities: Array) -> Array:
    """Return the log-probabilities [M, P, A] of answers by policies of these qualities."""
    uniform = jnp.full(reward.shape, -jnp.log(float(ANSWERS)))
    return jax.vmap(lambda w: optimal_answers(w * reward, uniform, 1.0))(qualities)


def figures(key: Key, draw: Draw) -> dict[str, Array]:
    """Return the share of pairs of different answers that are ordered right, and the gain of the
    best of 16 answers in shares of that by true rewards, [2], by dataset.

    draw: like `feedback.draw_pairs`.
    """

    def one(key):
        keys = jax.random.split(key, 6)
        x = jax.random.normal(keys[0], (PROMPTS, ANSWERS, FEATURES))
        weights = jax.random.normal(keys[1], (FEATURES, ASPECTS)) / jnp.sqrt(FEATURES)
        other = TASTE * jax.random.normal(keys[2], (PROMPTS, ANSWERS, ASPECTS))
        aspects = jnp.moveaxis(x @ weights + other, -1, 0)
        reward = aspects.mean(0)
        reward = (reward - reward.mean()) / reward.std()
        uniform = jnp.full(reward.shape, -jnp.log(float(ANSWERS)))
        gain = lambda score: (jnp.exp(best_of_n(uniform, score, CHOICES)) * reward).sum(-1).mean()
        better = reward[:, :, None] > reward[:, None]

        def learn(qualities, aspects):
            pool = pool_of(reward, qualities)
            data = feedback.draw_feedback(keys[3], pool, aspects, COUNT, SIZE, NOISE)
            prompt, chosen, rejected = draw(keys[4], data, PAIRS)
            pairs = jnp.stack([x[prompt, chosen], x[prompt, rejected]], 1)

            def measure(w):
                score = x @ w
                right = (score[:, :, None] > score[:, None]) & better
                return jnp.stack([right.sum() / better.sum(), gain(score) / gain(reward)])

            return jax.vmap(measure)(fit_linear(pairs, jnp.ones(PAIRS, bool)))

        alone = jax.vmap(lambda q: learn(jnp.full(len(QUALITIES), q), aspects))
        return {
            "pool": learn(jnp.asarray(QUALITIES), aspects),
            "alone": alone(jnp.asarray(QUALITIES)),
            "one rating": learn(jnp.asarray(QUALITIES), reward[None]),
        }

    found = jax.lax.map(one, jax.random.split(key, PROBLEMS))
    return jax.tree.map(lambda y: y.mean(0).max(-2), found)


def errors_of(draw: Draw, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed by a function like `draw_pairs`."""
    found = figures(key, draw)
    own, alone, one = found["pool"], found["alone"], found["one rating"]
    missed = {
        "a pool not above the mean of single policies": shortfall(own, alone.mean(0) + BETTER),
        "a pool below the best of single policies": shortfall(own, alone.max(0) - NEAR),
        "ratings by aspect below one rating": shortfall(own, one),
    }
    kinds = ("pairs", "the best of 16")
    return {f"{kind}: {name}": x[i] for name, x in missed.items() for i, kind in enumerate(kinds)}


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of UltraFeedback's dataset."""
    return errors_of(feedback.draw_pairs, key)


@jax.jit
def by_policies(key: Key) -> dict[str, Array]:
    """Return the errors of pairs that ratings do not label."""
    return errors_of(ignore(feedback.draw_pairs), key)


def ignore(draw: Draw) -> Draw:
    """Prefer the answer that was drawn first, whatever its rating is."""

    def first(key, data, count):
        order = jnp.broadcast_to(-jnp.arange(float(SIZE)), data.overall.shape)
        return draw(key, dataclasses.replace(data, overall=order), count)

    return first


def best_policy(draw: Callable[..., Array]) -> Callable[..., Array]:
    """Let the best policy write all answers."""
    return lambda key, pool, *given: draw(key, 0 * pool + pool[-1], *given)


CLAIM = Exact(
    paper=Paper(
        "UltraFeedback: Boosting Language Models with High-quality Feedback",
        "Cui, Yuan, Ding, Yao, He, Zhu, Ni, Xie, Xie, Lin, Liu and Sun",
        2024,
        "",
        "A large and diverse dataset of answers by a pool of models, rated by GPT-4 along several "
        "aspects, in numbers and words, trains reward models and chat models that are better than "
        "other open ones.",
    ),
    claim="Rated by aspects, a pool's answers train a better reward model than a single policy's "
    "do on average, and than one rating does.",
    left_out="Language models, critiques in words, policies that learn from the scores, but for "
    "the best of 16 answers, and other datasets: one rating of as much noise as that of each "
    "aspect stands for coarse ones, and a pool of one policy for those that are less diverse.",
    parts=(
        "jaxrl/sources/feedback.py",
        "jaxrl/algorithms/preferences/ultrafeedback.py",
        "jaxrl/losses/preferences/reward_models.py",
    ),
    errors=errors,
    planted={"ratings do not label pairs": by_policies},
    tolerance=1e-9,
    effect=1e-2,
    seeds=5,
    minutes=3.0,
    notes="All datasets have four answers to each of 64 prompts, and 256 pairs. Figures are shares "
    "of pairs of all answers that are ordered right, and of the gain of the best of 16 by true "
    "rewards. The pool's five policies are the library's; the best of them alone is only known in "
    "hindsight, and the pool may be 1 and 2 points below it. Reward models have the best of six "
    "ridges. Margins were set after trials of three draws of 16 problems, in which a pool came to "
    "76.4 % of pairs, the best policy to 75.5 %, the mean one to 71.0 %, and one rating to 75.0 %. "
    "That aspects help is in part that four ratings have less noise than one.",
    mutations=(
        Mutation("the other answer is preferred", "jaxrl.losses:bradley_terry", prefer_other),
        Mutation("the best policy writes all", "jaxrl.sources.feedback:draw_feedback", best_policy),
    ),
)
