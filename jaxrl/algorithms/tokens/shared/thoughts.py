"""Token policies that think in mixtures of tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Environment
from jaxrl.kit import Recipe
from jaxrl.networks.actor_critic import context_length
from jaxrl.networks.thoughts import ThoughtPolicy

PART = "actor_critic"


def with_thoughts(
    recipe: Recipe, env: Environment, config: Any, draws: int = 1, joint: bool = True
) -> Recipe:
    """Return a recipe of a token policy with a `ThoughtPolicy` in place of its network.

    config: settings with `torso` and `memory`. draws, joint: see `networks.heads.Mixture`.
    """
    torso, memory = config.torso, config.memory
    network = ThoughtPolicy(
        env.observation_space,
        env.action_space,
        torso.hidden,
        torso.activation,
        memory.recurrent,
        torso.initializer,
        layers=memory.transformer,
        attention_heads=memory.attention_heads,
        context=context_length(env) if memory.transformer else 0,
        draws=draws,
        joint=joint,
    )
    inputs = example_timestep(env), network.initial(1)
    part = dataclasses.replace(recipe.parts[PART], network=network, inputs=inputs)
    return dataclasses.replace(recipe, parts={**recipe.parts, PART: part}, memory=network.initial)


def check_thoughts(env: Environment, name: str) -> None:
    """Raise `UserError` unless `env` reads mixtures of tokens and says which one is an answer."""
    space = env.action_space
    if not isinstance(space, Box) or len(space.shape) != 1 or env.observation_space != space:
        raise UserError(
            f"{name} thinks in mixtures of tokens, but '{env.name}' observes "
            f"{env.observation_space!r} and acts in {space!r}; use an environment whose "
            "observations and actions are the same Box of one axis, such as signed_sums."
        )
    if "answer" not in (example_timestep(env).tokens or {}):
        raise UserError(
            f"{name} needs to know which token is the answer, which '{env.name}' does not say "
            "(TimeStep.tokens['answer'])."
        )
