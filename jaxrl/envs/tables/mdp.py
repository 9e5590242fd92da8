"""A finite Markov decision process as a table of outcomes, and the environment that plays it.

`S` states, `A` actions, `K` outcomes of each pair of state and action. The table is the
environment's `params`, so another MDP of the same sizes is just another argument. Outcomes are
stored as lists of the `K` states that can follow, not as rows of all `S`, so a step reads only `K`
numbers. `tensors` gives the dense form of textbooks, which `jaxrl.exact` solves.

`expert` reads an optimal policy that is part of the table, `optimal`, solved when the table was
built, at the discount that each environment's docstring names. It is stale once the table has
changed; `solve` updates it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.wrappers.time_limit import time_limit

OBSERVATIONS = ("one_hot", "index", "features")
FEW = 32  # up to this many numbers, a linear search is faster than a binary one


@struct
class Table:
    """Table of outcomes as NumPy arrays; float64, so that `tensors` are exact where JAX computes in
    it."""

    successor: Any  # int32 [S, A, K]: states that can follow
    probability: Any  # [S, A, K]; rows sum to 1, and entries may be 0
    reward: Any  # [S, A, K]: the reward of each outcome
    start: Any  # int32 [L]: the states in which episodes begin
    start_probability: Any  # [L]: probability of each of these states
    terminal: Any  # bool [S]: states whose arrival ends the episode
    optimal: Any  # int32 [S]: actions of `expert`; stale once another field changes, see `solve`
    noise: Any = None  # [S, A] or None: standard deviation of Gaussian noise on the reward
    success: Any = None  # bool [S] or None: states whose arrival counts as success
    features: Any = None  # [S, F] or None: features observed instead of the state


@struct
class State:
    index: Array  # int32: number of the state


class Tensors(NamedTuple):
    """MDP in dense form. Rows of terminal states are zero in both tensors."""

    transition: Array  # [S, A, S]: probability of each successor
    reward: Array  # [S, A]: expected reward
    initial: Array  # [S]
    terminal: Array  # bool [S]


def build(
    successor: Any,
    probability: Any,
    reward: Any,
    start: Any = 0,
    terminal: Any = (),
    discount: float = 0.99,
    *,
    start_probability: Any = None,
    optimal: Any = None,
    noise: Any = None,
    success: Any = None,
    features: Any = None,
) -> Table:
    """Build a `Table` from arrays that broadcast against `successor` [S, A, K].

    start: the state, or the states [L], in which episodes begin, uniformly or by
        `start_probability` [L].
    terminal, success: indices of states; `success` is None if there is no notion of success.
    optimal: the actions [S] of `expert`; by default the best ones at `discount`, by value
        iteration, ties to the lowest index.

    Raises `UserError` for successors, starts and ends that are not states, rewards that are not
    finite, and probabilities that are negative or do not sum to 1.
    """
    successor = np.asarray(successor, np.int32)
    states = len(successor)
    probability = np.array(np.broadcast_to(probability, successor.shape), np.float64)
    reward = np.array(np.broadcast_to(reward, successor.shape), np.float64)
    if not np.all(np.isfinite(reward)):
        raise UserError("A table has rewards that are not finite; they must be numbers.")
    _check_states("successors", successor, states)
    check_distribution("outcomes of each state and action", probability)
    start = np.atleast_1d(np.asarray(start, np.int32))
    _check_states("starts", start, states)
    if start_probability is None:
        start_probability = np.full(len(start), 1 / len(start))
    check_distribution("starts", np.asarray(start_probability))
    terminal = _flags("terminal states", terminal, states)
    if optimal is None:
        optimal = _optimal(successor, probability, reward, terminal, discount)
    return Table(
        successor=successor,
        probability=probability,
        reward=reward,
        start=start,
        start_probability=np.asarray(start_probability, np.float64),
        terminal=terminal,
        optimal=np.asarray(optimal, np.int32),
        noise=None if noise is None else np.array(np.broadcast_to(noise, successor.shape[:2])),
        success=None if success is None else _flags("successes", success, states),
        features=None if features is None else np.asarray(features, np.float64),
    )


def from_tensors(transition: Any, reward: Any, start: Any = 0, **others: Any) -> Table:
    """Build a `Table` from dense tensors: transition [S, A, S]; reward [S, A], or [S, A, S] if it
    depends on the successor. `others` as for `build`."""
    transition, reward = np.asarray(transition), np.asarray(reward)
    successor = np.broadcast_to(np.arange(transition.shape[-1]), transition.shape)
    if reward.ndim == 2:
        reward = reward[..., None]
    return build(successor, transition, reward, start, **others)


def tensors(table: Table) -> Tensors:
    """Convert `table` to dense form; it may be traced."""
    successor, probability = jnp.asarray(table.successor), jnp.asarray(table.probability)
    terminal = jnp.asarray(table.terminal)
    states, actions, _ = successor.shape
    alive = jnp.where(terminal[:, None, None], 0.0, probability)
    s, a = jnp.ogrid[:states, :actions]
    transition = jnp.zeros((states, actions, states), alive.dtype)
    initial = jnp.zeros(states, alive.dtype).at[jnp.asarray(table.start)]
    return Tensors(
        transition.at[s[..., None], a[..., None], successor].add(alive),
        jnp.sum(alive * jnp.asarray(table.reward), axis=-1),
        initial.add(jnp.asarray(table.start_probability)),
        terminal,
    )


def solve(table: Table, discount: Array | float = 0.99, sweeps: int = 1000) -> Table:
    """Return `table` with the `optimal` actions at `discount`, after `sweeps` of value iteration;
    it may be traced. Only `expert` needs them: if it is not called, `jit` drops this."""
    successor, probability = jnp.asarray(table.successor), jnp.asarray(table.probability)
    expected = jnp.sum(probability * jnp.asarray(table.reward), axis=-1)

    def q(values):
        return _action_values(successor, probability, expected, values, discount)

    def sweep(_, values):
        return jnp.where(table.terminal, 0.0, q(values).max(-1))

    values = jax.lax.fori_loop(0, sweeps, sweep, jnp.zeros_like(expected[:, 0]))
    return dataclasses.replace(table, optimal=jnp.argmax(q(values), axis=-1).astype(jnp.int32))


def environment(
    name: str,
    table: Table,
    *,
    observation: str = "one_hot",
    max_steps: int | None = None,
    render: Callable[[State, Table], np.ndarray] | None = None,
) -> Environment:
    """Build the environment that plays `table`.

    observation: 'one_hot' (float32 [S]), 'index' (an int32 of `Discrete(S)`), or 'features' (the
        state's row of `table.features`, float32 [F]).
    max_steps: number of steps after which episodes are truncated.

    Raises `UserError` for any other observation.
    """
    states, actions, _ = table.successor.shape
    if observation not in OBSERVATIONS or (observation == "features" and table.features is None):
        raise UserError(
            f"The observation of '{name}' is {observation!r}; it must be 'one_hot' or 'index'"
            + ("." if table.features is None else ", or 'features'.")
        )
    if observation == "index":
        space, observe = Discrete(states), _index
    elif observation == "features":
        low, high = float(table.features.min()), float(table.features.max())
        space, observe = Box(low, high, table.features.shape[1:]), _features
    else:
        space, observe = Box(0.0, 1.0, (states,)), _one_hot

    def timestep(make: Callable[..., TimeStep], index: Array, table: Table, *rest: Any) -> TimeStep:
        channels = {}
        if table.success is not None:
            success = look_up(table.success, index).astype(jnp.float32)
            channels["metrics"] = {"success": success}
        return make(observe(index, table), *rest, **channels)

    def reset(key: Key, table: Table) -> tuple[State, TimeStep]:
        index = look_up(table.start, choose(key, jnp.asarray(table.start_probability)))
        return State(index), timestep(timesteps.first, index, table)

    def step(key: Key, state: State, action: Array, table: Table) -> tuple[State, TimeStep]:
        if table.noise is not None:
            key, noise_key = jax.random.split(key)
        at = (state.index, action)
        outcome = choose(key, look_up(table.probability, *at))
        index, reward = (look_up(x, *at, outcome) for x in (table.successor, table.reward))
        if table.noise is not None:
            noise = jax.random.normal(noise_key, dtype=jnp.float32)  # pyright: ignore
            reward = reward + look_up(table.noise, *at) * noise
        terminated = look_up(table.terminal, index)
        return State(index), timestep(timesteps.following, index, table, reward, terminated)

    env = Environment(
        name=name,
        reset=reset,
        step=step,
        params=table,
        observation_space=space,
        action_space=Discrete(actions),
        render=render,
        expert=lambda state, table: look_up(table.optimal, state.index),
        state_of=_STATE_OF.get(observation),
    )
    return env if max_steps is None else time_limit(env, max_steps)


def choose(key: Key, probability: Array) -> Array:
    """Draw an index, int32, with `probability` [K], never one whose probability is 0, from a single
    uniform number (none if K = 1). For [..., K], one index [...] for each row."""
    *rows, count = probability.shape
    if count == 1:
        return jnp.zeros(rows, jnp.int32)
    cumulative = jnp.cumsum(probability, axis=-1)
    # A fraction of the sum as rounded: a number above it could choose an index beyond the end.
    number = jax.random.uniform(key, (*rows, 1), probability.dtype) * cumulative[..., -1:]
    if rows or count <= FEW:
        return jnp.sum(number >= cumulative[..., :-1], axis=-1, dtype=jnp.int32)
    place = jnp.searchsorted(cumulative[:-1], number[0], side="right", method="scan_unrolled")
    return place.astype(jnp.int32)


def look_up(array: Any, *index: Array) -> Array:
    """Return `array[index]` without checks for negative or too large indices."""
    at = jnp.asarray(array).at[index]
    return at.get(mode="promise_in_bounds", wrap_negative_indices=False)


def _one_hot(index: Array, table: Table) -> Array:
    return (jnp.arange(table.terminal.shape[0]) == index).astype(jnp.float32)


def _index(index: Array, table: Table) -> Array:
    return index


def _state_of_one_hot(timestep: TimeStep) -> State:
    return State(jnp.argmax(timestep.observation, axis=-1).astype(jnp.int32))


# Several states may have the same features.
_STATE_OF = {"one_hot": _state_of_one_hot, "index": lambda timestep: State(timestep.observation)}


def _features(index: Array, table: Table) -> Array:
    return look_up(table.features, index).astype(jnp.float32)


def _flags(what: str, indices: Any, states: int) -> np.ndarray:
    indices = np.asarray(indices, int)
    _check_states(what, indices, states)
    flags = np.zeros(states, bool)
    flags[indices] = True
    return flags


def _check_states(what: str, indices: np.ndarray, states: int) -> None:
    if indices.size and (indices.min() < 0 or indices.max() >= states):
        raise UserError(
            f"A table of {states} states has {what} from {indices.min()} to {indices.max()}; they "
            f"must lie in 0 .. {states - 1}."
        )


def check_distribution(what: str, probability: np.ndarray) -> None:
    """Raise `UserError` unless `probability` [..., K] is at least 0 and sums to 1."""
    total = probability.sum(-1)
    worst = total.flat[np.abs(total - 1).argmax()]
    if probability.min() < 0 or not math.isclose(worst, 1, abs_tol=1e-6):
        raise UserError(
            f"The probabilities of the {what} are as low as {probability.min():g} and sum to "
            f"{worst:g}; they must be at least 0 and sum to 1."
        )


def _action_values(successor, probability, expected, values, discount):
    """Return Q [S, A] from the `values` [S] of successors; for arrays of NumPy or JAX."""
    return expected + discount * (probability * values[successor]).sum(-1)


def _optimal(successor, probability, reward, terminal, discount) -> np.ndarray:
    """Return the greedy actions [S] at the fixed point of value iteration, on the host in
    float64."""
    expected = (probability * reward).sum(-1)
    values = np.zeros(len(successor))
    for _ in range(100_000):
        q = _action_values(successor, probability, expected, values, discount)
        improved = np.where(terminal, 0.0, q.max(-1))
        change, values = np.abs(improved - values).max(), improved
        if change <= 1e-12 * max(1.0, np.abs(values).max()):
            break
    best = q.max(-1, keepdims=True)
    return (q >= best - 1e-9 * np.maximum(1.0, np.abs(best))).argmax(-1)
