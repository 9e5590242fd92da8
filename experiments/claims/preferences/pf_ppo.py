"""PPO on filtered answers, where a reward model errs at middle rewards, with linear policies.

Answers are described by features. The true reward is linear in them; the reward model's score is
the true reward where that is high or low, and in the middle it is another direction of the
features, so that its error can be learned. A policy, linear in features too, is trained on some
prompts and looked at exactly, by the true reward, on others.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.preferences.pf_ppo import FILTERS, choose_answers, r_squared
from jaxrl.core.types import Array, Key

PROMPTS, HELD_OUT, ANSWERS, FEATURES, PROBLEMS = 32, 32, 32, 12, 16
SIZE, GROUPS, ROUNDS, STEPS, RATE = 8, 2, 40, 2, 0.05
WIDTH, ALIKE, CLIP, BETAS = 1.5, 0.5, 0.2, (0.1, 0.5)


class Problem(NamedTuple):
    """Features [P, A, F] of answers to prompts, those of training first, true rewards and scores
    of a reward model, [P, A]."""

    features: Array
    reward: Array
    score: Array


def draw(key: Key, middle: Array | bool) -> Problem:
    """Draw a problem, with scores that are wrong in the middle, or else everywhere alike."""
    keys = jax.random.split(key)
    features = jax.random.normal(keys[0], (PROMPTS + HELD_OUT, ANSWERS, FEATURES))
    directions = jnp.linalg.qr(jax.random.normal(keys[1], (FEATURES, 2)))[0]
    reward, other = jnp.moveaxis(features @ directions, -1, 0)
    wrong = jnp.exp(-((reward / WIDTH) ** 2))
    wrong = jnp.where(middle, wrong, ALIKE)
    return Problem(features, reward, (1 - wrong) * reward + wrong * other)


def keep(key: Key, score: Array, kind: Array | None) -> Array:
    """Return the places [N, k] in groups of the answers that are learned from.

    kind: of the filter, a place in FILTERS; None for all answers.
    """
    if kind is None:
        return jnp.broadcast_to(jnp.arange(SIZE), score.shape)
    kept = [choose_answers(key, score, name) for name in FILTERS]  # the best alone counts twice
    return jnp.stack([jnp.broadcast_to(x, (len(score), 2)) for x in kept])[kind]


def pick(table: Array, action: Array) -> Array:
    """Return the entries of a table [P, A] for answers [P, n]."""
    return jnp.take_along_axis(table, action, 1)


def collect(key: Key, x: Problem, log_prob: Array, kind: Array | None) -> Array:
    """Return answers by a policy to each prompt of which a filter keeps some, [P, n]."""
    draw_key, keep_key = jax.random.split(key)
    action = jax.random.categorical(draw_key, log_prob, shape=(GROUPS * SIZE, PROMPTS)).T
    group = lambda y: y.reshape(PROMPTS * GROUPS, SIZE)
    places = keep(keep_key, group(pick(x.score, action)), kind)
    return pick(group(action), places).reshape(PROMPTS, -1)


def fit_of(key: Key, x: Problem, kind: Array | None) -> Array:
    """Return R^2 of scores and true rewards of what is learned from at first."""
    action = collect(key, x, jnp.zeros((PROMPTS, ANSWERS)), kind)
    return r_squared(pick(x.score, action).ravel(), pick(x.reward, action).ravel())


def run(key: Key, x: Problem, kind: Array | None, beta: Array) -> Array:
    """Return the true reward at last, on prompts that are not those of training."""
    cut = lambda where: jax.tree.map(lambda y: y[where], x)
    train, test = cut(slice(PROMPTS)), cut(slice(PROMPTS, None))
    optimizer = optax.adam(RATE)

    def round_of(carry, key):
        before = jax.nn.log_softmax(train.features @ carry[0])
        action = collect(key, train, before, kind)
        old = pick(before, action)
        paid = pick(train.score, action) - beta * (old + jnp.log(ANSWERS))
        # The critic is the mean of what is kept for a prompt.
        advantage = losses.standardize(paid - paid.mean(1, keepdims=True))

        def loss(weights):
            now = pick(jax.nn.log_softmax(train.features @ weights), action)
            return losses.clipped_surrogate(now, old, advantage, CLIP).mean()

        def step(_, carry):
            weights, state = carry
            change, state = optimizer.update(jax.grad(loss)(weights), state)
            return weights + change, state

        return jax.lax.fori_loop(0, STEPS, step, carry), None

    begin = jnp.zeros(FEATURES)
    keys = jax.random.split(key, ROUNDS)
    (weights, _), _ = jax.lax.scan(round_of, (begin, optimizer.init(begin)), keys)
    return (jax.nn.softmax(test.features @ weights) * test.reward).sum(-1).mean()


@jax.jit
def errors_of(key: Key, middle: Array | bool, forced: Array | int) -> dict[str, Array]:
    """Return by how much each finding is missed, by means over problems.

    forced: the filter, a place in FILTERS; -1 for the one with the highest R^2.
    """
    keys = jax.random.split(key, (3, PROBLEMS))
    x = jax.vmap(lambda key: draw(key, middle))(keys[0])
    train = jax.tree.map(lambda y: y[:, :PROMPTS], x)
    fit = lambda kind: jax.vmap(lambda key, x: fit_of(key, x, kind))(keys[1], train).mean()
    fits = jax.vmap(fit)(jnp.arange(len(FILTERS)))
    kind = jnp.where(jnp.asarray(forced) < 0, jnp.argmax(fits), forced)

    def golds(kind):
        each = lambda beta: jax.vmap(lambda key, x: run(key, x, kind, beta))(keys[2], x)
        return jax.vmap(each)(jnp.asarray(BETAS)).mean(1)

    ours, usual = golds(kind), golds(None)
    return {
        "R^2 no 0.05 above that of all answers": shortfall(fits[kind] - fit(None), 0.05),
        "worse with a weak penalty": shortfall(ours[0], usual[0]),
        "no better by 0.05 with a strong penalty": shortfall(ours[1] - usual[1], 0.05),
    }


def errors(key: Key) -> dict[str, Array]:
    """Return the errors of PF-PPO."""
    return errors_of(key, True, -1)


def best_alone(key: Key) -> dict[str, Array]:
    """Return the errors of the filter that keeps the best answer alone."""
    return errors_of(key, True, FILTERS.index("best"))


def alike(key: Key) -> dict[str, Array]:
    """Return the errors where scores are as wrong for all rewards."""
    return errors_of(key, False, -1)


CLAIM = Exact(
    paper=Paper(
        "Policy Filtration in RLHF to Fine-Tune LLM for Code Generation",
        "Zhang et al.",
        2024,
        "2409.06957",
        "Reward models are more reliable at high and low rewards than in the middle. Keeping the "
        "answers for PPO whose scores are reliable, by a filter that R^2 between scores and true "
        "outcomes chooses, gives better policies in code generation and mathematics than PPO.",
    ),
    claim="Where scores are wrong in the middle, PPO on what the filter of the highest R^2 keeps "
    "ends with a higher true reward, at the same strong KL penalty, than PPO on all answers.",
    left_out="Language models and code; that reward models err in the middle, which is assumed; a "
    "gain with a weak penalty, where both near the same optimum: it only must be no loss.",
    parts=(
        "jaxrl/algorithms/preferences/pf_ppo.py",
        "jaxrl/losses/advantages/group_filters.py",
    ),
    errors=errors,
    planted={"the best answer alone": best_alone, "scores as wrong everywhere": alike},
    tolerance=1e-9,
    effect=1e-2,
    seeds=5,
    minutes=3.0,
    notes="In each of 40 rounds, 16 answers to each of 32 prompts are written, in groups of 8, of "
    "which two are kept; PPO learns from all 16. The error is shared over features, so that it "
    "is learned. Margins are a twentieth of the reward that is gained, about 1. In trials of some "
    "other draws of 4 problems, at two other widths of the middle and then at this one, the best "
    "and worst were ahead by 0.07 to 0.20 with the strong penalty (0.5), and by 0.00 to 0.17 with "
    "the weak one (0.1); the best and a random one, the default, by -0.08 to 0.12. Without errors "
    "of scores, all were equal within 0.02. Means are of 16 problems. "
    "A first design planted scores that are wrong at high and low rewards instead, with which the "
    "filter of the highest R^2 gained nearly as much, 0.14 and not 0.17: uneven errors suffice. "
    "With even ones it gained 0.02 at most.",
    diagnosis="All that is claimed with the strong penalty held on every seed: the filter of the "
    "highest R^2 kept more reliable scores and ended higher, and did not where errors were as "
    "large everywhere. What missed is that it is no loss with the weak penalty, by 0.005 and 0.02 "
    "on 2 of 5 seeds, with no margin: there policies with any filter probably near the answers of "
    "the highest scores, which are right. Both mutations make every clause miss, by 0.016 to 0.15.",
    mutations=(
        Mutation(
            "answers are kept at random",
            "jaxrl.losses:filtration_weights",
            lambda f: lambda reward, *given: jnp.ones_like(reward),
        ),
        Mutation(
            "answers of middle ranks are kept",
            "jaxrl.losses:filtration_weights",
            lambda f: lambda reward, *given: f(-jnp.abs(reward - reward.mean()), *given),
        ),
    ),
)
