"""Environments of MuJoCo Playground (Zakka et al., 2025, arXiv:2502.08844), by names such as
`playground/CartpoleBalance`.

Runs Playground's own environment, without its wrappers for episodes and automatic resets. Its
`done` terminates and our clock truncates after its `episode_length`; as in its wrapper, an action
is repeated `action_repeat` times and the clock counts repetitions. Settings are the numbers and
names of its configuration, the nested ones joined by `_` (`noise_config_level`), but for those of
vision, which renders whole batches. The physics is MJX in JAX (`impl="jax"`); `impl="warp"` is for
NVIDIA GPUs.

Where the policy sees a part of the state (`state`), the rest (`privileged_state`) is
`TimeStep.privileged["state"]`. A step whose physics diverges terminates with the last finite
observation and no reward. Playground downloads the robots of locomotion and manipulation on first
use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from subprocess import CalledProcessError
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import errors, random
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import example
from jaxrl.core.types import Array, Environment, Tree
from jaxrl.envs import timesteps
from jaxrl.envs.adapters import SettingsBuilder, check_name, construct, package
from jaxrl.envs.adapters.conversions import (
    box,
    cast,
    cast_like,
    clip,
    stable_shapes,
    unbounded_space,
)
from jaxrl.envs.wrappers.time_limit import time_limit

PHYSICS = ("jax", "warp")
PRIVILEGED = "privileged_state"


def builder(name: str) -> Callable[..., Environment]:
    """Return the builder of Playground's environment `name`. Raises `UserError` if there is
    none."""
    registry = package("mujoco_playground", "playground").registry
    check_name("playground", name, registry.ALL_ENVS)
    config = registry.get_default_config(name)
    if "impl" in config:
        config.impl = "jax"
    options = {"_".join(path): (".".join(path), value) for path, value in _leaves(config)}
    return SettingsBuilder(
        functools.partial(_build, name, config, {k: path for k, (path, _) in options.items()}),
        {k: value for k, (_, value) in options.items()},
    )


def _leaves(config: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Return the numbers and names of a configuration with their paths, without those of vision."""
    leaves = []
    for key, value in config.items():
        if key.startswith("vision"):
            continue
        if hasattr(value, "items"):
            leaves += _leaves(value, (*path, key))
        elif isinstance(value, bool | int | float | str):
            leaves.append(((*path, key), value))
    return leaves


def _build(
    name: str, defaults: Any, paths: Mapping[str, str], settings: dict[str, Any]
) -> Environment:
    impl = settings.get("impl", "jax")
    if impl not in PHYSICS:
        raise errors.unknown("impl of MuJoCo Playground", impl, PHYSICS)
    config = defaults.copy_and_resolve_references()
    config.update_from_flattened_dict({paths[k]: v for k, v in settings.items()})
    theirs = construct(f"playground/{name}", lambda: _load(name, config))
    repeat = config.get("action_repeat", 1)
    if repeat < 1 or config.episode_length < repeat:
        raise UserError(
            f"'playground/{name}' repeats actions {repeat} times in an episode of "
            f"{config.episode_length} steps; it must be once or more, and fit into the episode."
        )
    action_space = box(-1.0, 1.0, (theirs.action_size,), jnp.float32)

    # Compiled on their own: an environment changes the dicts of the state that it is given, and an
    # eager step of a physics engine takes seconds.
    begin, once = jax.jit(theirs.reset), jax.jit(theirs.step)
    key, action = random.key(0), example(action_space)
    shapes = construct(
        f"playground/{name}",
        lambda: stable_shapes(lambda: begin(key), lambda state: once(state, action)),
    )

    @jax.jit
    def follow(state, action):
        def again(state, _):
            state = cast_like(shapes, once(state, action))
            return state, state.reward

        state, rewards = jax.lax.scan(again, state, None, repeat)
        return state.replace(reward=rewards.sum(0))

    observation_space = unbounded_space(_split(shapes.obs)[0])

    def parts(observations: Tree) -> tuple[Tree, dict[str, Tree]]:
        observation, privileged = _split(observations)
        channels = {} if privileged is None else {"privileged": {"state": privileged}}
        return cast(observation_space, observation), channels

    def reset(key, params):
        state = cast_like(shapes, begin(key))
        observation, channels = parts(state.obs)
        return state, timesteps.first(observation, **channels)

    def step(key, state, action, params):
        after = follow(state, clip(action_space, action))
        finite = _is_finite((after.obs, after.reward))
        seen = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after.obs, state.obs)
        observation, channels = parts(seen)
        reward = jnp.where(finite, after.reward, 0.0)
        terminated = (after.done > 0.5) | ~finite
        return after, timesteps.following(observation, reward, terminated, **channels)

    seconds = float(theirs.dt) * repeat
    env = Environment(
        f"playground/{name}",
        reset,
        step,
        (),
        observation_space,
        action_space,
        step_seconds=lambda state, params: seconds,
    )
    return time_limit(env, -(-config.episode_length // repeat))


def _load(name: str, config: Any) -> Any:
    """Make Playground's environment. Raises `UserError` if its robot cannot be downloaded."""
    try:
        return package("mujoco_playground", "playground").registry.load(name, config)
    except (CalledProcessError, FileNotFoundError) as error:  # git fails, or there is none
        raise UserError(
            f"'playground/{name}' needs the robots of mujoco_menagerie, which MuJoCo Playground "
            "could not download with git; the tasks of its dm_control_suite need no download."
        ) from error


def _split(observations: Tree) -> tuple[Tree, Tree]:
    """Split observations into those of the policy and the privileged one; None without one."""
    if not isinstance(observations, Mapping):
        return observations, None
    seen = {k: v for k, v in observations.items() if k != PRIVILEGED}
    return seen["state"] if set(seen) == {"state"} else seen, observations.get(PRIVILEGED)


def _is_finite(tree: Tree) -> Array:
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]).all()
