"""The score of the policy that one would choose after a number of evaluations."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Key


def bandit_selection(
    key: Key,
    scores: Array,
    evaluations: int,
    *,
    policies: int | None = None,
    trials: int = 1_000,
    alpha: float = 2.0,
) -> Array:
    """Mean score [trials, evaluations] of the policy that is chosen after each evaluation.

    Offline learning leaves several policies (of hyperparameters, seeds or checkpoints), of which
    only episodes in the environment tell the best. A trial plays one episode after the other, each
    of the policy with the highest upper confidence bound, mean + sqrt(alpha log t / n), where n of
    the t - 1 episodes so far were its own, and ties are broken at random; after each it chooses the
    policy with the best mean so far. The score of the chosen policy is its mean over all
    episodes. So column k says what learning with tuning earns someone who can afford k
    episodes, where the best of all policies, known only in hindsight, says too much.

    scores: [P, E], E episodes of each of P policies, of which a trial draws with replacement.
        Normalize them to about [0, 1], the unit of the bound.
    evaluations: number of episodes in a trial.
    policies: number of policies that each trial may choose from, drawn without replacement; all by
        default.
    alpha: weight of the exploration bonus; the authors' code has 2.

    Raises `UserError` for scores that are no such array, and numbers below 1 or above P.
    Source: Jackson et al. (2025), "A Clean Slate for Offline Reinforcement Learning",
    arXiv:2504.11453. Differs from the authors' code, where a policy without episodes counts as one
    with a mean of 0, and so can be chosen.

    Example: `bandit_selection(jaxrl.key(0), scores, 50).mean(0)`
    """
    scores = jnp.asarray(scores)
    if scores.ndim != 2 or 0 in scores.shape:
        raise UserError(f"Scores have the shape {list(scores.shape)}; they must be [P, E].")
    count = len(scores) if policies is None else policies
    if not 1 <= count <= len(scores):
        raise UserError(f"policies is {count}; it must be between 1 and {len(scores)}.")
    for name, value in (("evaluations", evaluations), ("trials", trials)):
        if value < 1:
            raise UserError(f"{name} is {value}; it must be at least 1.")
    return _trials(key, scores, alpha, evaluations, count, trials)


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def _trials(
    key: Key, scores: Array, alpha: float, evaluations: int, policies: int, trials: int
) -> Array:
    def trial(key):
        chosen, pulls = jax.random.split(key)
        rows = jax.random.permutation(chosen, len(scores))[:policies]
        mine = scores[rows]
        truth = mine.mean(1)

        def pull(carry, key):
            counts, totals = carry
            ties, episode = jax.random.split(key)
            pulled = counts > 0
            mean = jnp.where(pulled, totals / jnp.maximum(counts, 1), 0.0)
            bonus = jnp.sqrt(alpha * jnp.log(counts.sum() + 1.0) / jnp.maximum(counts, 1))
            bound = jnp.where(pulled, mean + bonus, jnp.inf)
            order = jax.random.uniform(ties, bound.shape)
            arm = jnp.argmax(jnp.where(bound == bound.max(), order, -1.0))
            score = mine[arm, jax.random.randint(episode, (), 0, mine.shape[1])]
            counts, totals = counts.at[arm].add(1), totals.at[arm].add(score)
            best = jnp.argmax(jnp.where(counts > 0, totals / jnp.maximum(counts, 1), -jnp.inf))
            return (counts, totals), truth[best]

        start = (jnp.zeros(policies, jnp.int32), jnp.zeros(policies, scores.dtype))
        return lax.scan(pull, start, jax.random.split(pulls, evaluations))[1]

    return jax.vmap(trial)(jax.random.split(key, trials))
