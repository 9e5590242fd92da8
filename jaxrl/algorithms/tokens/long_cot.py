"""PPO for long chains of thought (Yeo et al., 2025, "Demystifying Long Chain-of-Thought Reasoning
in LLMs", arXiv:2502.03373 and the authors' code): rewards that keep an answer's length in bounds.

An answer's reward at its end is a cosine of its length (appendix C.1), from 2 to 1 for right
answers, from -10 to 0 for wrong ones, and -10 from `limit` tokens on, so that right answers should
be short and wrong ones should have tried for longer. Each token of a repeated n-gram is paid a
penalty (appendix C.2). Both types of reward have a discount of their own, so that a penalty acts
where tokens are repeated and the outcome everywhere:

    G[t] = sum_i sum_k discount_i^k (r_i[t + k] - beta log(p / reference)[t + k] / 2)
    A[t] = G[t] - V[t]

which is generalized advantage estimation with lambda 1, the only one that the authors' code has for
several discounts. As there, half of the divergence penalty goes to each type, advantages are
standardized in the batch, and the critic is a network of its own with a clipped loss. Time between
two utterances of a conversation is discounted too.

The paper's other studies, of supervised data and of noisy verifiers, are left out.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.ppo_max import critic_loss, policy_loss
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import copy_policy, estimate_values, on_answers
from jaxrl.algorithms.tokens.shared.outcomes import (
    check_metrics,
    metric_at_end,
    place_at_last,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL, Clipped, Divergence
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.groups import INF, Optimizer


@group
class CosineReward:
    """Reward of an answer by its length: a cosine between a value for no tokens and one for the
    longest answers."""

    limit: float = hyper(16384.0, above=0, high=INF)
    """Length in tokens from which an answer is too long, whether or not it is right. The authors'
    context has 16,384."""
    right_short: float = hyper(2.0, low=-INF, high=INF)
    """Reward of a right answer, in the limit of no tokens."""
    right_long: float = hyper(1.0, low=-INF, high=INF)
    """Reward of a right answer, in the limit of the longest."""
    wrong_short: float = hyper(-10.0, low=-INF, high=INF)
    """Reward of a wrong answer, in the limit of no tokens."""
    wrong_long: float = hyper(0.0, low=-INF, high=INF)
    """Reward of a wrong answer, in the limit of the longest."""
    exceeded: float = hyper(-10.0, low=-INF, high=INF)
    """Reward of an answer that is too long."""


@group
class Config(Clipped):
    """Settings of PPO with rewards by length (arXiv:2502.03373). The defaults are those of the
    authors' code."""

    optimizer: Optimizer = Optimizer(learning_rate=5e-7, max_grad_norm=1.0, beta2=0.95)
    """Optimizer settings of the policy."""
    critic_optimizer: Optimizer = Optimizer(learning_rate=9e-6, max_grad_norm=1.0, beta2=0.95)
    """Optimizer settings of the critic."""
    kl: Divergence = Divergence(weight=0.01)
    length: CosineReward = CosineReward()
    ngram: int = static(40, low=1, high=MANY)
    """Number of tokens in an n-gram that should not be repeated."""
    repetition: float = hyper(-0.05, low=-INF, high=0)
    """Reward of each token of a repeated n-gram."""
    discount: float = hyper(1.0, low=0, high=1)
    """Discount factor per token of the reward by length."""
    repetition_discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per token of the reward for repetitions."""
    value_clip: float = hyper(0.2, above=0, high=INF)
    """Clip range of value changes: beyond it a value gets no gradient."""


def typed_rewards(net: Net, batch: Batch, ngram: int) -> Array:
    """Return the rewards of tokens by type, the outcome's and those of repetitions, [T, B, 2].

    batch: whole episodes [T, B]; its mask marks the tokens that the policy wrote.
    ngram: number of tokens in a repetition.
    """
    h, mask = net.hyper, batch.mask
    assert mask is not None
    outcome = losses.cosine_length_reward(
        metric_at_end(batch, "success") > 0,
        mask.sum(0),
        h.length.limit,
        (h.length.right_short, h.length.right_long),
        (h.length.wrong_short, h.length.wrong_long),
        h.length.exceeded,
    )
    repeated = losses.repeated_tokens(batch.transitions.action, ngram, mask)
    return jnp.stack([place_at_last(outcome, mask), h.repetition * repeated], -1)


def judge(net: Net, batch: Batch, ngram: int) -> dict[str, Array]:
    """Judge tokens by discounted rewards of both types; the batch's rewards are the divergence
    penalty alone."""
    t, h = batch.transitions, net.hyper
    reward = typed_rewards(net, batch, ngram) + t.reward[..., None] / 2
    discount = jnp.stack([h.discount, h.repetition_discount])
    returns = losses.multi_discount_returns(reward, discount, t.done, batch.mask)
    value, _ = estimate_values(net, batch, "critic")
    advantage = losses.standardize(returns - value, batch.mask)
    return {"advantage": advantage, "value": value, "target": returns}


def recipe(env: Environment, config: Config) -> Recipe:
    by_tokens = functools.partial(judge, ngram=config.ngram)
    both = (policy_loss, critic_loss)
    none = lambda net, batch: jnp.zeros(batch.mask.shape[1])  # `judge` pays what there is
    plain = on_answers(env, config, by_tokens, both, kl_in_reward=True, score=none)
    policy = plain.parts["actor_critic"]
    critic = Part(policy.network, policy.inputs, config.critic_optimizer)
    return dataclasses.replace(
        plain, parts={**plain.parts, "critic": critic}, adopt=copy_policy("critic")
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, and if `env` does not say which answers are right."""
    answers.check(env, config, name)
    check_metrics(env, name, "success")


long_cot = AlgorithmBuilder("long_cot", Config, recipe, check=check)

TINY = SMALL | {"prompts": 4, "answers": 2, "num_shards": 4, "critic_optimizer.eps": 0.01}
TINY |= {"env": "countdown", "env_params": {"numbers": 2, "attempts": 2}}
TINY |= {"limit": 10.0, "ngram": 3}
