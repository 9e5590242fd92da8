"""Move the tip of a two-link arm to a random target in a horizontal plane.

Observation: float32 [8]: cosines of the two joint angles, their sines, both angular velocities
(rad/s), and the tip's position (x, y; m). The goal, in `timestep.goal`: float32 [2], a position
(m). Action: float32 [2], clipped to [-1, 1], times 200 N m at shoulder and elbow. Reward: minus the
distance between tip and goal (m), or with `reward="sparse"` 0 within `goal_radius` (0.02 m) and -1
elsewhere; less `control_weight` |action|^2. `control_weight` is 1, as published, and 0 for sparse
rewards. `Goals.outcome` is only the goal's part, since no observation shows the action;
`goals.relabel` keeps the rest. Never terminates; time limit 50 steps of 0.02 s. `metrics`: success,
whether the tip is within `goal_radius`. Modeled on Gymnasium's `Reacher-v5` (equal accelerations in
the same state; the elbow's end stop is a spring and the integrator semi-implicit Euler, not
Runge-Kutta, at the same 0.01 s). The expert uses inverse kinematics and a proportional-derivative
controller. The step is smooth, and its gradients exact, wherever the elbow is off its stop.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Goals, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import one_of
from jaxrl.envs.planar import articulated, capsules, skeletons, tasks, vectors
from jaxrl.envs.planar.capsules import Capsule
from jaxrl.envs.planar.skeletons import NO_PARENT, REVERSED_HINGE, Physics, Skeleton
from jaxrl.envs.wrappers.time_limit import time_limit

# The kit's z is the y of this horizontal plane: no gravity. Angles are counterclockwise.
_SKELETON = Skeleton(
    parents=(NO_PARENT, 0), joints=(REVERSED_HINGE, REVERSED_HINGE), motors=(0, 1), limited=(1,)
)
_CAPSULES = (
    Capsule(0, (0.0, 0.0), (0.1, 0.0), 0.01),
    Capsule(1, (0.0, 0.0), (0.1, 0.0), 0.01),
    Capsule(1, (0.11, 0.0), (0.11, 0.0), 0.01),  # the tip, a ball
)
_SUBSTEPS = 2


@struct
class Params(Physics):
    tip: Any = ()  # [2], position of the tip in the second link's frame
    dt: float = 0.01  # s, length of a substep
    reach: float = 0.2  # m; targets are uniform in the disc of this radius
    control_weight: float = 1.0  # weight of |action|^2 in the cost
    goal_radius: float = 0.02  # m, distance at which the goal is reached
    start_angle: float = 0.1  # rad; start angles are uniform between minus and plus this
    start_speed: float = 0.005  # rad/s; start velocities are uniform between minus and plus this
    delay: float = 0.0  # delay of an action, in steps, from 0 to 1


@struct
class State:
    q: Array  # [2]
    velocity: Array  # [2]
    action: Array  # [2]: the previous action
    goal: Array  # [2]


@functools.cache
def reacher(reward: str = "dense") -> Environment:
    """The arm, limited to 50 steps; `reward`: "dense" or "sparse"."""
    one_of("reacher", "reward", reward, ("dense", "sparse"))
    sparse = reward == "sparse"
    outcome = _sparse if sparse else _dense
    params = Params(
        **capsules.masses(_CAPSULES, 2),
        place=np.array([(0.0, 0.0), (0.1, 0.0)]),
        armature=np.ones(2),
        damping=np.ones(2),
        stiffness=np.zeros(2),
        low=np.array([-math.inf, -3.0]),
        high=np.array([math.inf, 3.0]),
        stop_stiffness=3000.0,
        stop_damping=100.0,
        gear=np.full(2, 200.0),
        gravity=0.0,
        tip=np.array([0.11, 0.0]),
        control_weight=0.0 if sparse else 1.0,
    )
    return time_limit(
        Environment(
            name="reacher",
            reset=jax.jit(_reset, inline=True),
            step=jax.jit(functools.partial(_step, outcome), inline=True),
            params=params,
            observation_space=Box(-math.inf, math.inf, (8,)),
            action_space=Box(-1.0, 1.0, (2,)),
            render=_render,
            step_seconds=lambda state, params: _SUBSTEPS * params.dt,
            expert=_expert,
            goals=Goals(_achieved_goal, outcome),
        ),
        50,
    )


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    numbers = jax.random.uniform(key, (6,), jnp.float32, -1.0, 1.0)
    distance = params.reach * jnp.sqrt(jnp.abs(numbers[4]))
    angle = jnp.pi * numbers[5]
    state = State(
        q=params.start_angle * numbers[:2],
        velocity=params.start_speed * numbers[2:4],
        action=jnp.zeros(2),
        goal=distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)]),
    )
    observation = _observation(state, params)
    return state, timesteps.first(
        observation, goal=state.goal, metrics=_metrics(_achieved_goal(observation), state, params)
    )


def _step(
    outcome: Any, key: Key, state: State, action: Array, params: Params
) -> tuple[State, TimeStep]:
    del key
    action = jnp.clip(action, -1.0, 1.0)
    acting = tasks.delay_action(action, state.action, params.delay)
    q, velocity = articulated.advance(
        _SKELETON, params, state.q, state.velocity, acting, params.dt, _SUBSTEPS
    )
    state = State(q, velocity, action, state.goal)
    observation = _observation(state, params)
    tip = _achieved_goal(observation)
    reward, terminated = outcome(tip, state.goal, params)
    return state, timesteps.following(
        observation,
        reward - params.control_weight * jnp.square(action).sum(),
        terminated,
        goal=state.goal,
        metrics=_metrics(tip, state, params),
    )


def _dense(achieved: Array, goal: Array, params: Params) -> tuple[Array, Array]:
    del params
    return -vectors.norm(achieved - goal), jnp.zeros((), bool)


def _sparse(achieved: Array, goal: Array, params: Params) -> tuple[Array, Array]:
    there = vectors.norm(achieved - goal) <= params.goal_radius
    return there.astype(jnp.float32) - 1.0, jnp.zeros((), bool)


def _achieved_goal(observation: Array) -> Array:
    return observation[..., 6:8]


def _observation(state: State, params: Params) -> Array:
    tip = skeletons.poses(_SKELETON, params, state.q)[1].at(params.tip)
    return jnp.concatenate([jnp.cos(state.q), jnp.sin(state.q), state.velocity, jnp.stack(tip)])


def _metrics(tip: Array, state: State, params: Params) -> dict[str, Array]:
    return {
        "success": (vectors.norm(tip - state.goal) <= params.goal_radius).astype(jnp.float32),
    }


def _expert(state: State, params: Params) -> Array:
    first, second = params.place[1][0], params.tip[0]
    x, y = state.goal[0], state.goal[1]
    cos = (x * x + y * y - first**2 - second**2) / (2 * first * second)
    elbow = jnp.where(state.q[1] < 0, -1.0, 1.0) * jnp.arccos(jnp.clip(cos, -0.98, 1.0))
    shoulder = jnp.arctan2(y, x) - jnp.arctan2(
        second * jnp.sin(elbow), first + second * jnp.cos(elbow)
    )
    turn = shoulder - state.q[0]
    error = jnp.stack([turn - 2 * jnp.pi * jnp.round(turn / (2 * jnp.pi)), elbow - state.q[1]])
    # Gains with the best return: faster ones cost more in control than they save in distance.
    return jnp.clip(0.3 * error - 0.07 * state.velocity, -1.0, 1.0)


def _render(state: State, params: Params) -> np.ndarray:
    places = jax.tree.map(float, skeletons.poses(_SKELETON, params, np.asarray(state.q, float)))
    canvas = drawing.Canvas(300, 300, scale=560, origin=(150, 150))
    canvas.circle((0.0, 0.0), float(params.reach), drawing.SHADE)
    x, y = (float(number) for number in state.goal)
    canvas.circle((x, y), 0.016, drawing.RED)
    canvas.circle((x, y), 0.008, drawing.PAPER)
    capsules.draw(canvas, _CAPSULES, places, (drawing.BLUE, drawing.ORANGE, drawing.INK))
    canvas.circle((0.0, 0.0), 0.005, drawing.INK)
    return canvas.frame()
