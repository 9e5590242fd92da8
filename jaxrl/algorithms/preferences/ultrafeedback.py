"""UltraFeedback (Cui et al., 2024, "UltraFeedback: boosting language models with high-quality
feedback", arXiv:2310.01377): a reward model learns from a dataset of answers by a pool of policies
of varied quality, which annotators rate along several aspects. Answers to one prompt become pairs
by their overall ratings (`jaxrl.sources.feedback`); otherwise the reward model is `reward_model`,
and learners from scores go on from it in the same way.

The paper's pool is of seventeen language models, and GPT-4 rates four aspects in numbers and words.
Here the pool is ref(y) exp(w r(y)) with the `qualities` w, over the uniform policy; the aspects are
the components of the environment's reward, and their ratings have normal noise. There are no
critiques in words, so no critique model. Environments must be small enough to enumerate.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.preferences import reward_model as of_pairs
from jaxrl.algorithms.preferences.shared.measures import all_answers, is_small, log_probs
from jaxrl.algorithms.preferences.shared.ratings import ratings_of
from jaxrl.algorithms.preferences.shared.reward_models import score_answers
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, LabeledPairs
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Environment, Key, Policy, Source
from jaxrl.exact.answers import best_of_n, optimal_answers
from jaxrl.exact.preference_flows import pair_accuracy
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static
from jaxrl.sources.feedback import feedback_pairs

CHOICES = 16  # answers of which the best is kept in `measure`


@group
class Rated(LabeledPairs):
    """Dataset of answers by a pool of policies, rated along aspects."""

    count: int = static(1024, low=1, high=MANY)
    """Number of prompts in the dataset."""
    answers: int = static(4, low=2, high=100)
    """Number of answers to each prompt, each by another policy of the pool."""
    qualities: tuple[float, ...] = static((-1.0, 0.0, 1.0, 2.0, 4.0), least_length=2)
    """Policies of the pool, each by the inverse temperature at which it follows the reward."""
    noise: float = static(0.5, low=0)
    """Standard deviation of a rating's noise, in standard deviations of an aspect."""

    def source(self, env: Environment) -> Source:
        """Return a source of batches of pairs of rated answers."""
        found = all_answers(env)
        return feedback_pairs(
            found.transitions,
            found.within,
            pool_of(env, self.qualities),
            aspects_of(env),
            self.count,
            self.batch_size,
            size=self.answers,
            noise=self.noise,
            num_shards=self.num_shards,
        )


@group
class Config(of_pairs.Config):
    """Settings of UltraFeedback: a reward model of rated answers by a pool of policies
    (arXiv:2310.01377)."""

    pairs: Rated = Rated()


def pool_of(env: Environment, qualities: tuple[float, ...]) -> Array:
    """Return the log-probabilities [M, P, A] of all answers by the policies of the pool."""
    found = all_answers(env)
    decisions = found.mask.sum(0).reshape(found.reward.shape)
    uniform = -decisions * jnp.log(float(env.action_space.n))  # type: ignore[union-attr]
    return jnp.stack([optimal_answers(w * found.reward, uniform, 1.0) for w in qualities])


def aspects_of(env: Environment) -> Array:
    """Return what is good about all answers, [C, P, A]: the parts of the reward by name, or the
    reward where it has none."""
    if not example_timestep(env).reward_components:
        return all_answers(env).reward[None]
    return jnp.stack([x for _, x in sorted(ratings_of(env).items())])


def recipe(env: Environment, config: Config) -> Recipe:
    plain = of_pairs.recipe(env, config)
    own = {"pool_accuracy": "accuracy of the pool's pairs", "best_of_16_gain": "gain of best of 16"}
    return dataclasses.replace(plain, scores={**plain.scores, **own})


def measure(env: Environment, config: Config, policy: Policy, key: Key) -> dict[str, Array]:
    """Return the exact measures of `reward_model`, and, as means over prompts and members,

    - `pool_accuracy`: share of pairs by two different policies of the pool in which the answer with
      the higher reward has the higher score, of pairs with different rewards;
    - `best_of_16_gain`: by how much the expected reward of the best of 16 answers of the policy, as
      the scores have it, exceeds that of one.
    """
    found, parts = all_answers(env), policy.state.parts
    scores = score_answers(env, config, parts, found)  # [M, P, A]
    pool = jnp.exp(pool_of(env, config.pairs.qualities))
    total = pool.sum(0)
    both = total[:, :, None] * total[:, None] - jnp.einsum("mpa,mpb->pab", pool, pool)
    better = found.reward[:, :, None] > found.reward[:, None]
    accuracy = jax.vmap(pair_accuracy, (1, 0))(scores, both * better)
    own = log_probs(env, config, parts["actor_critic"].params)
    best = jax.vmap(lambda score: best_of_n(own, score, CHOICES))(scores)
    gain = ((jnp.exp(best) - jnp.exp(own)) * found.reward).sum(-1)
    plain = of_pairs.measure(env, config, policy, key)
    return {**plain, "pool_accuracy": accuracy.mean(), "best_of_16_gain": gain.mean()}


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `reward_model`, for an environment with too many answers, and for fewer
    policies than answers."""
    of_pairs.check(env, config, name)
    if not is_small(env):
        raise UserError(f"{name} enumerates all answers; '{env.name}' has too many, or none.")
    own = config.pairs
    if own.answers > len(own.qualities):
        raise UserError(
            f"pairs.answers is {own.answers}, but pairs.qualities has {len(own.qualities)} "
            "policies; each answer to a prompt is by another one."
        )
    if own.flipped:
        raise UserError("Labels come from ratings; set pairs.noise instead of pairs.flipped.")


ultrafeedback = AlgorithmBuilder("ultrafeedback", Config, recipe, check=check, measure=measure)

TINY = SMALL_PAIRS | {"env": "ruled_words", "members": 2}
