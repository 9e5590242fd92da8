"""PPO-max (Zheng et al., 2023, "Secrets of RLHF in large language models part I: PPO",
arXiv:2307.04964, section 5.4): PPO for tokens with what they found to keep it stable.

An answer's return is put on a known scale by the mean and the deviation of all returns so far, and
clipped; what leaving the reference costs is taken off each token's reward. The critic is a network
of its own, with a step size of its own; for `critic_steps` it learns alone, and its loss is clipped
around its old values. Gradients are clipped by their norms, of policy and critic apart.

Their critic begins as the reward model. Here rewards are the environment's, whatever model they
come from: in a warm start from a policy without such a critic, it begins as that policy's network.
Their loss of language modeling on other texts, off in their runs, is not here.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import (
    estimate_advantages,
    policy_network,
)
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check,
    evaluate,
    on_answers,
    token_output,
    unroll,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Clipped, Divergence
from jaxrl.core import trees
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss
from jaxrl.kit.groups import INF, Optimizer
from jaxrl.kit.normalization import add, no_moments
from jaxrl.kit.state import State


@group
class Config(Clipped):
    """Settings of PPO-max. Numbers are the defaults of the authors' code."""

    optimizer: Optimizer = Optimizer(learning_rate=5e-7, max_grad_norm=1.0, beta2=0.95, eps=1e-6)
    """Of the policy. Without the warm-up of 500 steps, and the decay by the root after it."""
    critic_optimizer: Optimizer = Optimizer(learning_rate=1.5e-6, max_grad_norm=1.0, beta2=0.95)
    """Of the critic."""
    kl: Divergence = Divergence(weight=0.02)
    discount: float = hyper(1.0, low=0, high=1)
    """Gamma, per token."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    score_clip: float = hyper(10.0, above=0, high=INF)
    """How many deviations from the mean an answer's return counts at most."""
    value_clip: float = hyper(0.2, above=0, high=INF)
    """How far a value may move from its old one before its gradient stops."""
    critic_steps: float = hyper(0.0, low=0)
    """Environment steps at the beginning in which the critic learns and the policy stays."""


def score(net: Net, returns: Array) -> Array:
    """Return what answers of these returns [B] earn."""
    seen = net.extra
    return losses.clipped_reward(returns, seen.mean, seen.deviation, net.hyper.score_clip)


def judge(net: Net, batch: Batch) -> dict[str, Array]:
    """Estimate generalized advantages by the critic, not standardized, and its value and target."""
    x = estimate_advantages(net, batch, "critic")
    return {"advantage": x.advantage, "value": x.value, "target": x.target}


@loss("actor_critic", name="loss")
def policy_loss(net: Net, x: Sample) -> LossOutput:
    """Compute PPO's clipped surrogate, less an entropy bonus."""
    now = evaluate(net, x)
    surrogate = losses.clipped_surrogate(now.log_prob, x.log_prob, x.advantage, net.hyper.clip)
    return token_output(net, x, now, surrogate)


@loss("critic")
def critic_loss(net: Net, x: Sample) -> Array:
    """Compute the clipped squared error of the critic's values."""
    _, value = unroll(net.critic, net, x.timestep)
    return losses.clipped_squared_error(value, x.value, x.target, net.hyper.value_clip)


def adopt(own: State, other: State) -> State:
    """Take over a policy without a critic of its own: its network is the critic's too."""
    policy = getattr(other, "parts", {}).get("actor_critic")
    if policy is None or "critic" in other.parts:
        return other
    params = jax.tree.map(jnp.copy, policy.params)  # a buffer that is given away is given once
    critic = dataclasses.replace(own.parts["critic"], params=params)
    return dataclasses.replace(other, parts=other.parts | {"critic": critic}, extra=own.extra)


def recipe(env: Environment, config: Config) -> Recipe:
    both = (policy_loss, critic_loss)
    plain = on_answers(env, config, judge, both, kl_in_reward=True, score=score)
    network = policy_network(env, config.torso, config.memory)
    critic = Part(network, plain.parts["actor_critic"].inputs, config.critic_optimizer)

    def update(net, batch):
        returns = jnp.where(batch.mask, batch.transitions.reward, 0.0).sum(0)
        net = net.replace(extra=add(net.extra, returns))
        begun, learned = net.parts["actor_critic"], plain.update(net, batch)
        early = net.env_steps < net.hyper.critic_steps
        stays = trees.where(early, begun, learned.parts["actor_critic"])
        return learned.replace(parts=learned.parts | {"actor_critic": stays})

    return dataclasses.replace(
        plain,
        parts={**plain.parts, "critic": critic},
        update=update,
        extra=no_moments(()),
        adopt=adopt,
    )


ppo_max = AlgorithmBuilder("ppo_max", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"critic_optimizer.eps": 0.01, "critic_steps": 10.0}
