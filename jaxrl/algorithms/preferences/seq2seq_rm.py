"""RLHF by language feedback (Zhou et al., 2024, "Sequence to Sequence Reward Modeling: Improving
RLHF by Language Feedback", arXiv:2409.00162): PPO on rewards of tokens, which are what a reward
model that writes (`seq2seq_reward_model`) would write differently. A token is paid for as long as
the answer is the one that the model writes after it has read it; from the first token that is not,
each token that the model would replace costs (`correctors.token_feedback`).

It goes on from a run of `seq2seq_reward_model`, which it leaves as it is; policy and reference
begin as the policy that wrote the pairs. The model's answers are greedy. The sizes of the two
rewards were not confirmed; here both are 1.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.preferences.shared.correctors import (
    corrector_of,
    corrector_part,
    feedback_of,
)
from jaxrl.algorithms.preferences.shared.measures import exact_scores, measure_return
from jaxrl.algorithms.preferences.shared.reward_models import PART, reading_of, with_reward
from jaxrl.algorithms.preferences.shared.settings import SMALL_PLAYED
from jaxrl.algorithms.tokens import token_ppo as of_ppo
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.settings import Divergence
from jaxrl.algorithms.tokens.token_ppo import Config as PPOConfig
from jaxrl.algorithms.tokens.token_ppo import token_ppo
from jaxrl.core.types import Array, Batch, Environment, Tree
from jaxrl.kit import Net, Recipe, group, hyper
from jaxrl.kit.state import State, Trained


@group
class Feedback:
    """Rewards of tokens by what a reward model would write."""

    positive: float = hyper(1.0, low=0)
    """Reward of a token before the first that the reward model would not write."""
    negative: float = hyper(1.0, low=0)
    """Cost of each token that the reward model would replace, from the first one on."""


@group
class Config(PPOConfig):
    """Settings of RLHF by language feedback: PPO on what a reward model would write differently
    (arXiv:2409.00162)."""

    feedback: Feedback = Feedback()
    kl: Divergence = Divergence(weight=0.01)
    """Penalty on the KL divergence from the reference policy. (The paper's was not confirmed.)"""


def begin_from_writer(recipe: Recipe, state: State, other: Tree) -> Tree:
    """Go on from a reward model: policy and reference begin as the policy that wrote its pairs."""
    if not isinstance(other, State) or PART not in other.parts:
        return other  # which will not fit
    if other.parts["actor_critic"].target is not None:  # it learned from feedback itself
        return recipe.adopt(state, other)
    copy = functools.partial(jax.tree.map, jnp.copy)

    def begin(name: str, own: Trained) -> Trained:
        params = other.parts[name].params
        target = None if own.target is None else copy(params)
        return dataclasses.replace(own, params=copy(params), target=target)

    parts = {name: begin(name, own) for name, own in state.parts.items()}
    return dataclasses.replace(state, parts=parts)


def recipe(env: Environment, config: Config) -> Recipe:
    plain = of_ppo.recipe(env, config)

    def reward(net: Net, batch: Batch) -> tuple[Array, dict[str, Array]]:
        assert batch.mask is not None
        h = net.hyper.feedback
        paid = feedback_of(net, reading_of(batch), batch.mask, h.positive, h.negative)
        kept = jnp.where(batch.mask & (paid < 0), 1.0, 0.0).sum(0)
        return paid, {"replaced_tokens": kept.mean()}

    paid = with_reward(plain, reward)
    parts = {**paid.parts, PART: corrector_part(env, config)}
    adopt = functools.partial(begin_from_writer, plain)
    scores = {**paid.scores, **exact_scores(env)}
    return dataclasses.replace(paid, parts=parts, adopt=adopt, scores=scores)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, and for an environment without texts of tokens."""
    answers.check(env, config, name)
    corrector_of(env, config)


seq2seq_rm = token_ppo.variant(
    "seq2seq_rm",
    Config=Config,
    recipe=recipe,
    check=check,
    measure=measure_return,
    goes_on_from="seq2seq_reward_model",
)

TINY = SMALL_PLAYED | {"answers": 2}
