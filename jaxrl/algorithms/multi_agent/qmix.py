"""QMIX: VDN whose team value is a network of the agents' values (Rashid et al., 2018,
"QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning",
arXiv:1803.11485).

Its weights are non-negative functions of the state (`privileged["state"]`, in training only), so
that each agent's best action is its share of the team's. In the paper agents have a GRU
(`recurrent`) and share their weights (`share_weights`).
"""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.multi_agent import vdn
from jaxrl.algorithms.multi_agent.shared.team_values import (
    Team,
    mix_by_state,
    mixer,
    team_recipe,
)
from jaxrl.algorithms.multi_agent.shared.views import check_state
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static
from jaxrl.kit.agents import agent_names


@group
class Settings(vdn.Settings):
    """Settings of Q-learning of a team whose values a network mixes."""

    mixing: int = static(32, low=1, high=WIDE)
    """Number of hidden units of the mixing network: appendix C."""
    normalize_state: bool = False
    """Normalize the state (layer normalization) before the mixing network reads it. Not in the
    paper: for states without bounds, such as places that agents can leave, where values of the team
    diverge otherwise."""


@group
class Config(Settings, vdn.Config):
    """Settings of QMIX (arXiv:1803.11485)."""


def recipe(env: Environment, config: Config) -> Recipe:
    parts, values = vdn.networks(env, config)
    parts |= {"mixer": mixer(env, config, config.normalize_state)}
    return team_recipe(env, config, Team(agent_names(env), parts, values, mix_by_state))


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` where VDN does, and for an environment that does not expose its state."""
    vdn.check(env, config, name)
    check_state(env, f"The mixing network of {name}", "vdn")


qmix = AlgorithmBuilder("qmix", Config, recipe, source=vdn.source, check=check)

TINY = vdn.TINY_TRANSITIONS | {"env": "speaker_listener", "env_params": {"size": 3}, "mixing": 4}
