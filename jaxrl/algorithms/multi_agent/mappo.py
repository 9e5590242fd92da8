"""Multi-agent PPO (Yu et al., 2022, "The surprising effectiveness of PPO in cooperative multi-agent
games", arXiv:2103.01955): decentralized actors, a centralized critic.

Agents act simultaneously for one shared reward: actions, observations and, where present, legal
actions are dicts by agent. By default each has its own policy, for any spaces, which sees only that
agent's observation; one critic sees the environment's state (`privileged["state"]`), and all agents
share its advantages. Each policy descends PPO's clipped surrogate and an entropy bonus; the critic
descends a clipped Huber loss on targets standardized by running statistics (their section 5.1).
The authors share one policy among homogeneous agents (`share_weights`) and use GRUs in some
environments (`recurrent`); unlike here, they use layer normalization, and where policies have a GRU
the critic has one too. Here it sees a state that leaves nothing to be remembered but what the
agents themselves remember.

An agent that has died neither learns nor counts until the next episode (the authors' code calls
these masks active).
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxrl.algorithms.multi_agent.shared import team_policies
from jaxrl.algorithms.multi_agent.shared.team_policies import (
    Actors,
    Cast,
    Critic,
    cast_recipe,
    check_windows,
)
from jaxrl.algorithms.multi_agent.shared.views import (
    check_alike,
    check_state,
    players,
    state_view,
    view_of,
)
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.spaces import Box
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static
from jaxrl.kit.groups import INF


@group
class Config(team_policies.Settings):
    """Settings of MAPPO. Defaults are those of the authors' code for its particle environments."""

    recurrent: int = static(0, low=0, high=WIDE)
    """Width of a GRU before each policy, and before each critic that does not see the state; 0 for
    none."""
    share_weights: bool = False
    """Let agents whose names are alike up to the last underscore share one policy, which sees which
    of them it plays, and in IPPO one critic."""


def actors(
    several: Mapping[str, tuple[str, ...]], critic_of: Mapping[str, str]
) -> dict[str, Actors]:
    """Return the policies, each of which follows the advantages of the critic `critic_of` it."""
    return {name: Actors(own, view_of(own), critic_of[name]) for name, own in several.items()}


def central_cast(env: Environment, share_weights: bool = False) -> Cast:
    """Return policies that all follow one critic of the environment's state."""
    shape = state_view(example_timestep(env)).observation.shape[1:]
    several, critic = players(env, share_weights), Critic(state_view, Box(-INF, INF, shape))
    return Cast(env, actors(several, dict.fromkeys(several, "critic")), {"critic": critic})


def recipe(env: Environment, config: Config) -> Recipe:
    return cast_recipe(central_cast(env, config.share_weights), config, config.recurrent)


def check_players(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless `env` has several agents, for a window that does not divide into the
    minibatches, and for agents that share weights and have different spaces."""
    check_windows(env, config, name)
    for agents in players(env, config.share_weights).values():
        check_alike(env, agents, name)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where `check_players` does, and for an environment that does not expose its
    state."""
    check_players(env, config, name)
    check_state(env, f"The critic of {name}", "ippo")


mappo = AlgorithmBuilder("mappo", Config, recipe, check=check)

TINY = {"env": "speaker_listener", "num_envs": 4, "num_steps": 8, "num_shards": 4} | {
    "hidden": (8,),
    "epochs": 2,
    "minibatches": 2,
}
