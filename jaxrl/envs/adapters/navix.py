"""Environments of navix (Pignatelli et al., 2024), by names such as `navix/Navix-Empty-5x5-v0`.

Runs their own `step` without its automatic reset; its clock (`max_steps`, 100 by default)
truncates. Whatever an episode draws after its start comes from our keys. Observations are
`symbolic`, the whole grid, or what `view` names in `navix.observations`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxrl.core import random
from jaxrl.core.errors import unknown
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Environment, TimeStep
from jaxrl.envs import timesteps
from jaxrl.envs.adapters import check_name, construct, package
from jaxrl.envs.adapters.conversions import cast, cast_like, stable_shapes, unbounded_space


def builder(name: str) -> Callable[..., Environment]:
    """Return the builder of navix's environment `name`. Raises `UserError` if there is none."""
    check_name("navix", name, package("navix").registry())
    return functools.partial(build, name)


def build(name: str, max_steps: int = 100, view: str = "symbolic") -> Environment:
    """Build navix's environment `name`, limited to `max_steps`, observed as `view` says."""
    navix = package("navix")
    views = [x for x in dir(navix.observations) if x.startswith(("symbolic", "categorical", "rgb"))]
    if view not in views:
        raise unknown("view", view, views)
    observe = getattr(navix.observations, view)
    theirs = construct(
        f"navix/{name}", lambda: navix.make(name, max_steps=max_steps, observation_fn=observe)
    )

    def following(key: Any, before: Any, action: Any) -> Any:
        state = before.state.replace(key=key)
        return theirs._step(before.replace(state=state), action)

    key, action = random.key(0), jnp.zeros((), jnp.int32)
    shapes = construct(
        f"navix/{name}",
        lambda: stable_shapes(
            lambda: theirs.reset(key), lambda state: following(key, state, action)
        ),
    )
    observation_space = unbounded_space(shapes.observation)

    def reset(key, params):
        first = cast_like(shapes, theirs.reset(key))
        return first, timesteps.first(cast(observation_space, first.observation))

    def step(key, state, action, params):
        after = cast_like(shapes, following(key, state, action))
        timestep = TimeStep(
            cast(observation_space, after.observation),
            jnp.asarray(after.reward, jnp.float32),
            terminated=after.is_termination(),
            truncated=after.is_truncation(),
            first=jnp.zeros((), bool),
        )
        return after, timestep

    return Environment(
        f"navix/{name}",
        reset,
        step,
        (),
        observation_space,
        Discrete(int(theirs.action_space.n)),
        max_steps=max_steps,
    )
