"""Behavior cloning of a team, the simplest baseline of OG-MARL (Formanek et al., 2023,
"Off-the-Grid MARL: Datasets with Baselines for Offline Multi-Agent Reinforcement Learning",
arXiv:2302.00521, and the authors' code): each agent has a policy that makes its actions in a
dataset as likely as possible.

Steps at which an agent is dead do not count for it. Unlike in the authors' code, agents have no
memory (theirs have a GRU) and share no weights.
"""

from __future__ import annotations

import functools

import jax

from jaxrl import losses
from jaxrl.algorithms.multi_agent.shared.team_datasets import TeamData
from jaxrl.algorithms.multi_agent.shared.views import check_agents, own_view
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment, Transition
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Part, Recipe, group
from jaxrl.kit.acting import choose
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import Optimizer, Torso
from jaxrl.networks.actor_critic import Actor


@group
class Config:
    """Settings of behavior cloning of a team."""

    data: TeamData = TeamData()
    torso: Torso = Torso(hidden=(64, 64), activation="relu")
    """Hidden layers of each agent's policy."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer of each policy."""


def cloning_loss(net: Net, x: Transition, agent: str) -> LossOutput:
    """Compute -log pi(a|o) of an agent's actions."""
    policy = getattr(net, agent)(own_view(x.timestep, agent))
    error = losses.behavior_cloning(policy.log_prob(x.action[agent]))
    return LossOutput(error, {f"{agent}_entropy": policy.entropy()})


def recipe(env: Environment, config: Config) -> Recipe:
    agents, example, torso = agent_names(env), example_timestep(env), config.torso
    parts, all_losses = {}, []
    for agent in agents:
        spaces = env.observation_space[agent], env.action_space[agent]  # type: ignore[index]
        network = Actor(*spaces, torso.hidden, torso.activation, torso.initializer)
        parts[agent] = Part(network, (own_view(example, agent),), config.optimizer)
        clone = functools.partial(cloning_loss, agent=agent)
        all_losses.append(Loss(clone, (agent,), f"{agent}_loss"))

    def act(net, timestep, memory, key, greedy):
        action = {}
        for agent in agents:
            policy = getattr(net, agent)(own_view(timestep, agent))
            action[agent] = jax.lax.stop_gradient(choose(policy, net.key(agent), greedy))
        return action, memory, {}

    def update(net, batch):
        for i, loss in enumerate(all_losses):
            alive = batch.transitions.timestep.alive
            net = net.descend(loss, batch, mask=None if alive is None else alive[..., i])
        return net

    return Recipe(parts=parts, act=act, losses=tuple(all_losses), update=update)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless `env` has several agents, and one reward for all."""
    check_agents(env, name)
    example_timestep(env)


team_bc = AlgorithmBuilder("team_bc", Config, recipe, check=check)

TINY = {
    "env": "skirmish",
    "env_params": {"agents": 2, "enemies": 1, "size": 5},
    "hidden": (8,),
    "data.size": 256,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
}
