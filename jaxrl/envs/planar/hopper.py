"""Hop forward on one leg without falling.

Observation: float32 [11]: height of the torso (m), its angle (rad, positive forward), the angles of
hip, knee and ankle (rad), then the velocities of x, z, the torso's angle and the three joints, each
clipped to [-10, 10]. Action: float32 [3], clipped to [-1, 1], times 200 N m at hip, knee and ankle.
Reward: forward velocity (m/s) + 1 while healthy - 0.001 |action|^2 (`reward_components`: forward,
healthy, control). Terminates when unhealthy: torso at 0.7 m or below, tilted by 0.2 rad or more, or
any other number of the state at 100 or beyond; time limit 1,000 steps of 0.008 s. `metrics`: the
distance covered (m) and speed (m/s), the fractions of the episode in flight and with the foot on
the ground. Modeled on Gymnasium's `Hopper-v5` (Erez, Tassa and Todorov, 2011, "Infinite-horizon
model predictive control for periodic tasks with contacts"); `locomotion` says what differs from
MuJoCo, whose integrator is Runge-Kutta at the same 0.002 s. The step is differentiable, but through
contacts the gradients grow quickly with the number of steps and say little about the return; in
flight they are exact.
"""

from __future__ import annotations

import functools

import numpy as np

from jaxrl.core.types import Environment
from jaxrl.envs import drawing
from jaxrl.envs.planar.capsules import Capsule, masses
from jaxrl.envs.planar.locomotion import Body, Params, locomotion
from jaxrl.envs.planar.skeletons import FREE, NO_PARENT, REVERSED_HINGE, Skeleton

_TORSO, _THIGH, _LEG, _FOOT = range(4)

_CAPSULES = (
    Capsule(_TORSO, (0.0, -0.2), (0.0, 0.2), 0.05),
    Capsule(_THIGH, (0.0, -0.45), (0.0, 0.0), 0.05),
    Capsule(_LEG, (0.0, -0.5), (0.0, 0.0), 0.04),
    Capsule(_FOOT, (-0.13, 0.0), (0.26, 0.0), 0.06),
)
# Link and point: heel, toe, knee, and the ends of the torso.
_FEELERS = (
    (_FOOT, _CAPSULES[3].start),
    (_FOOT, _CAPSULES[3].end),
    (_LEG, _CAPSULES[2].end),
    (_TORSO, _CAPSULES[0].start),
    (_TORSO, _CAPSULES[0].end),
)


@functools.cache
def hopper() -> Environment:
    """The hopper, limited to 1,000 steps."""
    return locomotion(body())


@functools.cache
def body() -> Body:
    """Describe the hopper for `locomotion`."""
    skeleton = Skeleton(
        parents=(NO_PARENT, _TORSO, _THIGH, _LEG),
        joints=(FREE,) + (REVERSED_HINGE,) * 3,
        motors=(_THIGH, _LEG, _FOOT),
        limited=(_THIGH, _LEG, _FOOT),
        feelers=tuple(link for link, _ in _FEELERS),
    )
    params = Params(
        **masses(_CAPSULES, 4),
        place=np.array([(0.0, 0.0), (0.0, -0.2), (0.0, -0.45), (0.0, -0.5)]),
        armature=np.array([0.0, 1.0, 1.0, 1.0]),
        damping=np.array([0.0, 1.0, 1.0, 1.0]),
        stiffness=np.zeros(4),
        low=np.radians([-360.0, -150.0, -150.0, -45.0]),
        high=np.radians([360.0, 0.0, 0.0, 45.0]),
        stop_stiffness=4000.0,
        stop_damping=130.0,
        gear=np.full(3, 200.0),
        feeler=np.array([point for _, point in _FEELERS]),
        radius=np.array([0.06, 0.06, 0.05, 0.05, 0.05]),
        friction=np.array([2.0, 2.0, 1.0, 1.0, 1.0]),
        start=np.array([0.0, 1.25, 0.0, 0.0, 0.0, 0.0]),
        dt=0.002,
        control_weight=1e-3,
        healthy_reward=1.0,
        min_height=0.7,
        max_tilt=0.2,
        max_number=100.0,
        start_noise=0.005,
    )
    return Body(
        name="hopper",
        skeleton=skeleton,
        params=params,
        substeps=4,
        feet=(("foot", (0, 1)),),
        capsules=_CAPSULES,
        colors=(drawing.STEEL, drawing.BLUE, drawing.ORANGE, drawing.GREEN),
        max_speed=10.0,
    )
