"""Environments of Gymnasium (Towers et al., 2024, arXiv:2407.17032).

Their names look like `gymnasium/CartPole-v1`. They are Python, so they cannot run inside a scan.
`envs.make` returns only a description: name, spaces, time limit, and how copies are made
(`Environment.host`). Agents are built from it; `jaxrl.runtime.host` steps the environment itself
beside the jitted learner, and the command line does so automatically. Running `reset` or `step` of
the description raises an error that says so.
"""

from __future__ import annotations

import dataclasses
import functools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Discrete, MultiDiscrete, Space, example
from jaxrl.core.types import Environment, Tree
from jaxrl.envs import timesteps
from jaxrl.envs.adapters import check_name, construct, package
from jaxrl.envs.adapters.conversions import box
from jaxrl.envs.adapters.copies import Host, Vector, autoreset_mode, vectorize

PREFIX = "gymnasium/"


def builder(name: str) -> Callable[..., Environment]:
    """Return a function that describes Gymnasium's environment `name`. Raises `UserError` if there
    is none."""
    registry = package("gymnasium").registry
    if ":" not in name:  # `module:Name-v0` registers itself when it is made
        check_name("gymnasium", name, registry)
    return functools.partial(build, name)


def build(name: str, **settings: Any) -> Environment:
    """Describe Gymnasium's environment `name`, which is made with `settings`."""
    # The checks that it would make at each step are made here, for a fraction of the time.
    make = functools.partial(package("gymnasium").make, name, **settings, disable_env_checker=True)
    return describe(make, PREFIX + name)


def describe(make: Callable[..., Any], name: str, metrics: tuple[str, ...] = ()) -> Environment:
    """Describe the `gymnasium.Env` that `make` returns, called `name`.

    make: a function without arguments; with render_mode="rgb_array" where pictures are asked for.
    metrics: as in `copies.Host`.

    Raises `UserError` for an environment that cannot be made, and for spaces that jaxrl does not
    have.
    """
    theirs = construct(name, make)
    try:
        spec = getattr(theirs, "spec", None)
        limit = getattr(spec, "max_episode_steps", None)
        copies = functools.partial(vectorize, functools.partial(_make_checked, make), metrics)
        host = Host(copies, metrics=metrics, one=make)
        return description(
            name, theirs.observation_space, theirs.action_space, max_steps=limit, host=host
        )
    finally:
        theirs.close()


def describe_vector(make: Callable[[int], Any], name: str) -> Environment:
    """Describe an environment of which make(num_envs) returns copies as a vector of Gymnasium,
    in any of its autoreset modes."""
    theirs = construct(name, lambda: make(1))
    try:
        masked = construct(name, lambda: autoreset_mode(theirs)) == "NEXT_STEP"
        spaces = theirs.single_observation_space, theirs.single_action_space
        limit = getattr(getattr(theirs, "spec", None), "max_episode_steps", None)
    finally:
        theirs.close()
    host = Host(lambda num_envs, mode, render: Vector(make(num_envs)), masked)
    return description(name, *spaces, max_steps=limit, host=host)


def description(
    name: str, observation_space: Any, action_space: Any, *, max_steps: int | None, host: Host
) -> Environment:
    """Return an environment that tells its spaces and how it is made, and refuses to be run."""
    seen = space(observation_space)
    channels: Any = {}
    if host.metrics:
        channels = {"metrics": {key: jnp.float32(0) for key in host.metrics}}

    def reset(key, params):
        return refuse(name, ((), timesteps.first(example(seen), **channels)))

    def step(key, state, action, params):
        return refuse(name, ((), timesteps.following(example(seen), 0.0, **channels)))

    host = dataclasses.replace(host, step=step)
    return Environment(
        name, reset, step, (), seen, space(action_space), max_steps=max_steps, host=host
    )


def _make_checked(make: Callable[..., Any], **settings: Any) -> Any:
    return with_shape_checks(make(**settings))


def refuse(name: str, result: Tree) -> Tree:
    """Return `result` where its shapes are traced; raise `UserError` where it runs."""

    def refuse():
        raise UserError(
            f"'{name}' runs on the host and cannot be compiled; train and evaluate in it with "
            "jaxrl.runtime.host."
        )

    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), result)
    return jax.pure_callback(refuse, shapes, vmap_method="sequential")


