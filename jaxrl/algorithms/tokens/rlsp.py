"""RLSP (Ye et al., 2025, "On the Emergence of Thinking in LLMs I: Searching for the Right
Intuition", arXiv:2502.06773): PPO for tokens in which exploration is paid for beside the outcome.

    r = [right] - c / length, at the last token

The first step of the paper is supervised learning of texts that show a search (token_supervised,
with an expert that shows its failures); the second and third are this reward, in PPO with a critic.
The reward for exploration is the paper's simplest, for longer reasoning, as in the authors' code.
There the length is that of the text before the answer, a fourth of its characters, and an answer in
no box costs 0.5; here it is that of all tokens that were written. Their second reward for
exploration, by a language model that grades effort and creativity, is not built.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl.algorithms.tokens import token_ppo
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import on_answers
from jaxrl.algorithms.tokens.shared.outcomes import check_metrics, metric_at_end
from jaxrl.algorithms.tokens.shared.settings import SMALL
from jaxrl.algorithms.tokens.token_ppo import judge, ppo_loss
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper


@group
class Config(token_ppo.Config):
    """Settings of PPO for tokens with a reward for exploration (RLSP, arXiv:2502.06773)."""

    length_penalty: float = hyper(1000.0, low=0)
    """Number of tokens (c) of an answer that loses a reward of 1; a longer one loses less."""


def explored_reward(net: Net, batch: Batch) -> Array:
    """Return the reward [B] of whole episodes [T, B], for their outcome and their length.

    batch: its mask marks the tokens that the policy wrote.
    """
    assert batch.mask is not None
    length = jnp.maximum(batch.mask.sum(0), 1)
    return metric_at_end(batch, "success") - net.hyper.length_penalty / length


def recipe(env: Environment, config: Config) -> Recipe:
    return on_answers(env, config, judge, (ppo_loss,), kl_in_reward=True, score=explored_reward)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, and if `env` does not say which answers are right."""
    answers.check(env, config, name)
    check_metrics(env, name, "success")


rlsp = AlgorithmBuilder("rlsp", Config, recipe, check=check)

TINY = SMALL | {"prompts": 4, "answers": 2, "num_shards": 4}
TINY |= {"env": "countdown", "env_params": {"numbers": 2, "attempts": 2}, "length_penalty": 3.0}
