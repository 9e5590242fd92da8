"""Answers by a pool of policies that annotators rate along several aspects, and pairs of them.

A record is a prompt with answers by policies of varied quality. Each answer has a rating for each
aspect, 1 to 5, and an overall one, their mean; two answers to one prompt are a pair, of which the
one with the higher overall rating is preferred.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import REPLICATED, Array, Batch, Key, Source, Transition, struct
from jaxrl.sources.rollouts import SPLIT, check_shards

LOWEST, HIGHEST = 1, 5  # ratings


@struct
class Feedback:
    """Rated answers to N prompts, k to each.

    prompt: int32 [N]. answer: place among all answers, int32 [N, k]. writer: policy of the pool,
    int32 [N, k]. ratings: by aspect, float32 [N, k, C], whole numbers from 1 to 5. overall: means
    over aspects, float32 [N, k].
    """

    prompt: Array
    answer: Array
    writer: Array
    ratings: Array
    overall: Array


@struct
class FeedbackPairs:
    """State of a dataset of pairs of rated answers.

    feedback: all records. batches: batches so far, int32. order: numbers of the pairs of a batch,
    split over devices, int32 [n].
    """

    feedback: Feedback
    batches: Array
    order: Array


def draw_feedback(
    key: Key, pool: Array, aspects: Array, count: int, size: int = 4, noise: float = 0.5
) -> Feedback:
    """Return rated answers to `count` (N) random prompts, `size` (k) to each by different policies.

    pool: log-probabilities [M, P, A] of all answers to P prompts by M policies. aspects: what is
    good about each answer, [C, P, A]. noise: standard deviation of a rating, in those of an aspect.

    A rating is 3, plus the aspect in standard deviations over the answers of the pool, plus noise,
    rounded and clipped to 1 ... 5. Source: Cui et al., 2024, "UltraFeedback: boosting language
    models with high-quality feedback", arXiv:2310.01377: four completions to each instruction by
    models of a pool, four aspects rated from 1 to 5 by GPT-4. Raises `UserError` for more answers
    to a prompt than policies, or fewer than two.
    """
    policies, prompts, _ = pool.shape
    if not 2 <= size <= policies:
        raise UserError(
            f"There are {policies} policies and {size} answers to each prompt; there must be at "
            "least 2 answers, each by a policy of its own."
        )
    prompt_key, writer_key, answer_key, noise_key = jax.random.split(key, 4)
    prompt = jax.random.randint(prompt_key, (count,), 0, prompts)
    choose = lambda key: jax.random.permutation(key, policies)[:size]
    writer = jax.vmap(choose)(jax.random.split(writer_key, count))
    answer = jax.random.categorical(answer_key, pool[writer, prompt[:, None]])
    share = jnp.exp(pool).mean(0) / prompts
    mean = (share * aspects).sum((1, 2))
    deviation = jnp.sqrt((share * (aspects - mean[:, None, None]) ** 2).sum((1, 2)))
    of_answers = jnp.moveaxis(aspects, 0, -1)[prompt[:, None], answer]  # [N, k, C]
    standard = (of_answers - mean) / jnp.where(deviation > 0, deviation, 1)
    drawn = 3 + standard + noise * jax.random.normal(noise_key, standard.shape)
    ratings = jnp.clip(jnp.round(drawn), LOWEST, HIGHEST)
    return Feedback(prompt, answer, writer, ratings, ratings.mean(-1))


def draw_pairs(key: Key, feedback: Feedback, count: int) -> tuple[Array, Array, Array]:
    """Draw pairs of answers with different overall ratings: prompts [count], and the preferred and
    the other answer, int32 [count]."""
    size = feedback.answer.shape[1]
    better = feedback.overall[:, :, None] > feedback.overall[:, None]  # [N, k, k]
    drawn = jax.random.categorical(
        key, jnp.where(better.reshape(-1), 0.0, -jnp.inf), shape=(count,)
    )
    record, first, second = drawn // size**2, drawn // size % size, drawn % size
    chosen, rejected = feedback.answer[record, first], feedback.answer[record, second]
    return feedback.prompt[record], chosen, rejected


def feedback_pairs(
    transitions: Transition,
    within: Array,
    pool: Array,
    aspects: Array,
    count: int,
    batch_size: int,
    *,
    size: int = 4,
    noise: float = 0.5,
    num_shards: int = 1,
) -> Source:
    """Draw batches of `batch_size` (n) pairs of rated answers from a dataset that is drawn once.

    transitions: episodes of all A answers to P prompts, [T, P * A], those to a prompt side by side.
    within: which steps belong to an episode, bool [T, P * A]; see `exact.answers.Answers`.
    pool, aspects, count, size, noise: as in `draw_feedback`.

    A batch of pairs is as in `sources.pairs`: whole episodes [T, 2 n], the preferred one first. No
    environment is played: batches count as environment steps, as in `dataset`. Raises `UserError`
    as `draw_feedback`, and for sizes that do not fit.
    """
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {batch_size}.")
    if noise < 0:
        raise UserError(f"noise is a standard deviation, at least 0; got {noise:g}.")
    check_shards(num_shards, batch_size=batch_size)
    answers = pool.shape[-1]

    def init(key, hyper, policy):
        feedback = draw_feedback(key, pool, aspects, count, size, noise)
        return FeedbackPairs(feedback, jnp.int32(0), jnp.arange(batch_size))

    def collect(state, policy, key):
        batches = state.batches + 1
        return dataclasses.replace(state, batches=batches), batches.astype(jnp.float32), {}

    def sample(state, fresh, key):
        drawn = draw_pairs(key, state.feedback, batch_size)
        prompt, chosen, rejected = (x[state.order] for x in drawn)
        columns = (prompt[:, None] * answers + jnp.stack([chosen, rejected], -1)).reshape(-1)
        read = lambda x: x[:, columns]
        episodes, mask = jax.tree.map(read, (transitions, within))
        return Batch(episodes, fresh, mask=mask)

    return Source(
        "feedback_pairs",
        init,
        collect,
        sample,
        env_steps=1,
        partition=FeedbackPairs(REPLICATED, REPLICATED, SPLIT),
    )
