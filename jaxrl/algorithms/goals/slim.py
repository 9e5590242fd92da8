"""SLIM: skill learning with multiple critics (Emukpere, Wu, Perez and Renders, 2024, "SLIM: Skill
learning with multiple critics", arXiv:2402.00823): discover skills that can be told apart and are
useful and safe, by giving each of several rewards a critic of its own.

A policy is told a skill z for each episode. Three rewards are paid: for states from which the skill
can be told (`losses.skill_reward`), for what the skills are to be about (the environment's reward,
such as minus the distance to an object), and for safety (minus the environment's cost, if it has
one). Their sum would be dominated by the one of the largest scale. So each has a critic that learns
from it alone, and the rewards meet in the policy's update, where the advantages of each critic are
standardized, weighted and added:

    A = sum_k w_k (A_k - mean A_k) / std A_k

The abstract and summaries of the paper were read, not its equations. They name the three kinds of
reward, the critic for each, and the weighted sum of normalized advantages. That the actor-critic is
PPO, that skills are discrete and discovered by DIAYN's discriminator, and the weights are choices
made here. `critics: one` is the baseline, a single critic of the weighted sum of the rewards. The
paper's hierarchical policies and planners over skills are not here; `shared.skills.few_shot`
chooses a skill by a few tries.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals.shared.skills import (
    SkillDiscriminator,
    check_skills,
    discriminator_loss,
    skill_discriminator,
    skill_rewards,
)
from jaxrl.algorithms.policy_gradient.shared import actor_critic
from jaxrl.algorithms.policy_gradient.shared.actor_critic import surrogate
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.acting import sample_with_log_prob
from jaxrl.kit.groups import INF, Normalization, Optimizer, Passes, Rollouts, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import Value
from jaxrl.networks.heads import check_action_space

CRITICS = ("each", "one")


@group
class Config:
    """Settings of SLIM: skills discovered with a critic for each of several rewards
    (arXiv:2402.00823)."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=64)
    passes: Passes = Passes(epochs=4, minibatches=4)
    torso: Torso = Torso(hidden=(64, 64), activation="tanh")
    """Torsos of the policy and of each critic; none is shared."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4, max_grad_norm=0.5, eps=1e-5, flat=True)
    """Optimizer of the policy and of each critic."""
    discriminator: SkillDiscriminator = SkillDiscriminator()
    normalization: Normalization = Normalization()

    critics: str = static("each", choices=CRITICS)
    """Critics: each (one for each reward), or one (a single one of the rewards' weighted sum, the
    baseline)."""
    discovery_weight: float = hyper(1.0, low=0, high=INF)
    """Weight of the reward for telling the skill by the state."""
    task_weight: float = hyper(1.0, low=0, high=INF)
    """Weight of the environment's reward."""
    safety_weight: float = hyper(1.0, low=0, high=INF)
    """Weight of minus the environment's cost; without a cost in the environment it has no
    effect."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step of all rewards."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of the probability ratio around 1, beyond which its gradient is zero."""
    entropy_weight: float = hyper(0.0, low=0, log=True)
    """Weight of the entropy bonus."""


def rewards_of(net: Net, x: Any) -> tuple[Array, Array]:
    """Return the rewards for discovery, task and safety [..., K] of steps, and their weights [K].

    K is 3 where the environment has a cost, else 2.
    """
    h = net.hyper
    rewards = [skill_rewards(net, x), x.reward]
    weights = [h.discovery_weight, h.task_weight]
    if x.next_timestep.cost is not None:
        rewards.append(-x.next_timestep.cost)
        weights.append(h.safety_weight)
    return jnp.stack(rewards, -1), jnp.stack([jnp.asarray(w) for w in weights])


def advantages_by_critic(net: Net, batch: Batch, reward: Array) -> actor_critic.Sample:
    """Return the window with a value, an advantage and a target for each reward [T, B, K]."""
    x, h = batch.transitions, net.hyper
    value, next_value = (
        jnp.moveaxis(net.critics(timestep), 0, -1) for timestep in (x.timestep, x.next_timestep)
    )
    terminated, done = (
        jnp.broadcast_to(a[..., None], reward.shape) for a in (x.terminated, x.done)
    )
    advantage = losses.gae(reward, value, next_value, terminated, done, h.discount, h.gae_lambda)
    log_prob, target = x.extras["log_prob"], advantage + value
    return actor_critic.Sample(x.timestep, x.action, log_prob, value, advantage, target, ())


