"""RRHF (Yuan et al., 2023, "RRHF: rank responses to align language models with human feedback
without tears", arXiv:2304.05302), as in Duan et al., 2023, "Leveraging reinforcement learning and
large language models for code optimization", arXiv:2312.05657, which learns faster programs from
unit tests and run times. The policy writes some answers to each prompt, and its log-probabilities
per token, p_i, are ranked in the order of their rewards, beside likelihood of the best answer:

    sum_{i, j: r_i < r_j} max(0, p_i - p_j) - log pi(y_best)

No critic and no reference is needed. Answers are written anew in every update, by the policy alone;
the first paper also ranks answers by people and other models."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import Sample, evaluate, on_episodes, returns_of
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Grouped, Groups
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, Environment
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    Unit,
    group,
    hyper,
    loss,
)
from jaxrl.kit.groups import Optimizer


@group
class Config(Grouped):
    """Settings of RRHF: rank the likelihoods of answers in the order of their rewards
    (arXiv:2304.05302)."""

    groups: Groups = Groups(answers=4)
    optimizer: Optimizer = Optimizer(learning_rate=2e-5, max_grad_norm=1.0)
    """Optimizer settings. (Small networks need larger steps.)"""
    best_weight: float = hyper(1.0, low=0)
    """Weight of the likelihood of the best answer. 1: the paper, for sums over its tokens."""


def recipe(env: Environment, config: Config) -> Recipe:
    size = config.groups.answers

    @loss("actor_critic", name="loss", unit=Unit(sequences=True, columns=size))
    def rrhf_loss(net: Net, x: Minibatch) -> LossOutput:
        """Compute the loss of each group, less an entropy bonus."""
        sample, mask = x.x, x.mask
        assert mask is not None
        now = evaluate(net, sample, as_sampled=False)
        by_group = lambda y: y.reshape(-1, size)
        log_prob = by_group(losses.sequence_log_prob(now.log_prob, mask))
        length, reward = by_group(mask.sum(0)), by_group(sample.advantage[0])
        there = length > 0
        both = losses.rrhf(log_prob, length, reward, there)
        best = jnp.argmax(jnp.where(there, reward, -jnp.inf), -1)
        likelihood = -jnp.take_along_axis(log_prob, best[:, None], -1)[:, 0]
        value = both + (net.hyper.best_weight - 1) * likelihood
        entropy = by_group(losses.sequence_log_prob(now.entropy, mask, normalize=True)).mean(-1)
        metrics = {
            "policy_loss": value,
            "ranking_loss": both - likelihood,
            "entropy": entropy,
            "best": reward.max(-1),
        }
        return LossOutput(value - net.hyper.entropy_weight * entropy, metrics)

    def prepare(net: Net, batch: Batch, x: Sample) -> Sample:
        returns = jnp.broadcast_to(returns_of(batch), batch.transitions.reward.shape)
        return Sample(x.timestep, x.action, advantage=returns)

    return on_episodes(env, config, (rrhf_loss,), prepare)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, for groups of one, and if early stopping is on."""
    size = config.groups.answers
    if size < 2:
        raise UserError(f"groups.answers is {size}; {name} needs at least 2 answers to rank.")
    if config.passes.early_stop:
        raise UserError(f"{name} cannot stop early; leave passes.early_stop off.")
    answers.check(env, config, name, Unit(sequences=True, columns=size))


rrhf = AlgorithmBuilder("rrhf", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"prompts": 8}
