"""Multi-agent PPO (Yu et al., 2022, "The surprising effectiveness of PPO in cooperative multi-agent
games", arXiv:2103.01955): decentralized actors, a centralized critic.

Agents act simultaneously for one shared reward: actions, observations and, where present, legal
actions are dicts by agent. Each agent has its own policy, for any spaces, which sees only that
agent's observation; one critic sees the environment's state (`privileged["state"]`), and all agents
share its advantages. Each policy descends PPO's clipped surrogate and an entropy bonus; the critic
descends a clipped Huber loss on targets standardized by running statistics (their section 5.1).
Unlike here, the authors share one policy among homogeneous agents and use layer normalization and,
in some environments, GRUs.

An agent that has died neither learns nor counts until the next episode (the authors' code calls
these masks active): its steps are in no loss of its policy, and advantages are standardized by the
steps of living agents. A critic of one agent's own ends that agent's episode at its death.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.multi_agent.shared.views import (
    View,
    check_agents,
    check_state,
    own_view,
    state_view,
)
from jaxrl.algorithms.policy_gradient.shared.actor_critic import standardize, surrogate
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array, Environment, TimeStep, Tree, struct
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Minibatch, Net, Part, Recipe, group, hyper
from jaxrl.kit.acting import choose
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import INF, Optimizer, Passes, Rollouts, Torso
from jaxrl.kit.normalization import Moments, add, no_moments
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import Value

ADAM = Optimizer(learning_rate=7e-4, max_grad_norm=10.0, eps=1e-5, flat=True)
LEAST_DEVIATION = 0.1  # of targets; the authors' code bounds their variance below by 0.01


@group
class Config:
    """Settings of MAPPO. Defaults are those of the authors' code for its particle environments."""

    rollouts: Rollouts = Rollouts(num_envs=128, num_steps=25)
    passes: Passes = Passes(epochs=15, minibatches=1)
    torso: Torso = Torso(hidden=(64, 64), activation="relu", initializer="orthogonal")
    """Torsos of each policy and of the critic; none is shared."""
    actor: Optimizer = ADAM
    """Optimizer of each policy."""
    critic: Optimizer = ADAM
    """Optimizer of the critic."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of a probability ratio around 1, beyond which its gradient is zero."""
    value_clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of a value around its old one, beyond which its gradient is zero, in standard
    deviations of the targets."""
    huber: float = hyper(10.0, above=0)
    """Huber threshold of value errors, in standard deviations of the targets; larger errors count
    linearly."""
    entropy_weight: float = hyper(0.01, low=0, log=True)
    """Weight of the entropy bonus."""


@struct
class Sample:
    """Fields of each transition that a gradient step reads, [T, B] or rows of it."""

    timestep: TimeStep
    action: Tree  # by agent, like log_prob
    log_prob: Tree
    value: Tree  # by critic, like advantage and target; value and target are standardized
    advantage: Tree
    target: Tree


def policy_loss(net: Net, x: Sample, agent: str, critic: str) -> LossOutput:
    """Compute an agent's clipped surrogate, with the advantages of `critic`, minus an entropy
    bonus."""
    policy = getattr(net, agent)(own_view(x.timestep, agent))
    action, log_prob, advantage = x.action[agent], x.log_prob[agent], x.advantage[critic]
    terms = surrogate(policy, action, log_prob, advantage, net.hyper.clip)
    total = terms["policy_loss"] - net.hyper.entropy_weight * terms["entropy"]
    metrics = {f"{agent}_{name}": value for name, value in terms.items()}
    return LossOutput(total, metrics, drift=terms["approximate_kl"])


def value_loss(net: Net, x: Sample, critic: str, view: View) -> Array:
    """Compute the maximum of the Huber losses of the value and the clipped value."""
    h, old, target = net.hyper, x.value[critic], x.target[critic]
    value = getattr(net, critic)(view(x.timestep))
    near = old + jnp.clip(value - old, -h.value_clip, h.value_clip)
    return jnp.maximum(losses.huber(value, target, h.huber), losses.huber(near, target, h.huber))


def estimate_advantages(
    net: Net,
    batch: Any,
    views: Mapping[str, View],
    rewards: Mapping[str, Array] | None = None,
    owners: Mapping[str, int | np.ndarray] | None = None,
) -> tuple[Sample, dict[str, Moments]]:
    """Return the window with each critic's generalized advantages, standardized values and targets,
    and the statistics that include these targets; values are unstandardized by the statistics
    before them.

    rewards: what each critic predicts, shaped as its values, [T, B] or [T, B, K] for K agents; by
        default the reward that all share.
    owners: of critics of one agent's own, the number of the agent among those that may die; of
        critics with a value for each of K agents, their numbers [K].
    """
    x, h = batch.transitions, net.hyper
    values, gains, targets, moments = {}, {}, {}, {}
    for name, view in views.items():
        critic, before = getattr(net, name), net.extra[name]
        values[name] = critic(view(x.timestep))
        value = _unstandardize(values[name], before)
        next_value = _unstandardize(critic(view(x.next_timestep)), before)
        reward = x.reward if rewards is None else rewards[name]
        dead, counts = _dead(x.next_timestep, name, owners), None
        terminated, done = (_like(reward, end) for end in (x.terminated, x.done))
        if dead is not None:
            terminated, done = terminated | dead, done | dead
            counts = ~_dead(x.timestep, name, owners)
        gains[name] = losses.gae(
            reward, value, next_value, terminated, done, h.discount, h.gae_lambda
        )
        target = gains[name] + value
        moments[name] = add(before, target, counts)
        targets[name] = (target - moments[name].mean) / _deviation(moments[name])
    log_prob = x.extras["log_prob"]
    return Sample(x.timestep, x.action, log_prob, values, gains, targets), moments


def _dead(timestep: TimeStep, critic: str, owners: Mapping[str, int | np.ndarray] | None) -> Any:
    """Return where the agents that a critic's values are of have died, shaped as these; None for
    critics of all, and where nobody dies."""
    if timestep.alive is None or critic not in (owners or {}):
        return None
    return ~timestep.alive[..., owners[critic]]  # type: ignore[index]


def living(minibatch: Minibatch, agent: int | np.ndarray | None) -> Minibatch:
    """Mask the steps of a minibatch of samples in which an agent is dead.

    agent: its number. For a loss that is a mean over several (`mean_of_living`), their numbers [K]:
        a step then weighs as much as there are living ones. None for any other loss.
    """
    alive = minibatch.x.timestep.alive
    if alive is None or agent is None:
        return minibatch
    count = alive[..., agent]
    if isinstance(agent, np.ndarray):
        count = count.sum(-1)
    mask = count > 0 if minibatch.mask is None else minibatch.mask & (count > 0)
    if not isinstance(agent, np.ndarray):
        return dataclasses.replace(minibatch, mask=mask)
    weight = count / jnp.maximum(losses.masked_mean(count.astype(jnp.float32), mask), 1e-8)
    weight = weight if minibatch.weight is None else minibatch.weight * weight
    return dataclasses.replace(minibatch, mask=mask, weight=weight)


def mean_of_living(values: Array, timestep: TimeStep, agents: np.ndarray) -> Array:
    """Return the mean [...] of values [..., K] over those of K agents, by their numbers, that are
    alive; 0 where none is."""
    if timestep.alive is None:
        return values.mean(-1)
    return losses.masked_mean(jnp.asarray(values, jnp.float32), timestep.alive[..., agents], -1)


def standardize_living(
    sample: Sample, followers: Mapping[str, Sequence[int] | np.ndarray]
) -> Sample:
    """Standardize the advantages of a sample over the steps of agents that are alive.

    followers: numbers of the agents that follow each critic's advantages; a step counts as often as
        there are living ones. Advantages [..., K] of K agents are those of each follower.
    """
    alive = sample.timestep.alive
    if alive is None:
        return standardize(sample)

    def of(advantage: Array, agents: Sequence[int] | np.ndarray) -> Array:
        weight = alive[..., np.array(agents)]
        weight = weight if advantage.ndim == weight.ndim else weight.sum(-1)
        weight = weight / jnp.maximum(weight.sum(), 1)
        mean = (weight * advantage).sum()
        deviation = jnp.sqrt((weight * jnp.square(advantage - mean)).sum())
        return (advantage - mean) / (deviation + 1e-8)

    advantage = {name: of(gain, followers[name]) for name, gain in sample.advantage.items()}
    return dataclasses.replace(sample, advantage=advantage)


def _like(reward: Array, end: Array) -> Array:
    """Repeat the end of a step [T, B] for every agent that `reward` has, [T, B] or [T, B, K]."""
    return end if end.ndim == reward.ndim else jnp.broadcast_to(end[..., None], reward.shape)


def _unstandardize(value: Array, moments: Moments) -> Array:
    return value * _deviation(moments) + moments.mean


def _deviation(moments: Moments) -> Array:
    return jnp.maximum(moments.deviation, LEAST_DEVIATION)


def descend_in_passes(
    net: Net,
    sample: Sample,
    batch: Any,
    passes: Passes,
    policy_losses: Sequence[Loss],
    value_losses: Sequence[Loss],
    agents: Mapping[str, int | np.ndarray] | None = None,
) -> Net:
    """Descend all losses in passes over a window of a sample whose advantages are standardized,
    until a policy has moved too far from the one that acted.

    agents: of losses of one agent or a team, by name, its number among those that may die, or
        their numbers (`living`).
    """
    agents = agents or {}

    def step(net: Net, minibatch: Any) -> Net:
        drifts = []
        for loss in policy_losses:
            net = net.descend(loss, living(minibatch, agents.get(loss.name)))
            drifts.append(net.drift)
        for loss in value_losses:
            net = net.descend(loss, living(minibatch, agents.get(loss.name)))
        return net.replace(drift=jnp.stack(drifts).max())

    window = Minibatch(sample, batch.mask, batch.weight)
    return net.epochs(passes, window, step, max_drift=net.hyper.passes.target_kl)


def agents_recipe(
    env: Environment,
    config: Any,
    critics: Mapping[str, tuple[Space, View]],
    critic_of: Mapping[str, str],
) -> Recipe:
    """Return the recipe of one policy per agent and some critics.

    critics: name -> observation space and view of the critic.
    critic_of: agent -> name of the critic whose advantages its policy follows.
    """
    agents, example = tuple(env.action_space), example_timestep(env)
    torso = config.torso.hidden, config.torso.activation, config.torso.initializer
    views = {name: view for name, (_, view) in critics.items()}
    numbers = {agent: agent_names(env).index(agent) for agent in agents}
    followers = {c: [numbers[a] for a in agents if critic_of[a] == c] for c in critics}
    owners = {c: several[0] for c, several in followers.items() if len(several) == 1}
    of_loss = {f"{agent}_loss": number for agent, number in numbers.items()}
    of_loss |= {f"{critic}_loss": number for critic, number in owners.items()}
    parts, policy_losses, value_losses = {}, [], []
    for agent in agents:
        network = Actor(env.observation_space[agent], env.action_space[agent], *torso)
        parts[agent] = Part(network, (own_view(example, agent),), config.actor)
        function = functools.partial(policy_loss, agent=agent, critic=critic_of[agent])
        policy_losses.append(Loss(function, (agent,), f"{agent}_loss"))
    for name, (space, view) in critics.items():
        parts[name] = Part(Value(space, *torso), (view(example),), config.critic)
        function = functools.partial(value_loss, critic=name, view=view)
        value_losses.append(Loss(function, (name,), f"{name}_loss"))

    def act(net, timestep, memory, key, greedy):
        action, log_prob = {}, {}
        for agent in agents:
            policy = getattr(net, agent)(own_view(timestep, agent))
            action[agent] = jax.lax.stop_gradient(choose(policy, net.key(agent), greedy))
            log_prob[agent] = policy.log_prob(action[agent])
        return action, memory, {"log_prob": log_prob}

    def update(net, batch):
        sample, moments = estimate_advantages(net, batch, views, owners=owners)
        sample, net = standardize_living(sample, followers), net.replace(extra=moments)
        return descend_in_passes(
            net, sample, batch, config.passes, policy_losses, value_losses, of_loss
        )

    return Recipe(
        parts=parts,
        act=act,
        losses=(*policy_losses, *value_losses),
        update=update,
        extra={name: no_moments(()) for name in critics},
        needs=("transitions.extras.log_prob",),
        num_shards=config.rollouts.num_shards,
    )


def recipe(env: Environment, config: Config) -> Recipe:
    shape = state_view(example_timestep(env)).observation.shape[1:]
    critics = {"critic": (Box(-INF, INF, shape), state_view)}
    return agents_recipe(env, config, critics, dict.fromkeys(env.action_space, "critic"))


def check_windows(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless `env` has several agents, and for a window that does not divide into
    the minibatches."""
    check_agents(env, name)
    x = config.rollouts
    config.passes.check(x.num_envs, x.num_steps, x.num_shards)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where `check_windows` does, and for an environment that does not expose its
    state."""
    check_windows(env, config, name)
    check_state(env, f"The critic of {name}", "ippo")


mappo = AlgorithmBuilder("mappo", Config, recipe, check=check)

TINY = {"env": "speaker_listener", "num_envs": 4, "num_steps": 8, "num_shards": 4} | {
    "hidden": (8,),
    "epochs": 2,
    "minibatches": 2,
}
