"""Swing up the pole on a cart by pushing the cart, and balance it near the middle of the track.

Observation: float32 [5]: the cart's position (m), cosine and sine of the pole's angle from upright
(positive to the right), the cart's velocity (m/s) and the pole's angular velocity (rad/s). Action:
float32 [1], clipped to [-1, 1], times 10 N. Reward: the product of (1 + cos angle) / 2 and of three
factors that fall off to 1/2, 4/5 and 1/2 with the cart's distance from the middle, the action and
the angular velocity: within [0, 1]; with `reward="sparse"`, 1 where the cart is within 0.25 m of
the middle and the cosine is at least 0.995, else 0. Starts near rest with the pole hanging down.
Never terminates; time limit 1,000 steps of 0.01 s. `metrics`: success, which is the sparse reward.
Modeled on the DeepMind Control Suite's `cartpole` `swingup` and `swingup_sparse` (Tassa et al.,
2018): body, reward and starts are the same; the end stops of the track at +-1.8 m are springs and
dampers, and the integrator is semi-implicit Euler with two substeps rather than one of Runge-Kutta.
The expert pumps energy into the pole and balances it with a linear-quadratic regulator for the
default body. Step and dense reward are smooth, and their gradients exact, wherever the cart is off
its end stops.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import one_of
from jaxrl.envs.planar import articulated, capsules, skeletons, tasks
from jaxrl.envs.planar.capsules import Capsule
from jaxrl.envs.planar.skeletons import HINGE, NO_PARENT, SLIDE_X, Physics, Skeleton
from jaxrl.envs.wrappers.time_limit import time_limit

SKELETON = Skeleton(parents=(NO_PARENT, 0), joints=(SLIDE_X, HINGE), motors=(0,), limited=(0,))
_POLE = Capsule(0, (0.0, 0.0), (0.0, 1.0), 0.045)
_SUBSTEPS = 2

# Action = -gain . (q, velocity): the discrete regulator for the default body with the costs 1, 10,
# 0.1, 0.1 and 1 on the action.
GAIN = (-0.927, -7.443, -1.133, -1.798)


@struct
class Params(Physics):
    dt: float = 0.005  # s, length of a substep
    start_noise: float = 0.01  # standard deviation of coordinates and velocities at the start
    delay: float = 0.0  # delay of an action, in steps, from 0 to 1


@struct
class State:
    q: Array  # [2]: position, angle
    velocity: Array  # [2]
    action: Array  # [1]: the previous action


@functools.cache
def cartpole_swingup(reward: str = "dense") -> Environment:
    """The cart and pole to swing up, limited to 1,000 steps; `reward`: "dense" or "sparse"."""
    one_of("cartpole_swingup", "reward", reward, ("dense", "sparse"))
    pole = capsules.masses((_POLE,), 1, total=0.1)
    params = Params(
        mass=np.array([1.0, pole["mass"][0]]),
        inertia=np.array([1.0, pole["inertia"][0]]),  # the cart cannot turn
        center=np.array([(0.0, 0.0), pole["center"][0]]),
        place=np.zeros((2, 2)),
        armature=np.zeros(2),
        damping=np.array([5e-4, 2e-6]),
        stiffness=np.zeros(2),
        low=np.array([-1.8, -math.inf]),
        high=np.array([1.8, math.inf]),
        stop_stiffness=200.0,
        stop_damping=25.0,
        gear=np.array([10.0]),
    )
    return time_limit(
        Environment(
            name="cartpole_swingup",
            reset=jax.jit(_reset, inline=True),
            step=jax.jit(functools.partial(_step, reward == "sparse"), inline=True),
            params=params,
            observation_space=Box(-math.inf, math.inf, (5,)),
            action_space=Box(-1.0, 1.0, (1,)),
            render=_render,
            step_seconds=lambda state, params: _SUBSTEPS * params.dt,
            expert=_expert,
        ),
        1000,
    )


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    noise = params.start_noise * jax.random.normal(key, (4,), jnp.float32)
    state = State(q=noise[:2] + jnp.array([0.0, jnp.pi]), velocity=noise[2:], action=jnp.zeros(1))
    return state, timesteps.first(_observation(state), metrics={"success": _success(state)})


def _step(
    sparse: bool, key: Key, state: State, action: Array, params: Params
) -> tuple[State, TimeStep]:
    del key
    action = jnp.clip(action, -1.0, 1.0)
    acting = tasks.delay_action(action, state.action, params.delay)
    q, velocity = articulated.advance(
        SKELETON, params, state.q, state.velocity, acting, params.dt, _SUBSTEPS
    )
    state = State(q, velocity, action)
    success = _success(state)
    reward = success if sparse else _reward(state, action)
    return state, timesteps.following(_observation(state), reward, metrics={"success": success})


def _reward(state: State, action: Array) -> Array:
    upright = (1 + jnp.cos(state.q[1])) / 2
    centered = (1 + _bell(state.q[0] / 2.0)) / 2
    gentle = (5 - jnp.square(action[0])) / 5
    slow = (1 + _bell(state.velocity[1] / 5.0)) / 2
    return upright * centered * gentle * slow


def _bell(x: Array) -> Array:
    """Bell-shaped factor: 1 at 0 and 0.1 at plus and minus 1."""
    return jnp.exp(math.log(0.1) * jnp.square(x))


def _success(state: State) -> Array:
    return ((jnp.abs(state.q[0]) <= 0.25) & (jnp.cos(state.q[1]) >= 0.995)).astype(jnp.float32)


def _observation(state: State) -> Array:
    x, angle = state.q[0], state.q[1]
    return jnp.stack([x, jnp.cos(angle), jnp.sin(angle), state.velocity[0], state.velocity[1]])


def _expert(state: State, params: Params) -> Array:
    """Balance the pole if it is nearly upright, and otherwise accelerate the cart so that the
    pole's energy approaches that of standing upright (Astrom and Furuta, 2000)."""
    (x, angle), (speed, turning) = state.q, state.velocity
    angle = angle - 2 * jnp.pi * jnp.round(angle / (2 * jnp.pi))
    balance = -(GAIN[0] * x + GAIN[1] * angle + GAIN[2] * speed + GAIN[3] * turning)
    mass, moment = params.mass[1], params.mass[1] * params.center[1][1]
    inertia = params.inertia[1] + moment * params.center[1][1]
    cos = jnp.cos(angle)
    energy = inertia * turning**2 / 2 + moment * params.gravity * (cos - 1)
    acceleration = jnp.clip(60.0 * energy * turning * cos, -5.0, 5.0) - 2.0 * x - 1.0 * speed
    swing = (params.mass[0] + mass) * acceleration / params.gear[0]
    near = (jnp.abs(angle) < 0.35) & (jnp.abs(turning) < 3.0)
    return jnp.clip(jnp.where(near, balance, swing), -1.0, 1.0)[None]


def _render(state: State, params: Params) -> np.ndarray:
    q = np.asarray(state.q, float)
    pole = jax.tree.map(float, skeletons.poses(SKELETON, params, q)[1])
    x, edge = float(q[0]), float(params.high[0])
    canvas = drawing.Canvas(400, 260, scale=90, origin=(200, 130))
    tasks.track(canvas, edge + 0.2)
    tasks.rectangle(canvas, (x - 0.2, -0.1), (x + 0.2, 0.1), drawing.INK)
    canvas.rod((x, 0.0), pole.at((0.0, 1.0)), drawing.ORANGE, 0.09)
    canvas.circle((x, 0.0), 0.03, drawing.PAPER)
    return canvas.frame()
