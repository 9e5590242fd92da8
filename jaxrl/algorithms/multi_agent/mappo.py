"""Multi-agent PPO (Yu et al., 2022, "The surprising effectiveness of PPO in cooperative multi-agent
games", arXiv:2103.01955): decentralized actors, a centralized critic.

Agents act at the same time for one reward: actions, observations and, where there are some, legal
actions are dicts by agent. Each agent has a policy of its own, of any spaces, that sees no more
than the agent does; one critic sees the environment's state (`privileged["state"]`), and gives all
of them the same advantages. Each policy descends PPO's clipped surrogate and an entropy bonus; the
critic a clipped Huber loss to targets that are standardized by running statistics (their section
5.1). Where all agents are alike the authors let them share one policy, and have layer normalization
and, in some environments, GRUs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import standardize, surrogate
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array, Environment, TimeStep, Tree, struct
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Minibatch, Net, Part, Recipe, group, hyper
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import INF, Optimizer, Passes, Rollouts, Torso
from jaxrl.kit.normalization import Moments, add, no_moments
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import Value
from jaxrl.networks.heads import check_action_space

ADAM = Optimizer(learning_rate=7e-4, max_grad_norm=10.0, eps=1e-5, flat=True)
LEAST_DEVIATION = 0.1  # of targets; the authors' code bounds their variance by 0.01


@group
class Config:
    """Settings of MAPPO: those of the authors' code for its particle environments."""

    rollouts: Rollouts = Rollouts(num_envs=128, num_steps=25)
    passes: Passes = Passes(epochs=15, minibatches=1)
    torso: Torso = Torso(hidden=(64, 64), activation="relu", initializer="orthogonal")
    """Of each policy and of the critic."""
    actor: Optimizer = ADAM
    """Of each policy."""
    critic: Optimizer = ADAM

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    clip: float = hyper(0.2, above=0, high=INF)
    """How far a probability ratio may move from 1 before its gradient stops."""
    value_clip: float = hyper(0.2, above=0, high=INF)
    """How far a value may move from its old one before its gradient stops, in standard deviations
    of targets."""
    huber: float = hyper(10.0, above=0)
    """Where the gradient of a value's error stops growing, in the same unit."""
    entropy_weight: float = hyper(0.01, low=0)
    """Weight of the entropy bonus."""


@struct
class Sample:
    """What a gradient step sees of each transition, [T, B] (or rows of it)."""

    timestep: TimeStep
    action: Tree  # by agent, as log_prob
    log_prob: Tree
    value: Tree  # by critic, as what follows; value and target are standardized
    advantage: Tree
    target: Tree


View = Callable[[TimeStep], TimeStep]  # what of a time step is seen


def own(timestep: TimeStep, agent: str) -> TimeStep:
    """What an agent sees: its own observation and legal actions."""
    return _seen(timestep, timestep.observation[agent], (timestep.legal_actions or {}).get(agent))


def state(timestep: TimeStep) -> TimeStep:
    """With the environment's state as the observation."""
    return _seen(timestep, timestep.privileged["state"], None)


def _seen(timestep: TimeStep, observation: Tree, legal: Array | None) -> TimeStep:
    changes = {"observation": observation, "legal_actions": legal, "privileged": None}
    return dataclasses.replace(timestep, **changes)


def policy_loss(net: Net, x: Sample, agent: str, critic: str) -> LossOutput:
    """An agent's clipped surrogate, with the advantages of `critic`, less an entropy bonus."""
    policy = getattr(net, agent)(own(x.timestep, agent))
    action, log_prob, advantage = x.action[agent], x.log_prob[agent], x.advantage[critic]
    terms = surrogate(policy, action, log_prob, advantage, net.hyper.clip)
    total = terms["policy_loss"] - net.hyper.entropy_weight * terms["entropy"]
    metrics = {f"{agent}_{name}": value for name, value in terms.items()}
    return LossOutput(total, metrics, drift=terms["approximate_kl"])


def value_loss(net: Net, x: Sample, critic: str, view: View) -> Array:
    """The larger of a value's and a clipped value's Huber errors."""
    h, old, target = net.hyper, x.value[critic], x.target[critic]
    value = getattr(net, critic)(view(x.timestep))
    near = old + jnp.clip(value - old, -h.value_clip, h.value_clip)
    return jnp.maximum(losses.huber(value, target, h.huber), losses.huber(near, target, h.huber))


