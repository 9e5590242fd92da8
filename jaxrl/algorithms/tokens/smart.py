"""SMART (Liu et al., 2024, "SMART: Self-learning Meta-strategy Agent for Reasoning Tasks",
arXiv:2410.16128): rounds in which a policy learns to begin with the strategy that refinement would
have found. The choice of a strategy is a decision process: an attempt by a strategy is right, or
another attempt follows with the failed ones in sight. Where an attempt is right, its strategy is
learned by likelihood as the first one, before any attempt; texts without a right attempt are left
out. Later attempts are not learned. After training, one attempt is enough.

The strategy of an attempt is the first token of an utterance, and an attempt is right if it has a
reward above 0. Without `refine` texts whose first attempt failed are left out too, which is expert
iteration on the first token. The likeliest first strategy is what the rounds improve: samples keep
a share of strategies that solve only what the best one fails at. How the paper weighs samples and
stays near earlier policies is not confirmed; nothing of the kind is here.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import turns
from jaxrl.algorithms.tokens.shared.answers import Sample, decisions, on_episodes
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.algorithms.tokens.token_supervised import cloning_loss
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group
from jaxrl.kit.groups import Episodes, Optimizer, Passes


@group
class Config(Tokens):
    """Settings of SMART: likelihood of the strategies that were right, as first ones
    (arXiv:2410.16128)."""

    attempts: Episodes = Episodes(num_envs=256)
    passes: Passes = Passes(epochs=2, minibatches=2, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=1e-5, max_grad_norm=1.0)
    """Optimizer settings. (Small networks need larger steps.)"""
    refine: bool = True
    """Learn the strategies of later attempts too, as the first ones of their texts."""


def first_tokens(turn: Array) -> Array:
    """Return which tokens begin an utterance, bool [T, B].

    turn: int32 [T, B], the utterance of each token that the policy wrote; -1 at others.
    """
    reached = jax.lax.cummax(turn)
    before = jnp.concatenate([jnp.full_like(turn[:1], -1), reached[:-1]])
    return turn > before


def right_strategies(turn: Array, action: Array, reward: Array) -> tuple[Array, Array]:
    """Return the strategy of the first right attempt of each text, and the attempt's number, int32
    [B]; the latter is -1 for texts without a right attempt.

    turn: as in `first_tokens`. action, reward: [T, B].
    """
    begins = first_tokens(turn)
    paid = losses.segment_sum(jnp.where(turn >= 0, reward, 0.0), turn, len(turn))
    right = paid > 0
    number = jnp.where(right.any(0), jnp.argmax(right, 0), -1)
    strategy = jnp.where(begins & (turn == number), action, 0).sum(0)
    return strategy, number


def recipe(env: Environment, config: Config) -> Recipe:
    def prepare(net: Net, batch: Batch, x: Sample) -> Sample:
        t, mask = batch.transitions, batch.mask
        assert mask is not None  # `Recipe.needs`
        turn = jnp.where(decisions(t.timestep, mask), t.timestep.tokens["turn"], -1)
        strategy, number = right_strategies(turn, t.action, t.reward)
        solved = (number >= 0) if config.refine else number == 0
        begins = first_tokens(turn) & (turn == 0)
        action = jnp.where(begins, strategy, x.action)
        return Sample(x.timestep, action, advantage=(begins & solved).astype(jnp.float32))

    return on_episodes(env, config, (cloning_loss,), prepare, learned=lambda x: x.advantage > 0)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `turns.check`, and if early stopping is on."""
    if config.passes.early_stop:
        raise UserError(f"{name} cannot stop early; leave passes.early_stop off.")
    turns.check(env, config, name)


smart = AlgorithmBuilder("smart", Config, recipe, check=check)

TINY = SMALL | {"env": "strategies", "num_envs": 8, "num_shards": 4}
