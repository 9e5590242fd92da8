"""Crossing: two cars on roads that cross at right angles, without signals.

Agents "east" and "north" drive along their own roads; where the roads cross, both are at place 0.
In a step of `dt` seconds a car accelerates by `ACCELERATIONS`: action 0 brakes, 1 keeps its speed,
2 speeds up; speeds stay in [0, `FASTEST`]. The cars collide where they come nearer than `apart`,
looked at `LOOKS` times a step; that ends the episode. Reward of each: meters driven, less `effort`
times its acceleration squared, and `crash` less in a collision. Time limit `steps`. Metrics:
`collided`, `meters` of both together in the last step, and `passed`, the share of cars that are
past the crossing by more than `apart`.

At the beginning places are uniform in [-20, -8] and speeds in [1, 4]. Observation of each,
float32 [4]: own place / 20 and speed / 5, then those of the other. The scenario is that of two of
the games of Kim et al., 2025, at a small size: see `algorithms.igt_mpc`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

NAMES = ("east", "north")
ACCELERATIONS = np.array([-3.0, 0.0, 2.0], np.float32)  # m/s^2
FASTEST = 5.0  # m/s
FARTHEST = 20.0  # m
LOOKS = 4  # looks for a collision in a step


@struct
class Params:
    """Parameters of a crossing."""

    apart: float = 4.0  # m between the cars' centers, below which they collide
    effort: float = 0.05
    crash: float = 20.0
    dt: float = 0.5  # s


@struct
class State:
    place: Array  # float32 [2], m past the crossing
    speed: Array  # float32 [2], m/s
    collided: Array  # bool
    meters: Array  # float32, of both in the last step


def drive(place: Array, speed: Array, action: Array, params: Params) -> tuple[Array, Array]:
    """Return places [..., LOOKS] after each part of a step, and the speeds [...] after it."""
    places = []
    rate = jnp.asarray(ACCELERATIONS)[action]
    part = params.dt / LOOKS
    for _ in range(LOOKS):
        after = jnp.clip(speed + rate * part, 0.0, FASTEST)
        place = place + part * (speed + after) / 2
        speed = after
        places.append(place)
    return jnp.stack(places, -1), speed


def reward(meters: Array, action: Array, params: Params) -> Array:
    """Return the reward of meters driven by an action, without a collision."""
    return meters - params.effort * jnp.asarray(ACCELERATIONS)[action] ** 2


def near(place: Array, other: Array, params: Params) -> Array:
    """Return whether cars at these places of their roads collide."""
    return jnp.square(place) + jnp.square(other) < params.apart**2


def draw_cars(key: Key, count: tuple[int, ...] = ()) -> tuple[Array, Array]:
    """Return places and speeds [*count, 2] at the beginning of an episode."""
    one, two = jax.random.split(key)
    place = jax.random.uniform(one, (*count, 2), minval=-20.0, maxval=-8.0)
    return place, jax.random.uniform(two, (*count, 2), minval=1.0, maxval=4.0)


def features(place: Array, speed: Array, other: Array, other_speed: Array) -> Array:
    """Return the observation [..., 4] of a car and the other one."""
    pairs = (place / FARTHEST, speed / FASTEST, other / FARTHEST, other_speed / FASTEST)
    return jnp.stack(jnp.broadcast_arrays(*pairs), -1)


@functools.cache
def crossing(steps: int = 24) -> Environment:
    """A crossing of two roads. `steps`: time limit, at least 1."""
    name = "crossing"
    at_least(name, "steps", steps, 1)

    def channels(state: State, params: Params) -> tuple[dict, dict]:
        x, v = state.place, state.speed
        seen = {n: features(x[i], v[i], x[1 - i], v[1 - i]) for i, n in enumerate(NAMES)}
        whole = features(x[0], v[0], x[1], v[1])
        metrics = {
            "collided": state.collided.astype(jnp.float32),
            "meters": state.meters,
            "passed": (x > params.apart).mean(),
        }
        return seen, {"privileged": {"state": whole}, "metrics": metrics}

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        place, speed = draw_cars(key)
        state = State(place, speed, jnp.zeros((), bool), jnp.zeros(()))
        seen, more = channels(state, params)
        return state, timesteps.first(seen, jnp.zeros(2), **more)

    def step(key: Key, state: State, action: dict, params: Params) -> tuple[State, TimeStep]:
        chosen = jnp.stack([action[n] for n in NAMES])
        places, speed = drive(state.place, state.speed, chosen, params)
        collided = near(places[0], places[1], params).any()
        meters = places[:, -1] - state.place
        paid = reward(meters, chosen, params) - params.crash * collided
        state = State(places[:, -1], speed, collided, meters.sum())
        seen, more = channels(state, params)
        return state, timesteps.following(seen, paid, collided, **more)

    env = Environment(
        name=name,
        reset=reset,
        step=step,
        params=Params(),
        observation_space=dict.fromkeys(NAMES, Box(-np.inf, np.inf, (4,))),
        action_space=dict.fromkeys(NAMES, Discrete(len(ACCELERATIONS))),
        scores={"collided": "collided", "passed": "passed"},
        render=_draw,
        step_seconds=lambda state, params: params.dt,
        agents=NAMES,
    )
    return time_limit(env, steps)


def _draw(state: State, params: Params) -> np.ndarray:
    """Draw both roads and cars, with circles that must not meet."""
    canvas = drawing.Canvas(240, 240, scale=4.0, origin=(120, 120))
    for corners in (
        [(-30, -3), (30, -3), (30, 3), (-30, 3)],
        [(-3, -30), (3, -30), (3, 30), (-3, 30)],
    ):
        canvas.polygon(corners, drawing.SHADE)
    x, y = (float(np.clip(p, -28, 28)) for p in np.asarray(state.place))
    colors = (drawing.RED,) * 2 if bool(state.collided) else (drawing.BLUE, drawing.ORANGE)
    for center, color in zip(((x, 0.0), (0.0, y)), colors, strict=True):
        canvas.circle(center, float(params.apart) / 2, color)
    return canvas.frame()