def space(theirs: Any) -> Space:
    """Convert a space of Gymnasium to ours. Raises `UserError` for text, graphs and sequences."""
    match type(theirs).__name__:
        case "Discrete":
            return Discrete(int(theirs.n))
        case "MultiDiscrete" if theirs.nvec.ndim == 1:
            return MultiDiscrete(tuple(int(n) for n in theirs.nvec))
        case "MultiBinary" if len(theirs.shape) == 1:
            return MultiDiscrete((2,) * theirs.shape[0])
        case "Box":
            return box(theirs.low, theirs.high, theirs.shape, theirs.dtype)
        case "Dict":
            return {key: space(part) for key, part in theirs.spaces.items()}
        case "Tuple":
            return tuple(space(part) for part in theirs.spaces)
    raise UserError(f"jaxrl has no counterpart of Gymnasium's space {theirs}.")


def observation(theirs: Any, value: Any) -> Tree:
    """Convert observations [B, ...] of a vector environment with the single space `theirs` to
    ours."""
    match type(theirs).__name__:
        case "Dict":
            return {key: observation(part, value[key]) for key, part in theirs.spaces.items()}
        case "Tuple":
            return tuple(observation(part, x) for part, x in zip(theirs.spaces, value, strict=True))
        case "Box":
            return np.asarray(value, jax.dtypes.canonicalize_dtype(theirs.dtype))
    return np.asarray(value - getattr(theirs, "start", 0), np.int32)


def action(theirs: Any, value: Tree) -> Any:
    """Convert our actions [B, ...] to those of a vector environment with the single space `theirs`,
    clipped to the bounds of a box."""
    match type(theirs).__name__:
        case "Dict":
            return {key: action(part, value[key]) for key, part in theirs.spaces.items()}
        case "Tuple":
            return tuple(action(part, x) for part, x in zip(theirs.spaces, value, strict=True))
        case "Box":
            return np.clip(value, theirs.low, theirs.high).astype(theirs.dtype)
    return (np.asarray(value) + getattr(theirs, "start", 0)).astype(theirs.dtype)


# ------------------------------------------------------------------------------------- errors


class InvalidOutputError(Exception):
    """Error for an environment that returned what no agent can learn from; the message says
    what."""


def with_shape_checks(theirs: Any) -> Any:
    """Wrap `theirs`, a `gymnasium.Env`, so that it raises `InvalidOutputError` for observations of
    other shapes than its space says."""

    class Checked(package("gymnasium").Wrapper):
        def reset(self, *, seed=None, options=None):
            result = self.env.reset(seed=seed, options=options)
            check(result[0])
            return result

        def step(self, action):
            result = self.env.step(action)
            check(result[0])
            return result

    space = theirs.observation_space
    shape = space.shape or None  # None unless it is a single array

    def check(seen):
        if shape is None or getattr(seen, "shape", None) != shape:  # microseconds count here
            _check_shapes(space, seen, "observation")

    return Checked(theirs)


def check_finite(seen: Any, reward: Any = 0.0) -> None:
    """Raise `InvalidOutputError` unless all observations [B, ...] and rewards [B] are finite."""
    if not np.isfinite(reward).all():
        raise InvalidOutputError(f"returned a reward that is not finite, {_short(reward)},")
    for part in jax.tree.leaves(seen):
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise InvalidOutputError(f"returned an observation that is not finite, {_short(part)},")


def complaint(error: BaseException, where: str) -> str:
    """Say what an environment did when its code raised `error` in its method `where`, such as
    `raised ValueError: no fuel in step (rocket.py, line 12)`."""
    if isinstance(error, InvalidOutputError):
        return f"{error} in {where}"
    said = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    line = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"raised {said} in {where}{line}"


def _check_shapes(theirs: Any, value: Any, what: str) -> None:
    match type(theirs).__name__:
        case "Dict":
            if not isinstance(value, dict) or theirs.spaces.keys() - value.keys():
                keys = list(value) if isinstance(value, dict) else type(value).__name__
                raise InvalidOutputError(
                    f"returned an {what} with {keys} where its space has {list(theirs)}"
                )
            for key, part in theirs.spaces.items():
                _check_shapes(part, value[key], f"{what}[{key!r}]")
        case "Tuple":
            if not isinstance(value, tuple | list) or len(value) != len(theirs.spaces):
                raise InvalidOutputError(
                    f"returned an {what} that is not a tuple of {len(theirs.spaces)} parts"
                )
            for i, part in enumerate(theirs.spaces):
                _check_shapes(part, value[i], f"{what}[{i}]")
        case _:
            if np.shape(value) != theirs.shape:
                shape, right = list(np.shape(value)), list(theirs.shape)
                raise InvalidOutputError(
                    f"returned an {what} of shape {shape} where its space has {right}"
                )


def _short(values: np.ndarray) -> str:
    """Describe the first of `values` [B, ...] that is not finite."""
    wrong = ~np.isfinite(values).reshape(len(values), -1).all(1)
    return np.array2string(values[wrong][0], precision=4, threshold=8).replace("\n", "")
