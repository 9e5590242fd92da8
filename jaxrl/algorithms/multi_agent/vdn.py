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

from typing import Any

from jaxrl.algorithms.multi_agent.shared.team_values import Team, add, own_networks, team_recipe
from jaxrl.algorithms.multi_agent.shared.views import check_agents
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper
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


def recipe(env: Environment, config: Any) -> Recipe:
    parts, values = own_networks(env, config)
    return team_recipe(env, config, Team(agent_names(env), parts, values, add))


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
