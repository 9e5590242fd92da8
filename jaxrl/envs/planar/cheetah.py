"""Run forward as fast as possible with a planar cheetah of two legs and six joints.

Observation: float32 [17]: height of the torso above its start (m), its angle (rad, positive forward
and down), the angles of thigh, shin and foot of the back and of the front leg (rad), then the
velocities of x, z, the torso's angle and the six joints. Action: float32 [6], clipped to [-1, 1],
times 120, 90, 60, 120, 60 and 30 N m at the joints in the same order. Reward: forward velocity
(m/s) - 0.1 |action|^2 (`reward_components`: forward, control; healthy is 0). Never terminates; time
limit 1,000 steps of 0.05 s. `metrics`: the distance covered (m) and speed (m/s), the fractions of
the episode in flight and with each foot on the ground, and the fraction of landings on another foot
than the last one (alternation). Modeled on Gymnasium's `HalfCheetah-v5` (Wawrzynski, 2009, "A
cat-like robot real-time learning to run"); `locomotion` says what differs from MuJoCo, whose step
is the same 0.01 s. The expert is a gait found by random search for the default body, a sine for
each joint and feedback from the torso's angle: it runs at 3.6 m/s, but one episode in eight ends
with the cheetah on its back. The step is differentiable, but through contacts the gradients grow
quickly with the number of steps and say little about the return; in flight they are exact.
"""

from __future__ import annotations

import functools
import math

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment
from jaxrl.envs import drawing
from jaxrl.envs.planar.capsules import Capsule, capsule, masses
from jaxrl.envs.planar.locomotion import Body, Params, State, locomotion
from jaxrl.envs.planar.skeletons import FREE, HINGE, NO_PARENT, Skeleton

_TORSO, _BACK_THIGH, _BACK_SHIN, _BACK_FOOT, _FRONT_THIGH, _FRONT_SHIN, _FRONT_FOOT = range(7)

_CAPSULES = (
    capsule(_BACK_THIGH, (0.1, -0.13), 0.145, -3.8, 0.046),
    capsule(_BACK_SHIN, (-0.14, -0.07), 0.15, -2.03, 0.046),
    capsule(_BACK_FOOT, (0.03, -0.097), 0.094, -0.27, 0.046),
    Capsule(_TORSO, (-0.5, 0.0), (0.5, 0.0), 0.046),
    capsule(_TORSO, (0.6, 0.1), 0.15, 0.87, 0.046),  # the head
    capsule(_FRONT_THIGH, (-0.07, -0.12), 0.133, 0.52, 0.046),
    capsule(_FRONT_SHIN, (0.065, -0.09), 0.106, -0.6, 0.046),
    capsule(_FRONT_FOOT, (0.045, -0.07), 0.07, -0.6, 0.046),
)
# The gait: frequency (Hz), then for each joint amplitude, phase (rad) and center of its action, and
# its gains on the torso's angle and angular velocity.
_FREQUENCY = 2.411
_AMPLITUDES = (1.95, -0.37, 1.78, 0.39, 0.04, -0.09)
_PHASES = (-1.33, 0.84, -0.54, -0.34, 0.32, 0.96)
_CENTERS = (-0.32, 0.05, 0.09, 0.02, -0.11, 0.36)
_TILT = (0.54, 0.09, -0.55, 0.23, 0.11, 0.24)
_TURN = (0.24, -0.18, 0.01, -0.06, 0.35, 0.24)

# Link and point: both ends of each foot, the knees, the ends of the torso and the nose. The other
# ends lie within a few centimeters of one of these.
_FEELERS = (
    (_BACK_FOOT, _CAPSULES[2].start),
    (_BACK_FOOT, _CAPSULES[2].end),
    (_FRONT_FOOT, _CAPSULES[7].start),
    (_FRONT_FOOT, _CAPSULES[7].end),
    (_BACK_SHIN, _CAPSULES[1].start),
    (_FRONT_THIGH, _CAPSULES[5].start),
    (_TORSO, _CAPSULES[3].start),
    (_TORSO, _CAPSULES[3].end),
    (_TORSO, _CAPSULES[4].end),
)


@functools.cache
def cheetah() -> Environment:
    """The cheetah, limited to 1,000 steps."""
    return locomotion(body())


def _gait(state: State, params: Params) -> Array:
    del params
    phase = 2 * jnp.pi * _FREQUENCY * 0.05 * state.steps
    action = jnp.array(_AMPLITUDES) * jnp.sin(phase + jnp.array(_PHASES)) + jnp.array(_CENTERS)
    action += jnp.array(_TILT) * state.q[2] + jnp.array(_TURN) * state.velocity[2]
    return jnp.clip(action, -1.0, 1.0)


@functools.cache
def body() -> Body:
    """Describe the cheetah for `locomotion`."""
    skeleton = Skeleton(
        parents=(NO_PARENT, _TORSO, _BACK_THIGH, _BACK_SHIN, _TORSO, _FRONT_THIGH, _FRONT_SHIN),
        joints=(FREE,) + (HINGE,) * 6,
        motors=tuple(range(1, 7)),
        limited=tuple(range(1, 7)),
        feelers=tuple(link for link, _ in _FEELERS),
    )
    params = Params(
        **masses(_CAPSULES, 7, total=14.0),
        place=np.array(
            [
                (0.0, 0.7),
                (-0.5, 0.0),
                (0.16, -0.25),
                (-0.28, -0.14),
                (0.5, 0.0),
                (-0.14, -0.24),
                (0.13, -0.18),
            ]
        ),
        armature=np.array([0.0] + [0.1] * 6),
        damping=np.array([0.0, 6.0, 4.5, 3.0, 4.5, 3.0, 1.5]),
        stiffness=np.array([0.0, 240.0, 180.0, 120.0, 180.0, 120.0, 60.0]),
        low=np.array([-math.inf, -0.52, -0.785, -0.4, -1.0, -1.2, -0.5]),
        high=np.array([math.inf, 1.05, 0.785, 0.785, 0.7, 0.87, 0.5]),
        stop_stiffness=1000.0,
        stop_damping=20.0,
        gear=np.array([120.0, 90.0, 60.0, 120.0, 60.0, 30.0]),
        feeler=np.array([point for _, point in _FEELERS]),
        radius=np.full(len(_FEELERS), 0.046),
        friction=np.full(len(_FEELERS), 0.4),
        start=np.zeros(9),
        dt=0.01,
        control_weight=0.1,
        start_noise=0.1,
    )
    return Body(
        name="cheetah",
        skeleton=skeleton,
        params=params,
        substeps=5,
        feet=(("back", (0, 1)), ("front", (2, 3))),
        capsules=_CAPSULES,
        colors=(drawing.BLUE,) * 3 + (drawing.ORANGE,) * 2 + (drawing.GREEN,) * 3,
        terminates=False,
        normal_velocities=True,
        expert=_gait,
    )
