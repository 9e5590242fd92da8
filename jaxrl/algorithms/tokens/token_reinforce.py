"""REINFORCE (Williams, 1992) for tokens: the policy gradient with returns of whole answers,
without a baseline. As in Ahmadian et al., 2024, arXiv:2402.14740, a whole answer is one action: its
log-probability is the sum of its tokens', and the divergence penalty is subtracted from its
reward."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.algorithms.tokens.shared.answers import check, on_answers, returns_of
from jaxrl.algorithms.tokens.shared.policy_gradient import policy_gradient_loss
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, WholeAnswers
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group


@group
class Config(WholeAnswers):
    """Settings of REINFORCE for tokens: the policy gradient of whole answers, without a baseline
    (Williams, 1992)."""


def judge_by_return(net: Net, batch: Batch) -> dict[str, Array]:
    """Judge each answer by its own return."""
    return {"advantage": jnp.broadcast_to(returns_of(batch), batch.transitions.reward.shape)}


def recipe(env: Environment, config: Config) -> Recipe:
    return on_answers(env, config, judge_by_return, (policy_gradient_loss,), kl_in_reward=True)


token_reinforce = AlgorithmBuilder("token_reinforce", Config, recipe, check=check)

TINY = SMALL_GROUPS
