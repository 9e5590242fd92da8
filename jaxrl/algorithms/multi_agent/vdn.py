"""Value-decomposition networks (Sunehag et al., 2018, "Value-decomposition networks for cooperative
multi-agent learning", arXiv:1706.05296): the value of a team is the sum of its agents' values.

Each agent has a network of its own, of its own observation, and acts epsilon-greedily by it. On
replayed transitions the sum of the values of the actions that were taken regresses on r + gamma
times the sum of the agents' best values of the target networks: the best joint action is made of
the agents' best actions. By default the best actions are chosen by the networks that learn (double
Q-learning, as in the code of PyMARL and JaxMARL; the paper's, `double=False`, are not).

With `recurrent`, agents have a GRU (an LSTM in the paper) that also sees their last action; with
`share_weights`, one network plays alike ones. Unlike in the paper, agents send no messages, and
networks have no dueling streams.
"""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.multi_agent.shared.team_values import (
    OwnNetworks,
    Team,
    add,
    own_networks,
    team_recipe,
)
from jaxrl.algorithms.multi_agent.shared.views import check_agents, check_alike, players
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Environment, Source
from jaxrl.kit import AlgorithmBuilder, Part, Recipe, group, hyper, static
from jaxrl.kit.agents import agent_names, seen_by
from jaxrl.kit.groups import EpsilonGreedy, ImageTorso, Optimizer, Replay, Target
from jaxrl.networks.encoders import check_image
from jaxrl.networks.heads import check_discrete


@group
class Settings:
    """Settings of Q-learning of a team."""

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


@group
class Config(Settings):
    """Settings of value-decomposition networks."""

    recurrent: int = static(0, low=0, high=WIDE)
    """Width of a GRU in each agent's network; 0 for none. With one, agents learn from sequences,
    which `replay.batch_size` counts, and one of which begins every `replay.num_steps`."""
    unroll: int = static(16, low=1)
    """Number of steps of a sequence."""
    share_weights: bool = False
    """Let agents whose names are alike up to the last underscore share one network, which sees
    which of them it plays."""


def source(env: Environment, config: Config) -> Source:
    """Return a replay buffer of transitions, or of sequences where agents have a memory."""
    if not config.recurrent:
        return config.replay.source(env)
    return config.replay.source(env, config.unroll, keep_memory=True)


def networks(env: Environment, config: Config) -> tuple[dict[str, Part], OwnNetworks]:
    """Return the networks of all agents, and the values that they compute."""
    return own_networks(env, config, config.share_weights, config.recurrent)


def recipe(env: Environment, config: Config) -> Recipe:
    parts, values = networks(env, config)
    return team_recipe(env, config, Team(agent_names(env), parts, values, add))


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless `env` has several agents with Discrete actions and one reward, and
    for convolutions without images."""
    check_agents(env, name)
    for agent in agent_names(env):
        check_discrete(env.action_space[agent], f"{name}'s agent '{agent}'")  # type: ignore[index]
        check_image(seen_by(env, agent), config.torso.channels)
    if getattr(config, "share_weights", False):
        for agents in players(env, True).values():
            check_alike(env, agents, name)
    example_timestep(env)


vdn = AlgorithmBuilder("vdn", Config, recipe, source=source, check=check)

# The smallest settings of these algorithms where agents have no memory.
TINY_TRANSITIONS: dict[str, Any] = {
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
TINY = TINY_TRANSITIONS | {
    "env": "foraging",
    "recurrent": 4,
    "unroll": 4,
    "share_weights": True,
}
