"""Balance two poles, one on top of the other, on a cart.

Observation: float32 [9]: the cart's position (m), the sines and then the cosines of the first
pole's angle from upright and of the second's from the first (positive to the right), the velocities
of cart and angles, and the force of the track's end stops on the cart (N), the last four clipped to
[-10, 10]. Action: float32 [1], clipped to [-1, 1], times 500 N. Reward: 10 unless it terminates,
minus 0.01 x^2 + (y - 2)^2 of the tip of the second pole, minus 0.001 and 0.005 times the squared
angular velocities. Terminates when the tip is 1 m above the track or lower; time limit 1,000 steps
of 0.05 s. With `swing_up` the poles start hanging down, nothing terminates, and the 10 are paid
while the tip is above 1 m. Modeled on Gymnasium's `InvertedDoublePendulum-v5` (equal accelerations
in the same state; the end stops at +-1 m are springs and dampers, and the integrator is
semi-implicit Euler at 0.0025 s rather than Runge-Kutta at 0.01 s). The expert is the
linear-quadratic regulator for the default body; it does not swing up. The step is smooth, and its
gradients exact, wherever the cart is off its end stops (the 10 are a jump, without a gradient), but
the motion is chaotic away from upright.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.planar import articulated, capsules, skeletons, tasks
from jaxrl.envs.planar.capsules import Capsule
from jaxrl.envs.planar.skeletons import HINGE, NO_PARENT, SLIDE_X, Physics, Skeleton
from jaxrl.envs.wrappers.time_limit import time_limit

SKELETON = Skeleton(
    parents=(NO_PARENT, 0, 1), joints=(SLIDE_X, HINGE, HINGE), motors=(0,), limited=(0,)
)
_CAPSULES = (
    Capsule(0, (-0.1, 0.0), (0.1, 0.0), 0.1),
    Capsule(1, (0.0, 0.0), (0.0, 0.6), 0.045),
    Capsule(2, (0.0, 0.0), (0.0, 0.6), 0.045),
)
_SUBSTEPS = 20

# Action = -gain . (q, velocity): the discrete regulator for the default body with the costs 1, 10,
# 10, 0.1, 0.1, 0.1 and 10 on the action.
GAIN = (0.123, 0.999, 4.119, 0.189, 0.586, 0.608)


@struct
class Params(Physics):
    tip: Any = ()  # [2], position of the tip in the second pole's frame
    dt: float = 0.0025  # s, length of a substep
    healthy_reward: float = 10.0  # reward of a step that does not terminate
    min_height: float = 1.0  # m, height of the tip at or below which an episode terminates
    start_noise: float = 0.1  # half width of start coordinates, deviation of start velocities
    delay: float = 0.0  # delay of an action, in steps, from 0 to 1


@struct
class State:
    q: Array  # [3]: position, angle of the first pole, angle of the second from the first
    velocity: Array  # [3]
    action: Array  # [1]: the previous action


@functools.cache
def double_pendulum(swing_up: bool = False) -> Environment:
    """The cart and poles, limited to 1,000 steps; `swing_up`: start from hanging down."""
    params = Params(
        **capsules.masses(_CAPSULES, 3),
        place=np.array([(0.0, 0.0), (0.0, 0.0), (0.0, 0.6)]),
        armature=np.zeros(3),
        damping=np.full(3, 0.05),
        stiffness=np.zeros(3),
        low=np.array([-1.0, -math.inf, -math.inf]),
        high=np.array([1.0, math.inf, math.inf]),
        stop_stiffness=3e4,
        stop_damping=1000.0,
        gear=np.array([500.0]),
        tip=np.array([0.0, 0.6]),
    )
    bound = (math.inf,) + (1.0,) * 4 + (10.0,) * 4
    return time_limit(
        Environment(
            name="double_pendulum",
            reset=jax.jit(functools.partial(_reset, swing_up), inline=True),
            step=jax.jit(functools.partial(_step, swing_up), inline=True),
            params=params,
            observation_space=Box(tuple(-x for x in bound), bound, (9,)),
            action_space=Box(-1.0, 1.0, (1,)),
            render=_render,
            step_seconds=lambda state, params: _SUBSTEPS * params.dt,
            expert=None if swing_up else _expert,
        ),
        1000,
    )


def _reset(swing_up: bool, key: Key, params: Params) -> tuple[State, TimeStep]:
    noise = tasks.symmetric(key, 6)
    hanging = jnp.array([0.0, jnp.pi if swing_up else 0.0, 0.0])
    state = State(
        q=hanging + params.start_noise * noise[:3],
        velocity=params.start_noise * tasks.normal(noise[3:]),
        action=jnp.zeros(1),
    )
    return state, timesteps.first(_observation(state, params))


def _step(
    swing_up: bool, key: Key, state: State, action: Array, params: Params
) -> tuple[State, TimeStep]:
    del key
    action = jnp.clip(action, -1.0, 1.0)
    acting = tasks.delay_action(action, state.action, params.delay)
    q, velocity = articulated.advance(
        SKELETON, params, state.q, state.velocity, acting, params.dt, _SUBSTEPS
    )
    state = State(q, velocity, action)
    x, y = skeletons.poses(SKELETON, params, state.q)[2].at(params.tip)
    low = y <= params.min_height
    _, first, second = state.velocity
    reward = (
        params.healthy_reward * (~low).astype(jnp.float32)
        - (0.01 * x**2 + (y - 2.0) ** 2)
        - (1e-3 * first**2 + 5e-3 * second**2)
    )
    return state, timesteps.following(
        _observation(state, params), reward, False if swing_up else low
    )


def _observation(state: State, params: Params) -> Array:
    push, _, damping = articulated.end_stop(params, 0, state.q[0])
    force = push - damping * state.velocity[0]
    last = jnp.clip(jnp.append(state.velocity, force), -10.0, 10.0)
    return jnp.concatenate([state.q[:1], jnp.sin(state.q[1:]), jnp.cos(state.q[1:]), last])


def _expert(state: State, params: Params) -> Array:
    del params
    numbers = jnp.concatenate([state.q, state.velocity])
    return jnp.clip(-(jnp.array(GAIN) * numbers).sum(), -1.0, 1.0)[None]


def _render(state: State, params: Params) -> np.ndarray:
    places = jax.tree.map(float, skeletons.poses(SKELETON, params, np.asarray(state.q, float)))
    edge = float(params.high[0])
    canvas = drawing.Canvas(360, 360, scale=130, origin=(180, 180))
    height = float(params.min_height)
    for left in np.arange(-1.4, 1.4, 0.2):  # dashes at the height where episodes end
        canvas.line([(left, height), (left + 0.1, height)], drawing.RED, 0.012)
    tasks.track(canvas, edge + 0.2)
    capsules.draw(canvas, _CAPSULES, places, (drawing.INK, drawing.BLUE, drawing.ORANGE))
    return canvas.frame()
