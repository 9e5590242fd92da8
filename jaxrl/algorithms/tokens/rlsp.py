"""RLSP (Ye et al., 2025, "On the Emergence of Thinking in LLMs I: Searching for the Right
Intuition", arXiv:2502.06773): PPO for tokens in which exploration is paid for beside the outcome.

    r = alpha [right] + (1 - alpha) min(length / limit, 1), at the last token

The first step of the paper is supervised learning of texts that show a search (token_supervised,
with an expert that shows its failures); the second and third are this reward, in PPO with a critic.
The exploration reward is the paper's simplest, for more intermediate steps, counted in tokens; no
other is built. The paper's abstract was read, but not its formula: the form of the sum and the
default alpha are not confirmed.
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
from jaxrl.kit.groups import INF


@group
class Config(token_ppo.Config):
    """Settings of PPO for tokens with a reward for exploration (RLSP, arXiv:2502.06773)."""

    outcome_weight: float = hyper(0.8, low=0, high=1)
    """Weight of the outcome's reward (alpha); that of exploration has the rest."""
    limit: float = hyper(1024.0, above=0, high=INF)
    """Length in tokens from which a longer answer is paid no more for exploration."""


def explored_reward(net: Net, batch: Batch) -> Array:
    """Return the reward [B] of whole episodes [T, B], for their outcome and their length.

    batch: its mask marks the tokens that the policy wrote.
    """
    h = net.hyper
    assert batch.mask is not None
    right = metric_at_end(batch, "success")
    explored = jnp.minimum(batch.mask.sum(0) / h.limit, 1.0)
    return h.outcome_weight * right + (1 - h.outcome_weight) * explored


def recipe(env: Environment, config: Config) -> Recipe:
    return on_answers(env, config, judge, (ppo_loss,), kl_in_reward=True, score=explored_reward)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, and if `env` does not say which answers are right."""
    answers.check(env, config, name)
    check_metrics(env, name, "success")


rlsp = AlgorithmBuilder("rlsp", Config, recipe, check=check)

TINY = SMALL | {"prompts": 4, "answers": 2, "num_shards": 4}
TINY |= {"env": "countdown", "env_params": {"numbers": 2, "attempts": 2}, "limit": 10.0}
