"""Kimi k1.5's policy optimization (Kimi team, 2025, "Kimi k1.5: scaling reinforcement learning with
LLMs", arXiv:2501.12599, section 2.3.2): online mirror descent. In each iteration the log-ratio of
an answer to the policy that wrote it, times a temperature, is regressed on its reward less the mean
of its group; the optimum is that policy times exp(reward / temperature). The optimizer begins anew
in each iteration, since the policy to stay near is another one. The length penalty (section 2.3.3)
favors the short answers of a group. Curriculum, prioritized prompts and partial rollouts are left
out."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Judge,
    answer_output,
    check,
    evaluate,
    on_answers,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Grouped
from jaxrl.core.types import Batch, Environment
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
)
from jaxrl.kit.groups import Passes


@group
class Config(Grouped):
    """Settings of Kimi k1.5's online mirror descent (arXiv:2501.12599, section 2.3)."""

    passes: Passes = Passes(epochs=1, minibatches=4, chunk_rows=0)
    temperature: float = hyper(1.0, above=0, log=True)
    """Cost of leaving the policy of the last iteration, tau."""
    length_weight: float = hyper(0.0, low=0)
    """Weight of the length penalty, which is added to the reward of an answer."""


def judge_by_length_too(answers: int) -> Judge:
    """Return a function that judges an answer by its return and its length, less the group's mean;
    right answers have a positive return."""

    def judge(net, batch):
        reward = batch.transitions.reward
        returns = reward.sum(0).reshape(-1, answers)
        length = batch.mask.sum(0).reshape(-1, answers)
        total = returns + net.hyper.length_weight * losses.length_penalty(returns > 0, length)
        each = losses.group_relative(total, normalize=False).reshape(-1)
        return {"advantage": jnp.broadcast_to(each, reward.shape)}

    return judge


@loss("actor_critic", name="loss", unit=SEQUENCE)
def mirror_descent_loss(net: Net, x: Minibatch) -> LossOutput:
    """Compute the squared error of each answer's log-ratio (equation 3)."""
    now = evaluate(net, x.x)
    ours, theirs = (losses.sequence_log_prob(y, x.mask) for y in (now.log_prob, x.x.log_prob))
    advantage, temperature = x.x.advantage[0], net.hyper.temperature  # the same for all tokens
    error = jnp.square(advantage - temperature * (ours - theirs))
    return answer_output(net, x, now, error)


def recipe(env: Environment, config: Config) -> Recipe:
    judge = judge_by_length_too(config.groups.answers)
    recipe = on_answers(env, config, judge, (mirror_descent_loss,))

    def update(net: Net, batch: Batch) -> Net:
        begun = net.restart(actor_critic=net.parts["actor_critic"].params)
        return recipe.update(begun, batch)

    return dataclasses.replace(recipe, update=update)


kimi_k1_5 = AlgorithmBuilder("kimi_k1_5", Config, recipe, check=check)

TINY = SMALL_GROUPS
