"""Rules of an environment that show without running it: its description of itself, and the
structures, shapes and dtypes found by tracing its functions."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrl.core import spaces, trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, TimeStep, Tree

_VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,  # includes those of Python's bool and int
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_FLAGS = ("terminated", "truncated", "first")
_BATCH = (5, 7)  # leading axes of observations for which achieved goals are asked


class EnvironmentCheckError(UserError):
    """Error for an environment that breaks a rule: which function, what it returned, what is
    right."""


def check_description(env: Environment) -> None:
    for name, space in (
        ("observation_space", env.observation_space),
        ("action_space", env.action_space),
    ):
        leaves = jax.tree.leaves(space, is_leaf=spaces.is_space)
        if not leaves:
            fail(env, f"{name} is empty; it must be a Discrete, MultiDiscrete or Box, or a tree")
        for leaf in leaves:
            _check_space(env, name, leaf)
    for path, leaf in leaves_of(env.params):
        if not isinstance(leaf, bool | int | float | np.ndarray | np.generic | jax.Array):
            fail(
                env,
                f"params{path} is {leaf!r}; every leaf of params must be a number or an array "
                "(mark structure with `static()`)",
            )
    if env.max_steps is not None and (not isinstance(env.max_steps, int) or env.max_steps < 1):
        fail(env, f"max_steps is {env.max_steps!r}; it must be a positive integer or None")


def _check_space(env: Environment, name: str, space: Any) -> None:
    right = "it must be a Discrete, MultiDiscrete or Box, or a tree of them"
    match space:
        case spaces.Discrete(n):
            if n < 1:
                fail(env, f"{name} holds Discrete({n}); it needs at least one value")
        case spaces.MultiDiscrete(sizes):
            if not sizes or min(sizes) < 1:
                fail(env, f"{name} holds MultiDiscrete({sizes}); each size must be at least 1")
        case spaces.Box():
            try:
                low, high = spaces.bounds(space)
            except ValueError as error:
                fail(
                    env,
                    f"{name} has bounds that do not fit its shape {space.shape} ({error})",
                    error,
                )
            if not np.all(low <= high):
                fail(env, f"{name} has a low bound above its high bound; low must not exceed high")
        case _:
            fail(env, f"{name} holds {space!r}; {right}")


def check_structure(env: Environment) -> None:
    """Check what tracing alone shows: structures, shapes, dtypes, leaks."""
    key = jax.random.key(0)
    reset = _shapes(env, "reset", env.reset, key, env.params)
    state, timestep = _unpack(env, "reset", reset)
    _check_timestep(env, "reset", timestep)
    action = jax.eval_shape(lambda: spaces.example(env.action_space))
    step = _shapes(env, "step", env.step, key, state, action, env.params)
    next_state, next_timestep = _unpack(env, "step", step)
    _check_same(env, "state", state, next_state)
    _check_timestep(env, "step", next_timestep)
    for field in dataclasses.fields(TimeStep):
        first, second = getattr(timestep, field.name), getattr(next_timestep, field.name)
        if (first is None) != (second is None):
            has, lacks = ("step", "reset") if first is None else ("reset", "step")
            fail(
                env,
                f"{has} sets the channel '{field.name}' and {lacks} leaves it None; "
                "both must set it, or neither",
            )
        _check_same(env, field.name, first, second)
    for name in env.scores.keys() - (timestep.metrics or {}).keys() - {"success"}:  # the default
        fail(env, f"scores names '{name}', which reset does not report; it must be one of metrics")
    _check_legal_actions(env, timestep)
    _check_expert(env, state)
    _check_goals(env, timestep)


def _shapes(env: Environment, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the shapes of what `function` returns, from a trace of its own."""
    trace: list[weakref.ref] = []

    def call(*arguments: Any) -> Any:
        tracers = [x for x in jax.tree.leaves(arguments) if isinstance(x, Tracer)]
        trace.extend(weakref.ref(x._trace) for x in tracers[:1] if hasattr(x, "_trace"))
        return function(*arguments)

    try:
        shapes = jax.eval_shape(call, *arguments)
    except _VALUE_ERRORS as error:
        fail(
            env,
            f"{name} uses a traced value as a Python or NumPy value; it must use jax.numpy and "
            "jnp.where, so that jit can trace it",
            error,
        )
    except Exception as error:
        fail(
            env,
            f"{name} raises {brief(error)} when it is traced; it must run under jit with a typed "
            "key, an action of action_space and env.params",
            error,
        )
    # A leaked tracer keeps its trace alive. `jax.checking_leaks` would find it too, but takes ten
    # seconds or more.
    if trace and trace[0]() is not None:
        gc.collect()
        if trace[0]() is not None:
            fail(
                env,
                f"{name} keeps a traced value after it returned; it must be pure and store nothing "
                "outside its result",
            )
    return shapes


def _unpack(env: Environment, name: str, result: Any) -> tuple[Tree, TimeStep]:
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], TimeStep)):
        fail(env, f"{name} returns {describe(result)}; it must return (state, TimeStep)")
    return result


