"""PPO-max (Zheng et al., 2023, "Secrets of RLHF in large language models part I: PPO",
arXiv:2307.04964, section 5.4): PPO for tokens with the measures that the authors found to keep it
stable.

An answer's return is standardized by the mean and deviation of all returns so far, and clipped; the
divergence penalty is subtracted from each token's reward. The critic is a separate network with its
own learning rate; for `critic_steps` it learns alone, and its loss is clipped around its old
values. Gradients are clipped by their norms, separately for policy and critic.

The authors' critic starts as the reward model. Here rewards come from the environment, so a warm
start from a policy without a separate critic copies that policy's network. The authors' language
modeling loss on other texts, off in their runs, is left out.
"""

from __future__ import annotations

import dataclasses

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check,
    copy_policy,
    estimate_advantages,
    evaluate,
    on_answers,
    returns_of,
    token_output,
    unroll,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Clipped, Divergence
from jaxrl.core import trees
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss
from jaxrl.kit.groups import INF, Optimizer
from jaxrl.kit.normalization import add, no_moments


@group
class Config(Clipped):
    """Settings of PPO-max: PPO for tokens with standardized rewards and a separate critic
    (arXiv:2307.04964, section 5.4). The defaults are those of the authors' code, which samples at a
    temperature of 0.8 from a nucleus of 0.9, and learns in 4 minibatches."""

    optimizer: Optimizer = Optimizer(learning_rate=5e-7, max_grad_norm=1.0, beta2=0.95, eps=1e-6)
    """Optimizer settings of the policy, without the authors' warm-up of 500 steps and the inverse
    square root decay after it."""
    critic_optimizer: Optimizer = Optimizer(learning_rate=1.5e-6, max_grad_norm=1.0, beta2=0.95)
    """Optimizer settings of the critic."""
    kl: Divergence = Divergence(weight=0.02)
    discount: float = hyper(1.0, low=0, high=1)
    """Discount factor per token."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    score_clip: float = hyper(10.0, above=0, high=INF)
    """Largest standardized return of an answer, in deviations from the mean."""
    value_clip: float = hyper(0.2, above=0, high=INF)
    """Clip range of value changes: beyond it a value gets no gradient."""
    critic_steps: float = hyper(0.0, low=0)
    """Environment steps at the start during which only the critic learns."""


def score(net: Net, batch: Batch) -> Array:
    """Return the standardized and clipped returns of answers, [B]."""
    moments, returns = net.extra, batch.transitions.reward.sum(0)
    return losses.clipped_reward(returns, moments.mean, moments.deviation, net.hyper.score_clip)


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


def recipe(env: Environment, config: Config) -> Recipe:
    both = (policy_loss, critic_loss)
    plain = on_answers(env, config, judge, both, kl_in_reward=True, score=score)
    policy = plain.parts["actor_critic"]
    critic = Part(policy.network, policy.inputs, config.critic_optimizer)

    def update(net, batch):
        returns = returns_of(batch)
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
        adopt=copy_policy("critic"),
    )


ppo_max = AlgorithmBuilder("ppo_max", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"critic_optimizer.eps": 0.01, "critic_steps": 10.0}
