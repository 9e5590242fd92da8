"""MACTAS: agents that talk by self-attention, in VDN or QMIX (Wojtala et al., 2025, "MACTAS:
Self-Attention-Based Module for Inter-Agent Communication in Multi-Agent Reinforcement Learning",
arXiv:2508.13661).

Before an agent values its actions, its hidden state passes through a transformer encoder whose
elements are the hidden states of the whole team: what each agent tells the others is learned by the
gradient of the team's value alone, through all agents that heard it. Agents share all weights, and
the encoder knows neither their number nor their order, so the number of parameters does not depend
on the number of agents. Whoever has died is heard by nobody. The module takes the place of the
agents' separate networks, and everything else is VDN (the sum of values) or QMIX.

Unlike in the agents' other algorithms here, messages are needed to act too. With `layers` 0 agents
share weights and say nothing.

From the paper: the self-attention over the agents' states, its place before the action values, that
it is differentiable, extends any value decomposition and has a fixed number of parameters (its
abstract and summaries were read; its equations and code were not). Choices made here: one block of
attention and perceptron with residual connections and normalization before each, 4 heads, no memory
(hidden states are those of a perceptron of the observation), and epsilon-greedy exploration, where
the paper proposes one of its own.
"""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.multi_agent import qmix, vdn
from jaxrl.algorithms.multi_agent.shared.team_values import Team, mixing, team_recipe
from jaxrl.algorithms.multi_agent.shared.views import check_alike, team_view
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.kit import AlgorithmBuilder, Part, Recipe, group, static
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.agents import agent_names
from jaxrl.networks.actor_critic import check_transformer
from jaxrl.networks.agent_attention import TeamQNetwork

AGENTS = "agents"  # the part that all agents are


@group
class Config(qmix.Settings):
    """Settings of MACTAS (arXiv:2508.13661)."""

    decomposition: str = static("vdn", choices=("vdn", "qmix"))
    """Mixing of the agents' values into the team's: their sum, or QMIX's mixing network."""
    layers: int = static(1, low=0)
    """Blocks of the transformer encoder over agents; 0 for agents that say nothing."""
    heads: int = static(4, low=1)
    """Attention heads of each block; they divide the last hidden layer."""


def recipe(env: Environment, config: Config) -> Recipe:
    names, torso = agent_names(env), config.torso
    sees, acts = (space[names[0]] for space in (env.observation_space, env.action_space))
    network = TeamQNetwork(
        sees, acts.n, torso.hidden, config.layers, config.heads, torso.activation, torso.initializer
    )
    inputs = (team_view(example_timestep(env), names),)
    mixer, mix = mixing(env, config, config.normalize_state)
    parts = {AGENTS: Part(network, inputs, config.optimizer, config.target), **mixer}

    def values(parts: Any, timestep: TimeStep) -> dict[str, Array]:
        seen = team_view(timestep, names)
        every = mask_illegal(getattr(parts, AGENTS)(seen), seen)
        return {name: every[..., i, :] for i, name in enumerate(names)}

    return team_recipe(env, config, Team(names, parts, values, mix))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where VDN or QMIX do, for agents with different spaces, and for heads that
    do not divide the hidden states."""
    (qmix if config.decomposition == "qmix" else vdn).check(env, config, name)
    names = agent_names(env)
    check_alike(env, names, name)
    if config.torso.channels:
        raise UserError(f"{name} has no convolutions; leave channels empty.")
    if config.layers:
        check_transformer(config.torso.hidden[-1], config.layers, config.heads)


mactas = AlgorithmBuilder("mactas", Config, recipe, check=check)

TINY = vdn.TINY_TRANSITIONS | {
    "env": "signals",
    "env_params": {"agents": 2, "signals": 2},
    "hidden": (8,),
    "heads": 2,
    "mixing": 4,
    "decomposition": "qmix",
}
