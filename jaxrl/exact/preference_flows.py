"""Paths of log-linear policies that follow losses of preferences, by sums over all answers.

One study for all ways to learn from preferences: a policy over A answers to one prompt descends an
expected loss, and each point of its path is measured, gold reward beside KL divergence and the
accuracy of its implicit reward on pairs. Nothing is sampled but the pairs of a finite dataset.

pairs = draw_pairs(key, reference, reward, count=200)                    # [A, A]
dpo = functools.partial(losses.dpo, beta=0.1)
policies = follow(of_pairs(dpo, pairs, reference), reference, features)  # [S + 1, A]
path = measure_path(policies, reference, reward, pairs)
path.gold[path.kl.searchsorted(1.0)]

It measures what these studies are of: Tajwar et al., 2024, "Preference fine-tuning of LLMs should
leverage suboptimal, on-policy data", arXiv:2404.14367 (`of_texts`, `of_pairs` and `of_reward` from
one reference); Tang et al., 2024, "Understanding the performance gap between online and offline
alignment algorithms", arXiv:2405.08448 (`of_own_pairs` beside `of_pairs`, `at_divergence`);
Rafailov et al., 2024, "Scaling laws for reward model overoptimization in direct alignment
algorithms", arXiv:2406.02900 (`fit_overoptimization`).
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
import optax

from jaxrl.core import precise
from jaxrl.core.types import Array, Key, struct
from jaxrl.exact.answers import frontier


class PairLoss(Protocol):
    """A loss of two answers, such as `losses.dpo` with its beta."""

    def __call__(
        self, chosen: Array, rejected: Array, chosen_reference: Array, rejected_reference: Array, /
    ) -> Array:
        """Return the loss of each pair by the log-probabilities of both of its answers."""
        ...


class Objective(Protocol):
    """An expected loss of a policy."""

    def __call__(self, log_prob: Array, /) -> Array:
        """Return the loss [] of a policy by its log-probabilities [A]."""
        ...


@struct
class Path:
    """Points of the path of a policy, [S].

    kl: KL(policy || reference). gold: expected reward. win_rate: probability that its answer is
    preferred to the reference's. accuracy: share of pairs whose preferred answer has the higher
    implicit reward log(pi / pi_ref).
    """

    kl: Array
    gold: Array
    win_rate: Array
    accuracy: Array


def expected_pairs(log_prob: Array, score: Array, other: Array | None = None) -> Array:
    """Return how often answer i is preferred to answer j, [A, A], in pairs of a policy's answers.

    log_prob: [A], of the policy. score: [A], of the Bradley-Terry model that labels the pairs.
    other: [A], of another policy that writes the second answers; None for the same.
    """
    p, q = jnp.exp(log_prob), jnp.exp(log_prob if other is None else other)
    both = p[:, None] * q + q[:, None] * p
    return both * jax.nn.sigmoid(score[:, None] - score)


def draw_pairs(key: Key, log_prob: Array, score: Array, count: int) -> Array:
    """Return the same in a finite dataset: shares [A, A] of `count` pairs that are drawn."""
    chance = expected_pairs(log_prob, score)
    size = len(score)
    drawn = jax.random.categorical(key, jnp.log(chance).reshape(-1), shape=(count,))
    return jnp.zeros(size**2, chance.dtype).at[drawn].add(1 / count).reshape(size, size)


def of_pairs(pair_loss: PairLoss, pairs: Array, reference: Array) -> Objective:
    """Return the loss of a fixed dataset of pairs. pairs: shares [A, A]. reference: [A]."""
    return lambda log_prob: (pairs * _table(pair_loss, log_prob, reference)).sum()


def of_own_pairs(pair_loss: PairLoss, score: Array, reference: Array) -> Objective:
    """Return the loss of pairs that the policy writes itself, labeled by a score [A]."""

    def objective(log_prob: Array) -> Array:
        pairs = expected_pairs(jax.lax.stop_gradient(log_prob), score)
        return (pairs * _table(pair_loss, log_prob, reference)).sum()

    return objective


def of_texts(share: Array) -> Objective:
    """Return the negative log-likelihood of texts: of what was preferred, of the best of n, or of
    answers weighted by their reward. share: of each answer, [A]."""
    return lambda log_prob: -(share * log_prob).sum()


def of_reward(score: Array, reference: Array, beta: Array | float) -> Objective:
    """Return the negative expected score less beta KL, which on-policy policy gradients descend."""
    return lambda log_prob: -(jnp.exp(log_prob) * (score - beta * (log_prob - reference))).sum()


def reward_model(pairs: Array, features: Array, ridge: float = 1e-3, steps: int = 30) -> Array:
    """Return the scores [A] of the Bradley-Terry model, linear in features, that fits pairs best.

    pairs: shares [A, A]. features: [A, K]. ridge: weight of the squared norm of its weights. It is
    found by `steps` steps of Newton, and its mean is 0.
    """

    def objective(w):
        score = precise.matmul(features, w)
        table = jax.nn.log_sigmoid(score[:, None] - score)
        return -(pairs * table).sum() + ridge * (w**2).sum()

    def step(_, w):
        return w - jnp.linalg.solve(jax.hessian(objective)(w), jax.grad(objective)(w))

    begin = jnp.zeros(features.shape[1], features.dtype)
    score = precise.matmul(features, jax.lax.fori_loop(0, steps, step, begin))
    return score - score.mean()


def follow(
    objective: Objective,
    reference: Array,
    features: Array,
    steps: int = 500,
    learning_rate: float = 0.02,
) -> Array:
    """Return the log-probabilities [steps + 1, A] of a policy on its way from the reference.

    pi(y) is proportional to ref(y) exp(features(y) w), w from 0 by Adam.

    reference: [A]. features: [A, K]; the identity for a table.
    """
    optimizer = optax.adam(learning_rate)
    policy = lambda w: jax.nn.log_softmax(reference + precise.matmul(features, w))

    def step(carry, _):
        w, state = carry
        change, state = optimizer.update(jax.grad(lambda w: objective(policy(w)))(w), state)
        w = optax.apply_updates(w, change)
        return (w, state), policy(w)

    begin = jnp.zeros(features.shape[1], features.dtype)
    _, after = jax.lax.scan(step, (begin, optimizer.init(begin)), None, steps)
    return jnp.concatenate([policy(begin)[None], after])


def measure_path(log_prob: Array, reference: Array, reward: Array, pairs: Array) -> Path:
    """Return what the policies of a path have reached.

    log_prob: [S, A]. reference, reward: [A]. pairs: shares [A, A] of the pairs that are classified,
    such as held-out ones (`expected_pairs`).
    """
    preference = jax.nn.sigmoid(reward[:, None] - reward)
    point = frontier(
        log_prob[:, None], reference[None], reward[None], reward[None], preference[None]
    )
    assert point.win_rate is not None
    accuracy = pair_accuracy(log_prob - reference, pairs)
    return Path(point.kl, point.gold, point.win_rate, accuracy)


def pair_accuracy(score: Array, pairs: Array) -> Array:
    """Return the share of pairs whose preferred answer has the higher score, 1/2 where they are
    equal: [...]. score: [..., A], of a reward model. pairs: shares [A, A]."""
    right = 0.5 * (1 + jnp.sign(score[..., :, None] - score[..., None, :]))
    return (pairs * right).sum((-1, -2)) / pairs.sum()


def at_divergence(path: Path, values: Array, kl: Array) -> Array:
    """Return the values [S] of a path where it first has some KL divergences, [N], interpolated.

    Beyond the path's largest divergence it is the value there.
    """
    reached = jax.lax.cummax(path.kl)
    first = jnp.searchsorted(reached, kl).clip(1, len(reached) - 1)
    low, high = path.kl[first - 1], path.kl[first]
    share = ((kl - low) / jnp.where(high > low, high - low, 1)).clip(0, 1)
    return values[first - 1] + share * (values[first] - values[first - 1])


@struct
class Overoptimization:
    """Fitted curve gold(d) = gold(0) + d (alpha - beta log d) with d = sqrt(KL).

    r_squared: share of the variance that it explains.
    """

    alpha: Array
    beta: Array
    r_squared: Array


def fit_overoptimization(kl: Array, gold: Array) -> Overoptimization:
    """Fit the curve of over-optimization to points [S], the first of which is the reference's.

    Source: Gao et al., 2023, "Scaling laws for reward model overoptimization", section 1, their
    form for reinforcement learning, which Rafailov et al., 2024, "Scaling laws for reward model
    overoptimization in direct alignment algorithms", fit to direct alignment.
    """
    d = jnp.sqrt(jnp.maximum(kl, 0))
    gain = gold - gold[0]
    terms = jnp.stack([d, -d * jnp.log(jnp.where(d > 0, d, 1))], -1)
    found = jnp.linalg.lstsq(terms, gain)[0]
    left = ((gain - precise.matmul(terms, found)) ** 2).sum()
    total = ((gain - gain.mean()) ** 2).sum()
    return Overoptimization(found[0], found[1], 1 - left / jnp.where(total > 0, total, 1))


def _table(pair_loss: PairLoss, log_prob: Array, reference: Array) -> Array:
    """Return the loss of every pair of answers, [A, A], the preferred one first."""
    sides = [jnp.broadcast_arrays(x[:, None], x[None]) for x in (log_prob, reference)]
    (chosen, rejected), (first, second) = sides
    return pair_loss(chosen, rejected, first, second)
