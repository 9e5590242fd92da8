"""QMIX: VDN whose team value is a network of the agents' values (Rashid et al., 2018,
"QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning",
arXiv:1803.11485).

Its weights are non-negative functions of the state (`privileged["state"]`, in training only), so
that each agent's best action is its share of the team's. Unlike in the paper, agents have no memory
(theirs have a GRU) and share no weights.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl.algorithms.multi_agent import vdn
from jaxrl.algorithms.multi_agent.shared.views import check_state, state_view
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.kit import AlgorithmBuilder, Part, Recipe, group, static
from jaxrl.kit.agents import agent_names
from jaxrl.networks.mixing import MonotonicMixer


@group
class Config(vdn.Config):
    """Settings of QMIX (arXiv:1803.11485)."""

    mixing: int = static(32, low=1, high=WIDE)
    """Number of hidden units of the mixing network: appendix C."""


def _state(timestep: TimeStep) -> Array:
    state = state_view(timestep).observation
    return state.reshape(*timestep.reward.shape, -1)


def mix(parts: Any, timestep: TimeStep, values: Array) -> Array:
    """Return the mixing network's value of the agents' values."""
    return parts.mixer(_state(timestep), values)


def mixer(env: Environment, config: Any) -> Part:
    """Return the part `mixer` that `mix` reads: (state [B, S], values [B, N]) -> [B].

    config: settings with `mixing`, an `optimizer` and a `target`.
    """
    inputs = _state(example_timestep(env)), jnp.zeros((1, len(agent_names(env))))
    return Part(MonotonicMixer(config.mixing), inputs, config.optimizer, config.target)


def recipe(env: Environment, config: Config) -> Recipe:
    return vdn.team_recipe(env, config, mix, {"mixer": mixer(env, config)})


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` where VDN does, and for an environment that does not expose its state."""
    vdn.check(env, config, name)
    check_state(env, f"The mixing network of {name}", "vdn")


qmix = AlgorithmBuilder("qmix", Config, recipe, check=check)

TINY = vdn.TINY | {"mixing": 4}
