"""Environments of XLand-MiniGrid (Nikulin et al., 2023, arXiv:2312.12044), by names such as
`xland/MiniGrid-Empty-8x8` and `xland/XLand-MiniGrid-R1-9x9`.

Runs its own `step`, which resets nothing: a reached goal terminates (its discount is 0) and its
clock (`max_steps`) truncates. The environments of XLand play with the rulesets of a `benchmark`,
one drawn for each episode or always number `ruleset`; without a benchmark they have no goal.
Benchmarks are downloaded on first use. Observations are its view of tiles and colors;
`observe_direction` and `observe_rules` add the parts that its wrappers add.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import errors, random
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Environment, TimeStep
from jaxrl.envs import timesteps
from jaxrl.envs.adapters import SettingsBuilder, check_name, construct, package
from jaxrl.envs.adapters.conversions import box, cast, cast_like, stable_shapes, unbounded_space

SIZES = ("height", "width", "view_size", "max_steps")
ANY = -1  # ruleset: another one in each episode


def builder(name: str) -> Callable[..., Environment]:
    """Return the builder of XLand-MiniGrid's environment `name`. Raises `UserError` if there is
    none."""
    xminigrid = package("xminigrid", "xland")
    check_name("xland", name, xminigrid.registered_environments())
    _, params = construct(f"xland/{name}", lambda: xminigrid.make(name))
    defaults = {size: getattr(params, size) for size in SIZES}
    defaults |= {"observe_direction": False, "observe_rules": False}
    if hasattr(params, "ruleset"):
        defaults |= {"benchmark": "", "ruleset": ANY}
    return SettingsBuilder(functools.partial(_build, name, defaults), defaults)


def _build(name: str, defaults: dict[str, Any], settings: dict[str, Any]) -> Environment:
    full = f"xland/{name}"
    chosen = defaults | settings
    for size in SIZES:
        if chosen[size] < 1:
            raise UserError(f"The {size} of '{full}' is {chosen[size]}; it must be positive.")
    xminigrid = package("xminigrid", "xland")
    sizes = {size: chosen[size] for size in SIZES}
    theirs, params = construct(full, lambda: xminigrid.make(name, **sizes))
    wrappers = package("xminigrid.wrappers", "xland")
    if chosen["observe_direction"]:
        theirs = wrappers.DirectionObservationWrapper(theirs)
    if chosen["observe_rules"]:
        theirs = wrappers.RulesAndGoalsObservationWrapper(theirs)
    draw = _rulesets(full, chosen.get("benchmark", ""), chosen.get("ruleset", ANY))

    def begin(key: Any) -> Any:
        if draw is None:
            return theirs.reset(params, key)
        key, ruleset_key = jax.random.split(key)
        return theirs.reset(params.replace(ruleset=draw(ruleset_key)), key)

    def follow(before: Any, action: Any) -> Any:
        return theirs.step(params, before, action)

    key, action = random.key(0), jnp.zeros((), jnp.int32)
    shapes = construct(
        full, lambda: stable_shapes(lambda: begin(key), lambda state: follow(state, action))
    )
    observation_space = _space(shapes.observation)

    def reset(key, _):
        state = cast_like(shapes, begin(key))
        return state, timesteps.first(cast(observation_space, state.observation))

    def step(key, state, action, _):
        state = cast_like(shapes, follow(state, action))
        terminated = state.discount == 0
        timestep = TimeStep(
            cast(observation_space, state.observation),
            jnp.asarray(state.reward, jnp.float32),
            terminated,
            truncated=state.last() & ~terminated,
            first=jnp.zeros((), bool),
        )
        return state, timestep

    return Environment(
        full,
        reset,
        step,
        (),
        observation_space,
        Discrete(int(theirs.num_actions(params))),
        max_steps=chosen["max_steps"],
    )


def _rulesets(name: str, benchmark: str, ruleset: int) -> Callable[[Any], Any] | None:
    """Return how an episode's ruleset is drawn from a key; None without a benchmark."""
    if not benchmark:
        if ruleset != ANY:
            raise UserError(f"ruleset is {ruleset}, but '{name}' has no benchmark to take it from.")
        return None
    xminigrid = package("xminigrid", "xland")
    known = xminigrid.registered_benchmarks()
    if benchmark not in known:
        raise errors.unknown("benchmark of XLand-MiniGrid", benchmark, known)
    try:
        rules = xminigrid.load_benchmark(benchmark)
    except OSError as error:
        raise UserError(
            f"XLand-MiniGrid could not download its benchmark '{benchmark}' "
            f"({type(error).__name__}: {error})."
        ) from error
    count = rules.num_rulesets()
    if not ANY <= ruleset < count:
        raise UserError(
            f"ruleset is {ruleset}, but '{benchmark}' has the rulesets 0 to {count - 1} (or {ANY} "
            "for another one in each episode)."
        )
    return rules.sample_ruleset if ruleset == ANY else lambda key: rules.get_ruleset(ruleset)


def _space(shapes: Any) -> Any:
    """Return the space of observations: a view of tiles and colors, alone or as `img`."""
    constants = package("xminigrid.core.constants", "xland")
    high = np.array([constants.NUM_TILES - 1, constants.NUM_COLORS - 1])
    view = lambda x: box(0, high, x.shape, x.dtype)
    if not isinstance(shapes, dict):
        return view(shapes)
    return {**unbounded_space(shapes), "img": view(shapes["img"])}