def combine_advantages(advantage: Array, weight: Array) -> Array:
    """Return the weighted sum [...] of advantages [..., K] after each is standardized over all of
    its elements."""
    axes = tuple(range(advantage.ndim - 1))
    centered = advantage - advantage.mean(axes)
    return (weight * centered / (advantage.std(axes) + 1e-8)).sum(-1)


@loss("policy")
def actor_loss(net: Net, x: actor_critic.Sample) -> LossOutput:
    """Compute PPO's clipped surrogate of the combined advantage, minus an entropy bonus."""
    terms = surrogate(net.policy(x.timestep), x.action, x.log_prob, x.advantage, net.hyper.clip)
    total = terms["policy_loss"] - net.hyper.entropy_weight * terms["entropy"]
    return LossOutput(total, terms, drift=terms["approximate_kl"])


@loss("critics")
def critics_loss(net: Net, x: actor_critic.Sample) -> Array:
    """Compute the squared errors of all critics, each of its own reward's return."""
    values = jnp.moveaxis(net.critics(x.timestep), 0, -1)
    return losses.squared_error(values, x.target).sum(-1)


def recipe(env: Environment, config: Config) -> Recipe:
    example, passes = example_timestep(env), config.discriminator.passes
    apart = config.critics == "each"
    number = 2 + (example.cost is not None) if apart else 1
    torso = config.torso.hidden, config.torso.activation, config.torso.initializer
    policy, critic = (
        Actor(env.observation_space, env.action_space, *torso),
        Value(env.observation_space, *torso),
    )

    def step(net: Net, minibatch: Minibatch) -> Net:
        return net.descend(critics_loss, minibatch).descend(actor_loss, minibatch)

    def update(net: Net, batch: Batch) -> Net:
        x = batch.transitions
        reward, weight = rewards_of(net, x)
        net = net.report(discovery=reward[..., 0].mean())
        if not apart:
            reward, weight = (weight * reward).sum(-1, keepdims=True), jnp.ones(1)
        sample = advantages_by_critic(net, batch, reward)
        combined = combine_advantages(sample.advantage, weight)
        sample = dataclasses.replace(sample, advantage=combined)
        window = Minibatch(x, batch.mask, batch.weight)
        net = net.epochs(passes, window, lambda net, part: net.descend(discriminator_loss, part))
        limit = net.hyper.passes.target_kl
        return net.epochs(
            config.passes, Minibatch(sample, batch.mask, batch.weight), step, max_drift=limit
        )

    return Recipe(
        parts={
            "policy": Part(policy, (example,), config.optimizer),
            "critics": Part(critic, (example,), config.optimizer, members=number),
            "discriminator": skill_discriminator(env, config.discriminator),
        },
        act=sample_with_log_prob("policy"),
        losses=(critics_loss, actor_loss, discriminator_loss),
        update=update,
        needs=("transitions.extras.log_prob",),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, an environment without skills or
    with several costs, and a window that does not divide into the minibatches."""
    check_action_space(env.action_space, name)
    check_skills(env, name)
    cost = example_timestep(env).cost
    if cost is not None and cost.ndim != 1:
        raise UserError(
            f"{name} has one critic for safety; '{env.name}' has {cost.shape[1]} costs (see "
            "jaxrl.envs.wrappers.cost)."
        )
    x = config.rollouts
    for passes in (config.passes, config.discriminator.passes):
        passes.check(x.num_envs, x.num_steps, x.num_shards)


slim = AlgorithmBuilder("slim", Config, recipe, check=check)

TINY = {
    "env": "push_play",
    "wrappers": [{"skills": {"number": 2}}],
    "num_envs": 8,
    "num_steps": 4,
    "num_shards": 4,
    "passes.epochs": 2,
    "passes.minibatches": 2,
    "torso.hidden": (8,),
    "discriminator.torso.hidden": (8,),
    "discriminator.passes.minibatches": 2,
    "normalization.observation": True,
}