def estimate_advantages(
    net: Net, batch: Any, views: Mapping[str, View]
) -> tuple[Sample, dict[str, Moments]]:
    """The window with each critic's generalized advantages, standardized values and targets, and
    the statistics of those targets; values are read by the statistics before them."""
    x, h = batch.transitions, net.hyper
    values, gains, targets, moments = {}, {}, {}, {}
    for name, view in views.items():
        critic, before = getattr(net, name), net.extra[name]
        values[name] = critic(view(x.timestep))
        value = _real(values[name], before)
        next_value = _real(critic(view(x.next_timestep)), before)
        gains[name] = losses.gae(
            x.reward, value, next_value, x.terminated, x.done, h.discount, h.gae_lambda
        )
        target = gains[name] + value
        moments[name] = add(before, target)
        targets[name] = (target - moments[name].mean) / _deviation(moments[name])
    log_prob = x.extras["log_prob"]
    return Sample(x.timestep, x.action, log_prob, values, gains, targets), moments


def _real(value: Array, moments: Moments) -> Array:
    return value * _deviation(moments) + moments.mean


def _deviation(moments: Moments) -> Array:
    return jnp.maximum(moments.deviation, LEAST_DEVIATION)


def on_agents(
    env: Environment,
    config: Any,
    critics: Mapping[str, tuple[Space, View]],
    critic_of: Mapping[str, str],
) -> Recipe:
    """Policies of all agents and some critics: of each, what it sees, and by agent whose advantages
    it follows."""
    agents, example = tuple(env.action_space), example_timestep(env)
    torso = config.torso.hidden, config.torso.activation, config.torso.initializer
    views = {name: view for name, (_, view) in critics.items()}
    parts, policy_losses, value_losses = {}, [], []
    for agent in agents:
        network = Actor(env.observation_space[agent], env.action_space[agent], *torso)
        parts[agent] = Part(network, (own(example, agent),), config.actor)
        function = functools.partial(policy_loss, agent=agent, critic=critic_of[agent])
        policy_losses.append(Loss(function, (agent,), f"{agent}_loss"))
    for name, (space, view) in critics.items():
        parts[name] = Part(Value(space, *torso), (view(example),), config.critic)
        function = functools.partial(value_loss, critic=name, view=view)
        value_losses.append(Loss(function, (name,), f"{name}_loss"))

    def act(net, timestep, memory, key, greedy):
        action, log_prob = {}, {}
        for agent in agents:
            policy = getattr(net, agent)(own(timestep, agent))
            action[agent] = jax.lax.stop_gradient(choose(policy, net.key(agent), greedy))
            log_prob[agent] = policy.log_prob(action[agent])
        return action, memory, {"log_prob": log_prob}

    def step(net, minibatch):
        drifts = []
        for loss in policy_losses:
            net = net.descend(loss, minibatch)
            drifts.append(net.drift)
        for loss in value_losses:
            net = net.descend(loss, minibatch)
        return net.replace(drift=jnp.stack(drifts).max())

    def update(net, batch):
        sample, moments = estimate_advantages(net, batch, views)
        window = Minibatch(standardize(sample), batch.mask, batch.weight)
        limit = net.hyper.passes.target_kl
        return net.replace(extra=moments).epochs(config.passes, window, step, max_drift=limit)

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
    shape = state(example_timestep(env)).observation.shape[1:]
    critics = {"critic": (Box(-INF, INF, shape), state)}
    return on_agents(env, config, critics, dict.fromkeys(env.action_space, "critic"))


def check_agents(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` unless actions are those of several agents, each with an observation, and
    for a window that does not divide into the minibatches."""
    spaces = env.action_space, env.observation_space
    if not all(isinstance(space, dict) for space in spaces) or set(spaces[0]) - set(spaces[1]):
        raise UserError(
            f"{name} needs agents that act at the same time: the actions and observations of "
            f"'{env.name}' must be dicts with an entry for each, as those of speaker_listener."
        )
    for agent, space in env.action_space.items():
        check_action_space(space, f"{name}'s agent '{agent}'")
    x = config.rollouts
    config.passes.check(x.num_envs, x.num_steps, x.num_shards)


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` as `check_agents` does, and where the environment does not tell its
    state."""
    check_agents(env, config, name)
    if "state" not in (example_timestep(env).privileged or {}):
        raise UserError(
            f"The critic of {name} sees the state of the environment, privileged['state'], which "
            f"'{env.name}' does not tell; ippo needs none."
        )


mappo = AlgorithmBuilder("mappo", Config, recipe, check=check)

TINY = {"env": "speaker_listener", "num_envs": 4, "num_steps": 8, "num_shards": 4} | {
    "hidden": (8,),
    "epochs": 2,
    "minibatches": 2,
}
