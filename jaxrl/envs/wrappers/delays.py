"""Actions that take effect later, and observations that arrive later."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs.wrappers import arguments
from jaxrl.envs.wrappers.lifting import lift_fields, without_legal_actions


@struct
class ActionDelay:
    """Parameters of `action_delay`."""

    inner: Tree
    action_delay: int  # steps by which actions are late, at most the wrapper's max_delay


@struct
class ObservationDelay:
    """Parameters of `observation_delay`."""

    inner: Tree
    observation_delay: int  # steps by which observations are late, at most the wrapper's max_delay


@struct
class State:
    """State of the wrapped environment and the latest actions or observations, newest first."""

    inner: Tree
    past: tuple[Tree, ...]  # max_delay actions or observations


def action_delay(env: Environment, max_delay: int = 1, delay: int | None = None) -> Environment:
    """Delay actions: each takes effect `delay` steps after it was chosen.

    max_delay: the longest delay that `params.action_delay` may set; determines shapes.
    delay: the default of `params.action_delay`, in steps (default: `max_delay`). 0 is no delay.

    Until the first action takes effect, the environment receives zeros (the element of the action
    space nearest to them). Pending actions are not observed: the agent must remember them. `expert`
    is None, since it would act for the wrong moment. Raises `UserError` for impossible delays, and
    for environments with `legal_actions`.
    """
    delay = _check_delays(env, "action delay", max_delay, delay)
    without_legal_actions(env, "action_delay")
    return _action_delay(env, int(max_delay), delay)


@functools.cache
def _action_delay(env: Environment, max_delay: int, delay: int) -> Environment:
    idle = jax.tree.map(_idle, env.action_space, is_leaf=spaces.is_space)

    def reset(key, params):
        inner, timestep = env.reset(key, params.inner)
        nothing = jax.tree.map(jnp.asarray, idle)
        return State(inner, (nothing,) * max_delay), timestep

    def step(key, state, action, params):
        action = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), action, idle)
        due, past = _push(action, state.past, params.action_delay)
        inner, timestep = env.step(key, state.inner, due, params.inner)
        return State(inner, past), timestep

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=ActionDelay(env.params, delay),
        **(lift_fields(env, state=True, params=True) | {"expert": None}),
    )


def observation_delay(
    env: Environment, max_delay: int = 1, delay: int | None = None
) -> Environment:
    """Delay observations by `delay` steps; until the first late one arrives, the first is repeated.

    The arguments are those of `action_delay`; the delay is `params.observation_delay`. Only
    `observation` is late: the reward, the ends and every other channel belong to the step just
    taken. `goals` is None, since the achieved goal is not what is observed. Raises `UserError` for
    impossible delays.
    """
    delay = _check_delays(env, "observation delay", max_delay, delay)
    return _observation_delay(env, int(max_delay), delay)


@functools.cache
def _observation_delay(env: Environment, max_delay: int, delay: int) -> Environment:
    def reset(key, params):
        inner, timestep = env.reset(key, params.inner)
        return State(inner, (timestep.observation,) * max_delay), timestep

    def step(key, state, action, params):
        inner, timestep = env.step(key, state.inner, action, params.inner)
        seen, past = _push(timestep.observation, state.past, params.observation_delay)
        return State(inner, past), dataclasses.replace(timestep, observation=seen)

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=ObservationDelay(env.params, delay),
        **(lift_fields(env, state=True, params=True) | {"goals": None}),
    )


def _check_delays(env: Environment, what: str, max_delay: int, delay: int | None) -> int:
    longest = arguments.positive_integer(env, f"longest {what}", max_delay)
    delay = longest if delay is None else delay
    if isinstance(delay, bool) or delay not in range(longest + 1):
        raise UserError(
            f"The {what} of '{env.name}' is {delay!r}; it must be an integer from 0 to {longest}."
        )
    return int(delay)


def _push(latest: Tree, past: tuple[Tree, ...], delay: Array | int) -> tuple[Tree, tuple]:
    """Return the entry that is due now, `delay` steps late, and the past for the next step."""
    line = (latest, *past)
    # select_n, not a gather: a few selects, even if every environment has its own delay.
    place = jnp.clip(jnp.asarray(delay, jnp.int32), 0, len(past))
    due = jax.tree.map(lambda *xs: _choose(place, xs), *line)
    return due, line[:-1]


def _choose(place: Array, choices: tuple[Array, ...]) -> Array:
    if len(choices) == 2:  # select_n needs a bool in this case
        return jnp.where(place == 1, choices[1], choices[0])
    return jax.lax.select_n(place, *choices)


def _idle(space: spaces.Space) -> np.ndarray:
    zeros = np.zeros(space.shape, space.dtype)
    return np.clip(zeros, *spaces.bounds(space)) if isinstance(space, spaces.Box) else zeros
