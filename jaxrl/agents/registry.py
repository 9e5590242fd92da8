"""Algorithms by name, as a configuration gives them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from jaxrl.core import plugins
from jaxrl.core.errors import UserError
from jaxrl.core.types import Algorithm

BUILT_IN = {
    "a2c": "jaxrl.agents.policy_gradient.old_a2c:a2c",
    "c51": "jaxrl.agents.value.old_rainbow:c51",
    "dqn": "jaxrl.agents.value.old_rainbow:dqn",
    "dreamer": "jaxrl.agents.planning.old_dreamer:dreamer",
    "dreamer4_imagination": "jaxrl.algorithms.dreamer4:dreamer4_imagination",
    "dreamer4_world_model": "jaxrl.algorithms.dreamer4:dreamer4_world_model",
    "evolution_strategy": "jaxrl.algorithms.evolution.evolution_strategy:evolution_strategy",
    "genetic": "jaxrl.algorithms.evolution.genetic:genetic",
    "iql": "jaxrl.algorithms.old_offline:iql",
    "league": "jaxrl.algorithms.games.league:league",
    "lifelong": "jaxrl.algorithms.lifelong:lifelong",
    "lpg": "jaxrl.agents.meta.lpg:lpg",
    "map_elites": "jaxrl.algorithms.evolution.map_elites:map_elites",
    "muzero": "jaxrl.agents.planning.old_muzero:muzero",
    "neupl": "jaxrl.algorithms.games.neupl:neupl",
    "ppga": "jaxrl.algorithms.evolution.ppga:ppga",
    "ppo": "jaxrl.agents.policy_gradient.old_ppo:ppo",
    "rainbow": "jaxrl.agents.value.old_rainbow:rainbow",
    "reinforce": "jaxrl.agents.policy_gradient.old_reinforce:reinforce",
    "spiral": "jaxrl.agents.games.old_spiral:spiral",
    "ta_lpg": "jaxrl.algorithms.meta.ta_lpg:ta_lpg",
    "td3_bc": "jaxrl.algorithms.old_offline:td3_bc",
    "tokens": "jaxrl.agents.tokens.agent:tokens",
    "uni_o4": "jaxrl.algorithms.old_offline:uni_o4",
}


def names() -> tuple[str, ...]:
    """The names of the built-in algorithms, sorted."""
    return tuple(sorted(BUILT_IN))


def builder(name: str) -> tuple[Callable[..., Algorithm], type]:
    """The builder called `name` and the class of its configuration.

    name: one of `names()`, or `my_package.module:build`: a function `build(env, config)` whose
        `config` is annotated with a frozen dataclass.

    Raises `UserError` for a name that does not exist and a function of another form.
    """
    build = plugins.find("algorithm", name, BUILT_IN)
    try:
        function = inspect.unwrap(build)
        config = typing.get_type_hints(function)["config"]
    except (KeyError, TypeError, NameError) as error:
        raise UserError(
            f"The algorithm '{name}' must be a function build(env, config: Config), its config "
            "annotated with a frozen dataclass."
        ) from error
    return build, config


def default_config(name: str) -> Any:
    """The default configuration of the algorithm called `name`."""
    return builder(name)[1]()
