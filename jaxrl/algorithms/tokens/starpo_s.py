"""StarPO-S (Wang et al., 2025, "RAGEN: understanding self-evolution in LLM agents via multi-turn
reinforcement learning", arXiv:2504.20073, section 3.3 and the authors' code): policy optimization
over whole trajectories of several turns, stabilized. An update plays groups of trajectories from
the same starts and learns from a share of the groups, those whose returns vary most; the critic is
a network of its own, the surrogate's upper clip is higher than the lower one, and there is no
divergence penalty.

    A[t] = sum_u (gamma lambda)^u (r[t + u] + gamma V[t + u + 1] - V[t + u])

over the agent's tokens of all turns, standardized over the groups that are kept. StarPO without the
S is `token_ppo` or `grpo` on conversations: all groups and the same clip on both sides. With
`advantage` = group the critic is left out, and returns are standardized in their group as in GRPO.

Reports what foretells a collapse (the "echo trap"): `return_deviation`, the mean deviation of
returns within all groups, beside entropy and gradient norm.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.dapo import dapo_loss
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check,
    copy_policy,
    estimate_advantages,
    judge_by_groups,
    on_answers,
    returns_of,
    unroll,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, ClippedHigher, Groups
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import INF, Optimizer

ADVANTAGES = ("critic", "group")


@group
class Config(ClippedHigher):
    """Settings of StarPO-S: PPO over trajectories of several turns, on the starts whose returns
    vary most (arXiv:2504.20073). The defaults are those of the authors' code."""

    groups: Groups = Groups(prompts=8, answers=16)
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0, weight_decay=0.01)
    critic: Optimizer = Optimizer(learning_rate=1e-5, max_grad_norm=1.0, weight_decay=0.01)
    """Optimizer settings of the critic."""
    advantage: str = static("critic", choices=ADVANTAGES)
    """Estimator of advantages: critic, of each token by a critic, or group, of whole trajectories
    by their group."""
    keep: float = static(0.25, above=0, high=1)
    """Share of the groups that are learned from, those whose returns vary most."""
    entropy_weight: float = hyper(0.001, low=0, log=True)
    """Weight of the entropy bonus."""
    discount: float = hyper(1.0, low=0, high=1)
    """Discount factor per token."""
    gae_lambda: float = hyper(1.0, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    value_clip: float = hyper(0.5, above=0, high=INF)
    """Clip range of value changes: beyond it a value gets no gradient."""


def judge_by_critic(net: Net, batch: Batch) -> dict[str, Array]:
    """Estimate generalized advantages by the critic, standardized over all decisions, and its value
    and target."""
    x = estimate_advantages(net, batch, "critic")
    advantage = losses.standardize(x.advantage, batch.mask)
    return {"advantage": advantage, "value": x.value, "target": x.target}


@loss("critic")
def critic_loss(net: Net, x: Sample) -> Array:
    """Compute the clipped squared error of the critic's values."""
    _, value = unroll(net.critic, net, x.timestep)
    return losses.clipped_squared_error(value, x.value, x.target, net.hyper.value_clip)


def recipe(env: Environment, config: Any) -> Recipe:
    answers = config.groups.answers
    if config.advantage == "group":
        whole = on_answers(
            env, config, judge_by_groups(losses.group_relative, answers), (dapo_loss,)
        )
    else:
        whole = on_answers(env, config, judge_by_critic, (dapo_loss, critic_loss))
        policy = whole.parts["actor_critic"]
        critic = Part(policy.network, policy.inputs, config.critic)
        parts = {**whole.parts, "critic": critic}
        whole = dataclasses.replace(whole, parts=parts, adopt=copy_policy("critic"))

    def update(net: Net, batch: Batch) -> Net:
        returns = returns_of(batch).reshape(-1, answers)
        kept = losses.high_variance_groups(returns, config.keep)
        assert batch.mask is not None  # `Recipe.needs`
        mask = batch.mask & jnp.repeat(kept, answers)
        net = whole.update(net, dataclasses.replace(batch, mask=mask))
        deviation = returns.std(-1)
        return net.report(
            return_deviation=deviation.mean(),
            kept_deviation=losses.masked_mean(deviation, kept),
        )

    return dataclasses.replace(whole, update=update)


starpo_s = AlgorithmBuilder("starpo_s", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"env": "guess_letter", "env_params": {"letters": 2, "turns": 2}}
TINY |= {"critic.eps": 0.01, "keep": 0.5}