def _check_timestep(env: Environment, name: str, timestep: TimeStep) -> None:
    """Check shapes and dtypes of the channels that every time step has."""
    space = env.observation_space
    expected = jax.tree.map(lambda s: (s.shape, s.dtype), space, is_leaf=spaces.is_space)
    structure = jax.tree.structure(space, is_leaf=spaces.is_space)
    if jax.tree.structure(timestep.observation) != structure:
        fail(
            env,
            f"{name} returns an observation with the structure "
            f"{jax.tree.structure(timestep.observation)}; observation_space has {structure}",
        )
    pairs = zip(leaves_of(timestep.observation), structure.flatten_up_to(expected), strict=True)
    for (path, leaf), (shape, dtype) in pairs:
        if leaf.shape != tuple(shape) or leaf.dtype != jnp.dtype(dtype):
            fail(
                env,
                f"{name} returns observation{path} as {shape_of(leaf)}; observation_space says "
                f"{jnp.dtype(dtype)}{list(shape)}",
            )
    reward = timestep.reward
    if not hasattr(reward, "ndim") or reward.ndim > 1 or reward.dtype != jnp.float32:
        fail(
            env,
            f"{name} returns a reward as {shape_of(reward)}; it must be a float32 scalar "
            "(or [N] with N agents)",
        )
    for flag in _FLAGS:
        value = getattr(timestep, flag)
        if not hasattr(value, "shape") or value.shape != () or value.dtype != jnp.bool_:
            fail(env, f"{name} returns {flag} as {shape_of(value)}; it must be a bool scalar")


def _check_same(env: Environment, what: str, first: Tree, second: Tree) -> None:
    """Check that `reset` and `step` return the same structure, shapes and dtypes."""
    if jax.tree.structure(first) != jax.tree.structure(second):
        fail(
            env,
            f"reset returns {what} with the structure {jax.tree.structure(first)} and step with "
            f"{jax.tree.structure(second)}; both must be the same, so that a scan can carry it",
        )
    for (path, x), (_, y) in zip(leaves_of(first), leaves_of(second), strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            fail(
                env,
                f"reset returns {what}{path} as {shape_of(x)} and step as {shape_of(y)}; both must "
                "be the same, so that a scan can carry it",
            )


def _check_legal_actions(env: Environment, timestep: TimeStep) -> None:
    parts, treedef = jax.tree.flatten(env.action_space, is_leaf=spaces.is_space)
    if timestep.legal_actions is None:
        return
    try:
        masks = treedef.flatten_up_to(timestep.legal_actions)
    except ValueError as error:
        structure = jax.tree.structure(timestep.legal_actions)
        fail(
            env, f"legal_actions have the structure {structure}; action_space has {treedef}", error
        )
    for space, legal in zip(parts, masks, strict=True):
        match space:
            case spaces.Discrete(n):
                shape = (n,)
            case spaces.MultiDiscrete(sizes):
                shape = (len(sizes), max(sizes))
            case _:
                continue
        if legal is not None and shape_of(legal) != (right := f"bool{list(shape)}"):
            fail(env, f"legal_actions are {shape_of(legal)}; for {space} they must be {right}")


def _check_expert(env: Environment, state: Tree) -> None:
    if env.expert is None:
        return
    action = _shapes(env, "expert", env.expert, state, env.params)
    try:
        # Zeros are an index that every space has; only shapes and kinds are checked.
        spaces.check_member(env.action_space, trees.zeros(action), "expert returns what")
    except UserError as error:
        fail(env, str(error).rstrip("."))


def _check_goals(env: Environment, timestep: TimeStep) -> None:
    goals = env.goals
    if goals is None:
        return
    reached = _shapes(env, "goals.achieved", goals.achieved, timestep.observation)
    if _signature(reached) != _signature(timestep.goal):
        fail(
            env,
            f"goals.achieved returns {_signature(reached)} and the channel 'goal' is "
            f"{_signature(timestep.goal)}; both must be the same",
        )
    many = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*_BATCH, *x.shape), x.dtype), timestep.observation
    )
    of_many = _shapes(env, "goals.achieved", goals.achieved, many)
    expected = [f"{leaf.dtype}{[*_BATCH, *leaf.shape]}" for leaf in jax.tree.leaves(reached)]
    if _signature(of_many) != expected:
        fail(
            env,
            f"goals.achieved returns {_signature(of_many)} for observations with the leading axes "
            f"{list(_BATCH)}; it must return {expected}",
        )
    told = _shapes(env, "goals.outcome", goals.outcome, reached, timestep.goal, env.params)
    if _signature(told) != ["float32[]", "bool[]"]:
        fail(
            env,
            f"goals.outcome returns {_signature(told)}; it must return the reward and whether the "
            "step terminates, float32[] and bool[]",
        )


def _signature(tree: Tree) -> list[str]:
    return [shape_of(leaf) for leaf in jax.tree.leaves(tree)]


# ----------------------------------------------------------------------------------- errors


def fail(env: Environment, sentence: str, cause: BaseException | None = None) -> NoReturn:
    raise EnvironmentCheckError(f"{env.name}: {sentence}.") from cause


def leaves_of(tree: Tree) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path), leaf


def shape_of(leaf: Any) -> str:
    """Describe an array, as in `float32[4]`."""
    return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else repr(leaf)


def describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array {list(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} ({', '.join(type(x).__name__ for x in value)})"
    return f"a {type(value).__name__}"


def brief(error: BaseException) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__} ({first.rstrip('.')})"
