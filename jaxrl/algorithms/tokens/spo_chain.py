"""SPO-chain (Guo et al., 2025, "Segment policy optimization: effective segment-level credit
assignment in RL for large language models", arXiv:2505.23564): PPO without a critic, with an
advantage for each segment of an answer. Segments hold equally many cutpoints, tokens that were
unlikely when they were chosen. What an answer is worth at the beginning of a segment is the mean
return of branches that are played on from there; a segment's advantage is by how much that changes
until the next. Only cutpoints are learned from.

As in the authors' code, advantages are standardized over the cutpoints of all answers, and the
penalty on the KL divergence, k3, is paid at cutpoints alone. There the reward is one of the whole
answer; here rewards before its end count too. The last segment of an answer with more cutpoints
than `points` segments have takes all that are left."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.grpo import grpo_loss
from jaxrl.algorithms.tokens.shared.answers import check, decisions, on_answers
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Clipped, Divergence, Groups
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, static
from jaxrl.kit.groups import Optimizer, Passes
from jaxrl.sources import with_branches


@group
class Branched(Groups):
    """Groups of answers to the same prompt, with branches from the beginnings of their segments."""

    prompts: int = static(64, low=1, high=MANY)
    """Number of prompts (P) in an update; each has one group of answers."""
    branches: int = static(9, low=1, high=MANY)
    """Number of branches from the beginning of a segment."""
    cutpoints: int = static(5, low=1, high=MANY)
    """Number of cutpoints in a segment."""
    points: int = static(8, low=1, high=MANY)
    """Largest number of segments of an answer. (The authors' code has no limit.)"""
    threshold: float = static(0.9, above=0, high=1)
    """Probability below which a token is a cutpoint."""

    def unlikely(self, log_prob: Array) -> Array:
        """Return which tokens were unlikely when they were chosen."""
        return losses.low_probability_mask(log_prob, self.threshold)

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes with branches from the first cutpoint of each
        segment."""

        def beginnings(batch: Batch) -> Array:
            t, mask = batch.transitions, batch.mask
            assert mask is not None
            cut = self.unlikely(t.extras["log_prob"]) & decisions(t.timestep, mask)
            return cut & ((jnp.cumsum(cut, 0) - 1) % self.cutpoints == 0)

        played = self.episodes(env, keep_states=True)
        return with_branches(played, env, beginnings, self.points, self.branches)


@group
class Config(Clipped):
    """Settings of SPO-chain: a clipped surrogate with Monte Carlo advantages of segments
    (arXiv:2505.23564). The defaults are those of the authors' code for GSM8K, which samples at a
    temperature of 0.6."""

    groups: Branched = Branched()
    passes: Passes = Passes(epochs=2, minibatches=8, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    kl: Divergence = Divergence(weight=0.0001)


def segment_advantages(cut: Array, value: Array, returns: Array, points: int) -> Array:
    """Return the advantage of each token's segment, [T, B]; 0 before the first segment.

    cut, value: [T, B], whether a segment begins at a token, and what the answer is worth before it.
    returns: [B]. points: the most segments.
    """
    segment = jnp.cumsum(cut, 0) - 1
    begins = losses.segment_sum(value, jnp.where(cut, segment, -1), points)
    begins = jnp.where(jnp.arange(points)[:, None] < cut.sum(0), begins, returns)
    return losses.segment_advantage(jnp.concatenate([begins, returns[None]]), segment)


def recipe(env: Environment, config: Config) -> Recipe:
    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        t, points = batch.transitions, config.groups.points
        assert batch.mask is not None
        each = segment_advantages(t.extras["cut"], t.extras["value"], t.reward.sum(0), points)
        counts = batch.mask & config.groups.unlikely(t.extras["log_prob"])
        return {"advantage": losses.standardize(each, counts)}

    learned = lambda x: config.groups.unlikely(x.log_prob)
    return on_answers(env, config, judge, (grpo_loss,), learned=learned)


spo_chain = AlgorithmBuilder("spo_chain", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"branches": 2, "cutpoints": 1, "points": 2}
