"""Parts that hopper, walker and cheetah share: a planar body on flat ground, rewarded for speed.

The same as in MuJoCo's bodies: links, masses, joints, motors, geometry, observation, reward,
healthy range, starts and the length of a control step, and, off the ground and the end stops, the
accelerations. Different: the ground (see `contacts`: springs and dampers at the capsules' ends, no
convex solver; MuJoCo takes the larger friction of a sphere and the ground, here the sphere's
friction is set to that), the end stops of the joints (springs and dampers), and the integrator
(semi-implicit Euler with stiff forces implicit). Capsule ends that never or hardly ever reach the
ground are left out, and links do not collide with each other. A policy trained on one is not
expected to transfer to the other without further training.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.planar import articulated, capsules, contacts, skeletons, tasks
from jaxrl.envs.planar.capsules import Capsule
from jaxrl.envs.planar.skeletons import Physics, Skeleton
from jaxrl.envs.planar.tasks import Color
from jaxrl.envs.wrappers.time_limit import time_limit


@struct
class Params(Physics):
    """Numbers of a body and of its task. Flat, so that each can be set by its name."""

    start: Any = ()  # [D], coordinates around which episodes start
    dt: float = 0.01  # s, length of a substep
    forward_weight: float = 1.0  # weight of the forward velocity in the reward
    control_weight: float = 0.1  # weight of |action|^2 in the cost
    healthy_reward: float = 0.0  # reward of a step that ends healthy
    min_height: float = -math.inf  # m; a healthy body is above this height
    max_height: float = math.inf  # m; a healthy body is below this height
    max_tilt: float = math.inf  # rad; the root of a healthy body tilts less than this
    max_number: float = math.inf  # bound of the other numbers of a healthy state, except x
    start_noise: float = 0.1  # half width of the uniform noise on the start
    delay: float = 0.0  # delay of an action, in steps, from 0 to 1


@struct
class Gait:
    """Record of the feet in this episode. A foot lands if a step ends with it on the ground and the
    step before did not."""

    down: Array  # [F]: 1 for each foot on the ground
    landed: Array  # [F]: 1 for the feet that landed last; all 0 before the first landing
    touched: Array  # [F]: steps that ended with the foot on the ground
    flown: Array  # steps that ended with no foot on the ground
    landings: Array
    alternations: Array  # landings on another foot than the last one


@struct
class State:
    q: Array  # [D]
    velocity: Array  # [D]
    gait: Gait
    steps: Array  # float32
    action: Array  # [M]: the previous action


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """Structure of a locomotion task. `feet`: name -> indices of its spheres."""

    name: str
    skeleton: Skeleton
    params: Params
    substeps: int
    feet: tuple[tuple[str, tuple[int, ...]], ...]
    capsules: tuple[Capsule, ...]
    colors: tuple[Color, ...]
    max_speed: float = math.inf  # observed velocities are clipped to plus and minus this
    terminates: bool = True  # whether an unhealthy body ends the episode
    normal_velocities: bool = False  # normal start velocities, of deviation `start_noise`
    expert: Callable[[Tree, Tree], Tree] | None = None


def locomotion(body: Body) -> Environment:
    """Build the environment of a body, limited to 1,000 steps."""
    size, motors = body.skeleton.size, len(body.skeleton.motors)
    bound = (math.inf,) * (size - 1) + (body.max_speed,) * size
    env = Environment(
        name=body.name,
        # One program for users who step by hand; inside another program, jit changes nothing.
        reset=jax.jit(functools.partial(_reset, body), inline=True),
        step=jax.jit(functools.partial(_step, body), inline=True),
        params=body.params,
        observation_space=Box(tuple(-x for x in bound), bound, (2 * size - 1,)),
        action_space=Box(-1.0, 1.0, (motors,)),
        render=functools.partial(_render, body),
        step_seconds=lambda state, params: body.substeps * params.dt,
        expert=body.expert,
        scores={"distance": "distance"},
    )
    return time_limit(env, 1000)


def _reset(body: Body, key: Key, params: Params) -> tuple[State, TimeStep]:
    size = body.skeleton.size
    noise = tasks.symmetric(key, 2 * size)
    position, velocity = noise[:size], noise[size:]
    if body.normal_velocities:
        velocity = tasks.normal(velocity)
    zero, feet = jnp.zeros((), jnp.float32), jnp.zeros(len(body.feet), jnp.float32)
    state = State(
        q=params.start + params.start_noise * position,
        velocity=params.start_noise * velocity,
        gait=Gait(feet, feet, feet, zero, zero, zero),
        steps=zero,
        action=jnp.zeros(len(body.skeleton.motors), jnp.float32),
    )
    return state, timesteps.first(
        _observation(body, state),
        reward_components={"forward": zero, "control": zero, "healthy": zero},
        metrics=_metrics(body, state, params),
    )


def _step(
    body: Body, key: Key, state: State, action: Array, params: Params
) -> tuple[State, TimeStep]:
    del key
    action = jnp.clip(action, -1.0, 1.0)
    acting = tasks.delay_action(action, state.action, params.delay)
    before = state.q[0]
    q, velocity = articulated.advance(
        body.skeleton, params, state.q, state.velocity, acting, params.dt, body.substeps
    )
    gait = _update_gait(state.gait, _contacts(body, params, q))
    state = State(q, velocity, gait, state.steps + 1.0, action)
    healthy = _is_healthy(body, state, params)
    components = {
        "forward": params.forward_weight * (q[0] - before) / (body.substeps * params.dt),
        "control": -params.control_weight * jnp.square(action).sum(),
        "healthy": params.healthy_reward * healthy.astype(jnp.float32),
    }
    return state, timesteps.following(
        _observation(body, state),
        components["forward"] + components["control"] + components["healthy"],
        ~healthy if body.terminates else False,
        reward_components=components,
        metrics=_metrics(body, state, params),
    )


def _contacts(body: Body, params: Params, q: Array) -> Array:
    """Return which feet touch the ground, as 0 or 1 [F]."""
    places = skeletons.poses(body.skeleton, params, q)
    depths = contacts.depths(params, body.skeleton.feelers, places)
    feet = [functools.reduce(jnp.maximum, [depths[i] for i in s]) for _, s in body.feet]
    return (jnp.stack(feet) > 0.0).astype(jnp.float32)


def _update_gait(gait: Gait, down: Array) -> Gait:
    """Update the gait after a step that ended with the feet `down` on the ground."""
    landing = down * (1.0 - gait.down)
    return Gait(
        down=down,
        landed=jnp.where(landing.any(), landing, gait.landed),
        touched=gait.touched + down,
        flown=gait.flown + ~down.any(),
        landings=gait.landings + landing.sum(),
        alternations=gait.alternations + gait.landed.any() * (landing * (1 - gait.landed)).sum(),
    )


def _is_healthy(body: Body, state: State, params: Params) -> Array:
    if not body.terminates:
        return jnp.ones((), bool)
    height, tilt = state.q[1], jnp.abs(state.q[2])
    largest = jnp.maximum(jnp.abs(state.q[2:]).max(), jnp.abs(state.velocity).max())
    upright = (params.min_height < height) & (height < params.max_height)
    return upright & (tilt < params.max_tilt) & (largest < params.max_number)


def _observation(body: Body, state: State) -> Array:
    velocity = jnp.clip(state.velocity, -body.max_speed, body.max_speed)
    return jnp.concatenate([state.q[1:], velocity])


def _metrics(body: Body, state: State, params: Params) -> dict[str, Array]:
    """Return distance and speed (m/s) of the body; the fractions of the episode in flight and with
    each foot on the ground; for bodies with more than one foot, the fraction of alternating
    landings."""
    distance, gait = state.q[0] - params.start[0], state.gait
    steps = jnp.maximum(state.steps, 1.0)
    found = {"distance": distance, "speed": distance / (steps * body.substeps * params.dt)}
    found["flight"] = gait.flown / steps
    if len(body.feet) > 1:
        found["alternation"] = gait.alternations / jnp.maximum(gait.landings, 1.0)
    return found | {
        f"contact_{name}": gait.touched[i] / steps for i, (name, _) in enumerate(body.feet)
    }


def _render(body: Body, state: State, params: Params) -> np.ndarray:
    q = np.asarray(state.q, float)
    places = jax.tree.map(float, skeletons.poses(body.skeleton, params, q))
    canvas = drawing.Canvas(400, 260, scale=130, origin=(200 - 130 * q[0], 225))
    left, right = q[0] - 2.0, q[0] + 2.0
    tasks.rectangle(canvas, (left, -1.0), (right, 0.0), drawing.SHADE)
    canvas.line([(left, 0), (right, 0)], drawing.STEEL, 0.015)
    for mark in range(math.floor(left), math.ceil(right) + 1):  # one per meter, to show the speed
        canvas.line([(mark, 0), (mark, -0.08)], drawing.STEEL, 0.015)
    capsules.draw(canvas, body.capsules, places, body.colors)
    return canvas.frame()
