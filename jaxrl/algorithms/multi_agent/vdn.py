"""Value-decomposition networks (Sunehag et al., 2018, "Value-decomposition networks for cooperative
multi-agent learning", arXiv:1706.05296): the value of a team is the sum of its agents' values.

Each agent has a network of its own, of its own observation, and acts epsilon-greedily by it. On
replayed transitions the sum of the values of the actions that were taken regresses on r + gamma
times the sum of the agents' best values of the target networks: the best joint action is made of
the agents' best actions. By default the best actions are chosen by the networks that learn (double
Q-learning, as in the code of PyMARL and JaxMARL; the paper's, `double=False`, are not).

Unlike in the paper, agents have no memory (theirs have an LSTM), do not share weights or messages,
and networks have no dueling streams.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.multi_agent.shared.views import check_agents, own_view
from jaxrl.algorithms.value.shared.heads import action_outputs, legal_values
from jaxrl.algorithms.value.shared.q_learning import q_network
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Transition
from jaxrl.kit import (
    AlgorithmBuilder,
    Loss,
    LossOutput,
    Net,
    Part,
    Recipe,
    group,
    hyper,
)
from jaxrl.kit.acting import epsilon, sample_epsilon_greedy
from jaxrl.kit.agents import agent_names, seen_by
from jaxrl.kit.groups import EpsilonGreedy, ImageTorso, Optimizer, Replay, Target
from jaxrl.networks.encoders import check_image
from jaxrl.networks.heads import check_discrete


@group
class Config:
    """Settings of value-decomposition networks."""

    replay: Replay = Replay(batch_size=128)
    torso: ImageTorso = ImageTorso(hidden=(64, 64))
    """Hidden layers of each agent's network."""
    optimizer: Optimizer = Optimizer(learning_rate=5e-4, max_grad_norm=10.0)
    """Optimizer settings of all networks. 5e-4 and gradients of at most 10: PyMARL's code, whose
    optimizer is RMSProp."""
    target: Target = Target(rate=1.0, period=200)
    exploration: EpsilonGreedy = EpsilonGreedy(end=0.05)
    double: bool = True
    """Let the networks that learn choose the best next actions, and the target networks evaluate
    them."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""


class Mix(Protocol):
    """A function that computes the value of a team."""

    def __call__(self, parts: Any, timestep: TimeStep, values: Array, /) -> Array:
        """Return the team's value [B].

        parts: the net, or its target networks.
        timestep: what all agents see, [B].
        values: of an action of each agent, [B, N]; 0 for agents that have died.
        """
        ...


def add(parts: Any, timestep: TimeStep, values: Array) -> Array:
    """Return the sum of the agents' values."""
    return losses.vdn(values)


def team_recipe(
    env: Environment, config: Any, mix: Mix = add, mixers: dict[str, Part] | None = None
) -> Recipe:
    """Return the recipe of Q-learning of a team.

    mix: the team's value. mixers: parts that `mix` reads, by name.
    """
    agents, example = agent_names(env), example_timestep(env)
    parts = {
        agent: Part(
            q_network(seen_by(env, agent), config.torso),
            (own_view(example, agent),),
            config.optimizer,
            config.target,
        )
        for agent in agents
    }
    parts |= mixers or {}

    def values(parts: Any, timestep: TimeStep, agent: str) -> Array:
        """The values [B, A] of all actions of an agent."""
        seen = own_view(timestep, agent)
        return legal_values(getattr(parts, agent)(seen), seen)

    def team_value(parts: Any, timestep: TimeStep, each: list[Array]) -> Array:
        value = jnp.stack(each, -1)
        if timestep.alive is not None:
            value = jnp.where(timestep.alive, value, 0)
        return mix(parts, timestep, value)

    def team_loss(net: Net, x: Transition) -> LossOutput:
        """Regress the team's value on r + gamma times its value of the best next actions."""
        taken, best = [], []
        for agent in agents:
            taken.append(action_outputs(values(net, x.timestep, agent), x.action[agent]))
            q = values(net.target, x.next_timestep, agent)
            chooser = values(net, x.next_timestep, agent) if config.double else q
            best.append(action_outputs(q, chooser.argmax(-1)))
        value = team_value(net, x.timestep, taken)
        following = team_value(net.target, x.next_timestep, best)
        target = losses.td_target(x.reward, x.terminated, net.hyper.discount, following)
        return LossOutput(losses.squared_error(value, target), {"team_value": value})

    def act(net, timestep, memory, key, greedy):
        action = {}
        for agent in agents:
            q = values(net, timestep, agent)
            chosen = q.argmax(-1)
            if not greedy:
                rate = epsilon(net, config.exploration)
                chosen = sample_epsilon_greedy(q, rate, net.key(agent))
            action[agent] = chosen.astype(env.action_space[agent].dtype)  # type: ignore[index]
        return action, memory, {}

    loss = Loss(team_loss, tuple(parts), "team_loss")

    def update(net, batch):
        net = net.descend(loss, batch).update_targets()
        return net.report(epsilon=epsilon(net, config.exploration))

    return Recipe(parts=parts, act=act, losses=(loss,), update=update)


def recipe(env: Environment, config: Config) -> Recipe:
    return team_recipe(env, config)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless `env` has several agents with Discrete actions and one reward, and
    for convolutions without images."""
    check_agents(env, name)
    for agent in agent_names(env):
        check_discrete(env.action_space[agent], f"{name}'s agent '{agent}'")  # type: ignore[index]
        check_image(seen_by(env, agent), config.torso.channels)
    example_timestep(env)


vdn = AlgorithmBuilder("vdn", Config, recipe, check=check)

TINY = {
    "env": "speaker_listener",
    "env_params": {"size": 3},
    "num_envs": 4,
    "num_steps": 2,
    "updates": 2,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 16,
    "num_shards": 4,
    "hidden": (5,),
    "target.period": 3,
}
