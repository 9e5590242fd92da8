"""Walk forward on two legs without falling.

Observation: float32 [17]: height of the torso (m), its angle (rad, positive forward), the angles of
hip, knee and ankle of the right and of the left leg (rad), then the velocities of x, z, the torso's
angle and the six joints, each clipped to [-10, 10]. Action: float32 [6], clipped to [-1, 1], times
100 N m at the joints in the same order. Reward: forward velocity (m/s) + 1 while healthy - 0.001
|action|^2 (`reward_components`: forward, healthy, control). Terminates when unhealthy: torso at 0.8
m or below, at 2 m or above, or tilted by 1 rad or more; time limit 1,000 steps of 0.008 s.
`metrics`: the distance covered (m) and speed (m/s), the fractions of the episode in flight and with
each foot on the ground, and the fraction of landings on another foot than the last one
(alternation). Modeled on Gymnasium's `Walker2d-v5`; `locomotion` says what differs from MuJoCo,
whose integrator is Runge-Kutta at the same 0.002 s. The step is differentiable, but through
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

_TORSO, _THIGH, _LEG, _FOOT, _LEFT_THIGH, _LEFT_LEG, _LEFT_FOOT = range(7)


def _limb(thigh: int, leg: int, foot: int) -> tuple[Capsule, ...]:
    return (
        Capsule(thigh, (0.0, -0.45), (0.0, 0.0), 0.05),
        Capsule(leg, (0.0, -0.5), (0.0, 0.0), 0.04),
        Capsule(foot, (0.0, 0.0), (0.2, 0.0), 0.06),
    )


_CAPSULES = (
    *_limb(_LEFT_THIGH, _LEFT_LEG, _LEFT_FOOT),
    Capsule(_TORSO, (0.0, -0.2), (0.0, 0.2), 0.05),
    *_limb(_THIGH, _LEG, _FOOT),
)
# Link and point: heel, toe and knee of each leg, and the ends of the torso.
_FEELERS = (
    (_FOOT, (0.0, 0.0)),
    (_FOOT, (0.2, 0.0)),
    (_LEG, (0.0, 0.0)),
    (_LEFT_FOOT, (0.0, 0.0)),
    (_LEFT_FOOT, (0.2, 0.0)),
    (_LEFT_LEG, (0.0, 0.0)),
    (_TORSO, (0.0, -0.2)),
    (_TORSO, (0.0, 0.2)),
)


@functools.cache
def walker() -> Environment:
    """The walker, limited to 1,000 steps."""
    return locomotion(body())


@functools.cache
def body() -> Body:
    """Describe the walker for `locomotion`."""
    skeleton = Skeleton(
        parents=(NO_PARENT, _TORSO, _THIGH, _LEG, _TORSO, _LEFT_THIGH, _LEFT_LEG),
        joints=(FREE,) + (REVERSED_HINGE,) * 6,
        motors=tuple(range(1, 7)),
        limited=tuple(range(1, 7)),
        feelers=tuple(link for link, _ in _FEELERS),
    )
    params = Params(
        **masses(_CAPSULES, 7),
        place=np.array([(0.0, 0.0)] + 2 * [(0.0, -0.2), (0.0, -0.45), (0.0, -0.5)]),
        armature=np.array([0.0] + [0.01] * 6),
        damping=np.array([0.0] + [0.1] * 6),
        stiffness=np.zeros(7),
        low=np.radians([-360.0] + 2 * [-150.0, -150.0, -45.0]),
        high=np.radians([360.0] + 2 * [0.0, 0.0, 45.0]),
        stop_stiffness=1000.0,
        stop_damping=15.0,
        gear=np.full(6, 100.0),
        feeler=np.array([point for _, point in _FEELERS]),
        radius=np.array(2 * [0.06, 0.06, 0.05] + [0.05, 0.05]),
        friction=np.array(2 * [1.9, 1.9, 0.9] + [0.9, 0.9]),
        start=np.array([0.0, 1.25] + [0.0] * 7),
        dt=0.002,
        control_weight=1e-3,
        healthy_reward=1.0,
        min_height=0.8,
        max_height=2.0,
        max_tilt=1.0,
        start_noise=0.005,
    )
    return Body(
        name="walker",
        skeleton=skeleton,
        params=params,
        substeps=4,
        feet=(("right", (0, 1)), ("left", (3, 4))),
        capsules=_CAPSULES,
        colors=(drawing.STEEL,) * 3 + (drawing.INK, drawing.BLUE, drawing.ORANGE, drawing.GREEN),
        max_speed=10.0,
    )
