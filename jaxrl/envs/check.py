"""Check that an environment keeps the rules that everything else relies on.

`check_structure` holds what shows without running it; this module, what a few episodes show.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree
from jaxrl.envs.check_structure import (
    EnvironmentCheckError,
    brief,
    check_description,
    check_structure,
    describe,
    fail,
    leaves_of,
)
from jaxrl.envs.policies import random_action

LONGEST_EPISODE = 2000  # steps; the end of a longer episode is not tested
COPIES = 4  # under vmap
TOLERANCE = 1e-4  # relative and absolute, between two ways to run the same step

_ARGUMENTS = ("key", "state", "action")


def check_environment(env: Environment, steps: int = 64) -> None:
    """Raise `EnvironmentCheckError` for the first rule that `env` breaks, in one sentence.

    - Spaces are spaces, and every leaf of `params` is a number or an array.
    - `reset` and `step` can be traced (with typed keys, without Python branches on values, without
      leaving a tracer behind) and return `(state, TimeStep)`; both return the same structure,
      shapes and dtypes of state and time step, so that a scan can carry them.
    - Along a random rollout of `steps` steps, observations lie in their space, rewards are finite
      float32 scalars (or `[N]`), flags are bool scalars, `first` is true only after a reset, no
      step is both terminated and truncated, and `legal_actions` fit the action space and leave a
      choice.
    - The same arguments give the same result, with and without `jit`, and under `vmap` over keys,
      states, actions and parameters.
    - An episode ends by `max_steps` (if that is at most 2,000).
    - `render` gives uint8 `[H, W, 3]`, `step_seconds` a positive number, and `expert` an action of
      the action space; `goals` terminate no step that `step` did not; from
      `state_of` a time step goes on as it did; `judge` gives probabilities that add up to 1 with
      those of the other order.
    """
    if not isinstance(env, Environment):
        raise EnvironmentCheckError(
            f"{env!r} is a {type(env).__name__}; it must be an Environment."
        )
    if steps < 1:
        raise UserError(f"check_environment got steps={steps}; it must be at least 1.")
    check_description(env)
    check_structure(env)
    step = jax.jit(_random_steps(env))
    visited = _check_rollout(env, step, steps)
    _check_repeatable(env, visited)
    _check_vmap(env, step, visited)
    _check_max_steps(env, step)
    _check_render(env, visited)
    _check_step_seconds(env, visited)
    _check_expert(env, visited)
    _check_goals(env, visited)
    _check_state_of(env, visited)
    _check_judge(env, visited)


_RandomSteps = Callable[[Key, Tree, TimeStep, Tree, int], tuple[Tree, tuple[Tree, TimeStep]]]


@dataclasses.dataclass(frozen=True)
class _Visit:
    """One step of the rollout: its arguments and its result."""

    key: Key
    state: Tree
    timestep: TimeStep
    action: Tree
    result: tuple[Tree, TimeStep]


def _check_rollout(env: Environment, step: _RandomSteps, steps: int) -> list[_Visit]:
    """Run a random rollout, with a reset after each episode, and check what it returns."""
    reset, params = jax.jit(env.reset), _arrays(env.params)
    keys = iter(jax.random.split(jax.random.key(1), 2 * steps + 1))
    state, timestep = reset(next(keys), params)
    _check_values(env, "reset", timestep)
    visited = []
    for _ in range(steps):
        key = next(keys)
        action, result = step(key, state, timestep, params, 1)
        visited.append(_Visit(key, state, timestep, action, result))
        state, timestep = result
        _check_values(env, "step", timestep)
        if _is_done(timestep):
            state, timestep = reset(next(keys), params)
            _check_values(env, "reset", timestep)
    return visited


def _random_steps(env: Environment) -> _RandomSteps:
    """Build a function that takes random actions up to the first step that ends the episode or
    breaks a rule, and returns the last action and its result. It is one program for one step and
    for a whole episode, since the time of this check goes into compilation."""

    def steps(key: Key, state: Tree, timestep: TimeStep, params: Tree, number: int) -> Any:
        sampled = jax.eval_shape(lambda: random_action(env.action_space, key, timestep))
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), sampled)

        def is_running(carry: Any) -> Array:
            taken, _, _, (_, timestep) = carry
            return (taken == 0) | ((taken < number) & ~timestep.done & _is_valid(env, timestep))

        def body(carry: Any) -> Any:
            taken, key, _, (state, timestep) = carry
            action = random_action(env.action_space, jax.random.fold_in(key, 1), timestep)
            result = env.step(key, state, action, params)
            return taken + 1, jax.random.fold_in(key, 2), action, result

        _, _, action, result = jax.lax.while_loop(
            is_running, body, (jnp.int32(0), key, nothing, (state, timestep))
        )
        return action, result

    return steps


def _is_valid(env: Environment, timestep: TimeStep) -> Array:
    """Return whether a step passes `_check_values`, as one traced value."""
    leaves = jax.tree.leaves(env.observation_space, is_leaf=spaces.is_space)
    values = jax.tree.leaves(timestep.observation)
    inside = [_is_inside(s, x).all() for s, x in zip(leaves, values, strict=True)]
    finite = jnp.isfinite(timestep.reward).all()
    both = timestep.terminated & timestep.truncated
    choice = timestep.done | jnp.all(_has_legal_action(timestep))
    return functools.reduce(operator.and_, inside, finite & ~timestep.first & ~both & choice)


def _check_values(env: Environment, name: str, timestep: TimeStep) -> None:
    """Check what only the values of a time step show."""
    leaves = jax.tree.leaves(env.observation_space, is_leaf=spaces.is_space)
    for space, (path, value) in zip(leaves, leaves_of(timestep.observation), strict=True):
        value = np.asarray(value)
        inside = _is_inside(space, value)
        if not np.all(inside):
            worst = value[~inside].flat[0] if value.ndim else value
            fail(
                env,
                f"{name} returns an observation{path} with the value {worst}; it must lie within "
                "the bounds of observation_space",
            )
    if not np.all(np.isfinite(timestep.reward)):
        fail(env, f"{name} returns the reward {timestep.reward}; it must be finite")
    fresh = name == "reset"
    if bool(timestep.first) != fresh:
        fail(
            env,
            f"{name} returns first={bool(timestep.first)}; it must be {fresh}: true after a reset "
            "and false after a step",
        )
    if fresh and _is_done(timestep):
        fail(env, "reset returns a time step that is done; a fresh episode must not be over")
    if fresh and np.any(np.asarray(timestep.reward)):
        fail(env, f"reset returns the reward {timestep.reward}; it must be 0")
    if not _is_done(timestep) and not np.all(_has_legal_action(timestep)):
        fail(env, f"{name} returns legal_actions of which none is legal; a choice must be left")
    if bool(timestep.terminated) and bool(timestep.truncated):
        fail(
            env,
            "step returns both terminated and truncated as true; a step that terminates must not "
            "be truncated as well",
        )


def _is_inside(space: Any, value: Any) -> Any:
    """Return which entries lie within the bounds; NaN does not."""
    low, high = _limits(space)
    return (value >= low) & (value <= high)


def _has_legal_action(timestep: TimeStep) -> Any:
    """Return whether there is a legal action, for each component of the action."""
    masks = jax.tree.leaves(timestep.legal_actions)
    return jnp.concatenate([jnp.ones(1, bool), *(jnp.any(mask, -1).ravel() for mask in masks)])


def _is_done(timestep: TimeStep) -> bool:
    return bool(timestep.terminated) or bool(timestep.truncated)


def _limits(space: Any) -> tuple[Any, Any]:
    match space:
        case spaces.Discrete(n):
            return 0, n - 1
        case spaces.MultiDiscrete(sizes):
            return 0, np.asarray(sizes) - 1
        case _:
            return spaces.bounds(space)


def _check_repeatable(env: Environment, visited: list[_Visit]) -> None:
    """Check that the same arguments give the same result, eagerly and under `jit`."""
    key, params = jax.random.key(2), env.params
    fresh = env.reset(key, params)
    _check_equal(env, "reset", fresh, env.reset(key, params), "when it is called twice", exact=True)
    compiled = jax.jit(env.reset)(key, _arrays(params))
    _check_equal(env, "reset", fresh, compiled, "with and without jit")
    for visit in visited[:: max(1, len(visited) // 2)]:
        arguments = (visit.key, visit.state, visit.action, params)
        once = env.step(*arguments)
        twice = env.step(*arguments)
        _check_equal(env, "step", once, twice, "when it is called twice", exact=True)
        _check_equal(env, "step", once, visit.result, "with and without jit")


def _check_vmap(env: Environment, step: _RandomSteps, visited: list[_Visit]) -> None:
    """Check that a batch of keys, states, actions and parameters gives what a loop gives."""
    reset = jax.jit(env.reset)
    chosen = [visited[i * len(visited) // COPIES] for i in range(COPIES)]
    environments = [_arrays(env.params, 1.0 + 0.001 * i) for i in range(COPIES)]
    keys = list(jax.random.split(jax.random.key(3), COPIES))
    together = _run_vmapped(env, "reset", env.reset, keys, environments)
    for key, environment, one in zip(keys, environments, together, strict=True):
        _check_equal(env, "reset", reset(key, environment), one, "under vmap and in a loop")
    together = _run_vmapped(
        env, "step", env.step, *([getattr(v, a) for v in chosen] for a in _ARGUMENTS), environments
    )
    for visit, environment, one in zip(chosen, environments, together, strict=True):
        _, alone = step(visit.key, visit.state, visit.timestep, environment, 1)
        _check_equal(env, "step", alone, one, "under vmap and in a loop")


def _run_vmapped(
    env: Environment, name: str, function: Callable, *batches: list[Tree]
) -> list[Any]:
    try:
        together = jax.jit(jax.vmap(function))(*[_stack(batch) for batch in batches])
        return _rows(together, len(batches[0]))
    except Exception as error:
        fail(
            env,
            f"{name} raises {brief(error)} under vmap over keys, states, actions and params; "
            "it must work on one instance whose arguments are all arrays",
            error,
        )


def _check_equal(
    env: Environment, name: str, first: Any, second: Any, how: str, exact: bool = False
) -> None:
    if jax.tree.structure(first) != jax.tree.structure(second):
        fail(env, f"{name} returns different structures {how}; it must be a pure function")
    for (path, x), (_, y) in zip(leaves_of(first), leaves_of(second), strict=True):
        x, y = _plain(x), _plain(y)
        inexact = not exact and np.issubdtype(x.dtype, np.inexact)
        same = (
            np.allclose(x, y, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
            if inexact
            else np.array_equal(x, y, equal_nan=np.issubdtype(x.dtype, np.inexact))
        )
        if not same:
            part = ("state" if path.startswith("[0]") else "timestep") + path[3:]
            fail(
                env,
                f"{name} returns a different {part} {how} ({_short(x)} and {_short(y)}); it must "
                "be a pure function of its arguments",
            )


def _check_max_steps(env: Environment, step: _RandomSteps) -> None:
    """Check a whole episode, since most are longer than the rollout."""
    if env.max_steps is None or env.max_steps > LONGEST_EPISODE:
        return
    params = _arrays(env.params)
    state, timestep = jax.jit(env.reset)(jax.random.key(4), params)
    _, (_, timestep) = step(jax.random.key(5), state, timestep, params, env.max_steps)
    _check_values(env, "step", timestep)
    if _is_done(timestep):
        return
    fail(
        env,
        f"step leaves an episode running after {env.max_steps} steps, which is max_steps; that "
        "step must be terminated or truncated",
    )


def _check_render(env: Environment, visited: list[_Visit]) -> None:
    if env.render is None:
        return
    frame = env.render(visited[0].state, env.params)
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.shape[2:] != (3,):
        fail(
            env,
            f"render returns {describe(frame)}; it must return a uint8 array [height, width, 3]",
        )


def _check_step_seconds(env: Environment, visited: list[_Visit]) -> None:
    if env.step_seconds is None:
        return
    seconds = env.step_seconds(visited[0].state, env.params)
    if np.shape(seconds) != () or not 0.0 < seconds < np.inf:
        fail(env, f"step_seconds returns {seconds}; it must return a positive number")


def _check_expert(env: Environment, visited: list[_Visit]) -> None:
    if env.expert is None:
        return
    actions = jax.jit(jax.vmap(env.expert, in_axes=(0, None)))(
        _stack([v.state for v in visited]), _arrays(env.params)
    )
    for action in _rows(actions, len(visited)):
        if not spaces.contains(env.action_space, action):
            fail(
                env,
                f"expert returns {describe(action)} with the value {action}; it must be an "
                f"element of action_space, {env.action_space}",
            )


def _check_goals(env: Environment, visited: list[_Visit]) -> None:
    """Check that a step terminates where `goals` say that its own goal is reached."""
    goals = env.goals
    if goals is None:
        return

    def ends(timestep: TimeStep) -> Array:
        achieved = goals.achieved(timestep.observation)
        return goals.outcome(achieved, timestep.goal, env.params)[1] & ~timestep.terminated

    if np.any(jax.jit(jax.vmap(ends))(_stack([visit.result[1] for visit in visited]))):
        fail(
            env,
            "goals.outcome terminates a step that the environment does not; both must end the same "
            "steps",
        )


def _check_state_of(env: Environment, visited: list[_Visit]) -> None:
    """Check that a step from `state_of` leads to the same observation, reward and end, but for
    rounding, as the step from the state itself."""
    if env.state_of is None:
        return
    states = jax.jit(jax.vmap(env.state_of))(_stack([visit.timestep for visit in visited]))
    expected = _stack([visit.state for visit in visited])
    shapes = lambda tree: [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]
    same = jax.tree.structure(states) == jax.tree.structure(expected)
    if not same or shapes(states) != shapes(expected):
        fail(env, f"state_of returns {describe(states)}; it must return what step takes")
    keys = _stack([visit.key for visit in visited])
    actions = _stack([visit.action for visit in visited])
    step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))
    found = step(keys, states, actions, _arrays(env.params))[1]
    truth = _stack([visit.result[1] for visit in visited])
    for name in ("observation", "reward", "terminated"):
        pairs = zip(
            jax.tree.leaves(getattr(found, name)),
            jax.tree.leaves(getattr(truth, name)),
            strict=True,
        )
        if not all(np.allclose(x, y, rtol=1e-3, atol=1e-4) for x, y in pairs):
            fail(
                env,
                f"a step from state_of leads to another {name} than the step from the state that "
                "the time step was made from",
            )


def _check_judge(env: Environment, visited: list[_Visit]) -> None:
    """Check that `judge` compares what time steps say of themselves, in both orders alike."""
    if env.judge is None:
        return
    steps = _stack([visit.result[1] for visit in visited])
    judged = (steps.privileged or {}).get("judged")
    if judged is None:
        fail(env, "judge has nothing to compare; time steps need privileged['judged']")
    other = jax.tree.map(lambda x: np.roll(x, 1, 0), judged)
    judge = jax.jit(env.judge)
    won, lost = np.asarray(judge(judged, other)), np.asarray(judge(other, judged))
    if won.shape != steps.reward.shape[:1] or not ((won >= 0) & (won <= 1)).all():
        fail(env, "judge must return one probability in [0, 1] for each pair")
    if not np.allclose(won + lost, 1, atol=1e-5):
        fail(env, "judge prefers one of two and the other with probabilities that do not add to 1")


# ---------------------------------------------------------------------------------- helpers


def _arrays(params: Tree, scale: float = 1.0) -> Tree:
    """Convert `params` to arrays, with real numbers multiplied by `scale`."""

    def array(leaf: Any) -> Array:
        dtype = jnp.result_type(leaf)
        floating = jnp.issubdtype(dtype, jnp.floating)
        return jnp.asarray(np.asarray(leaf) * scale if floating else leaf, dtype)

    return jax.tree.map(array, params)


def _stack(trees: list[Tree]) -> Tree:
    """Stack on the host, except for keys: JAX would compile an operation for each shape."""
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if _is_key(leaves[0]) else np.stack(leaves), *trees
    )


def _rows(tree: Tree, number: int) -> list[Tree]:
    """Undo `_stack`, as NumPy arrays; keys become their data."""
    host = jax.tree.map(_plain, tree)
    return [jax.tree.map(lambda x, i=i: x[i], host) for i in range(number)]


def _plain(leaf: Any) -> np.ndarray:
    """Convert a leaf to a NumPy array; a typed key becomes its data."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _short(array: np.ndarray) -> str:
    return np.array2string(array, precision=4, threshold=4, edgeitems=2).replace("\n", "")
