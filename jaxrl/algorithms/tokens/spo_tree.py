"""SPO-tree (Guo et al., 2025, "Segment policy optimization: effective segment-level credit
assignment in RL for large language models", arXiv:2505.23564): SPO whose segments are the edges of
trees. A prompt has a tree of answers, which part after equally many tokens; what a node is worth is
the mean return of the answers below it, and a segment's advantage is by how much the node at its
end is worth more than the one at its beginning. So all answers count for the values, and all
segments are learned from, without branches that are thrown away. Only unlikely tokens are learned.

As in the authors' code, segments without an advantage are left out, and advantages are standardized
over the tokens that are learned; their code also keeps segments for up to 8 iterations, of which it
learns at most 32 of a prompt at a time, where all are learned at once here."""

from __future__ import annotations

import math

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.grpo import grpo_loss
from jaxrl.algorithms.tokens.shared.answers import check, on_answers
from jaxrl.algorithms.tokens.shared.settings import SMALL, Divergence, Groups, Tokens
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.groups import INF, Optimizer, Passes
from jaxrl.sources import as_trees


@group
class Trees:
    """Trees of answers, one for each prompt."""

    prompts: int = static(16, low=1, high=MANY)
    """Number of prompts (P) in an update; each has one tree of answers."""
    branching: tuple[int, ...] = static((6, 6, 6), low=1, least_length=1)
    """Number of continuations of each node, level by level from the prompt on."""
    segment: int = static(100, low=1, high=MANY)
    """Number of tokens of a segment; the last one goes on to the answer's end."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the trees: the most devices that can share a run."""

    @property
    def answers(self) -> int:
        """Number of answers (L) in a tree."""
        return math.prod(self.branching)

    @property
    def num_envs(self) -> int:
        """Number of episodes in an update."""
        return self.prompts * self.answers

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes, with those of a tree adjacent."""
        played = Groups(self.prompts, self.answers, self.num_shards).source(env)
        return as_trees(played, self.branching, self.segment)


@group
class Config(Tokens):
    """Settings of SPO-tree: a clipped surrogate with the advantages of a tree's edges
    (arXiv:2505.23564). The defaults are those of the authors' code for MATH, whose minibatches are
    of segments instead of answers."""

    groups: Trees = Trees()
    passes: Passes = Passes(epochs=1, minibatches=8, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    clip: float = hyper(0.2, above=0, high=INF)
    """Clip range of the probability ratio around 1."""
    kl: Divergence = Divergence(weight=0.0001)
    threshold: float = hyper(0.9, above=0, high=1)
    """Probability below which a token is learned."""


def edge_advantages(returns: Array, level: Array, branching: tuple[int, ...]) -> Array:
    """Return the advantage of the segment of each step, [T, B].

    returns: of the paths of trees, [B], those of a tree side by side. level: int32 [T, B], the
        segment of each step. branching: as in `as_trees`, of D levels.
    """
    values = []  # before the first segment, after each of them
    for number in range(len(branching) + 1):
        nodes = returns.reshape(-1, math.prod(branching[number:]))
        values.append(jnp.broadcast_to(nodes.mean(-1, keepdims=True), nodes.shape).reshape(-1))
    return losses.segment_advantage(jnp.stack(values), level)


def recipe(env: Environment, config: Config) -> Recipe:
    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        t, threshold = batch.transitions, net.hyper.threshold
        assert batch.mask is not None
        each = edge_advantages(t.reward.sum(0), t.extras["level"], config.groups.branching)
        unlikely = losses.low_probability_mask(t.extras["log_prob"], threshold)
        learned = batch.mask & t.extras["leads"] & unlikely & (jnp.abs(each) > 1e-6)
        target = learned.astype(each.dtype)
        return {"advantage": losses.standardize(each, learned), "target": target}

    return on_answers(env, config, judge, (grpo_loss,), learned=lambda x: x.target > 0)


spo_tree = AlgorithmBuilder("spo_tree", Config, recipe, check=check)

TINY = SMALL | {"env": "judged_words", "prompts": 4, "num_shards": 4}
TINY |= {"branching": (2, 2), "segment": 1}
