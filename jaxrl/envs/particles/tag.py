"""Slow pursuers hunt faster runners around two obstacles.

Observation: of each agent, its velocity and place, where the obstacles and the other agents are
from here, and the velocities of the (other) runners: float32 [16] for three pursuers and [14] for
one runner. Reward: 10 to each pursuer for every pair of a pursuer and a runner that touch; a runner
loses 10 for every pursuer that touches it, and what lies outside the square costs: along each axis
10 (|x| - 0.9) from 0.9, exp(2 |x| - 2) from 1, at most 10. Metric `caught`: whether any touch.
Obstacles start anywhere in the square, as in JaxMARL (in PettingZoo within 0.9 of the middle).
Mechanics, actions and source are those of `particles.mechanics`. Expert: pursuers push toward the
nearest runner, runners away from the nearest pursuer and back to the middle.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment
from jaxrl.envs import drawing
from jaxrl.envs.options import at_least
from jaxrl.envs.particles.mechanics import Params, Scenario, State, make_particles, others, touching
from jaxrl.envs.planar import vectors

OBSTACLES = 2
PRICE = 10.0  # of a touch


@functools.cache
def simple_tag(pursuers: int = 3, runners: int = 1, actions: str = "continuous") -> Environment:
    """`pursuers` and `runners`, at least one of each. `actions`: "continuous" or "discrete"."""
    at_least("simple_tag", "pursuers", pursuers, 1)
    at_least("simple_tag", "runners", runners, 1)
    count = pursuers + runners
    names = tuple(f"pursuer_{i}" for i in range(pursuers))
    names += tuple(f"runner_{i}" for i in range(runners))

    def see(state: State) -> dict[str, Array]:
        def view(i: int) -> Array:
            here = state.place[i]
            around = jnp.concatenate([state.place[count:], others(state.place[:count], i)]) - here
            fleeing = state.velocity[pursuers:]
            fleeing = fleeing if i < pursuers else others(fleeing, i - pursuers)
            return jnp.concatenate([state.velocity[i], here, around.ravel(), fleeing.ravel()])

        return {name: view(i) for i, name in enumerate(names)}

    def catches(state: State, params: Params) -> Array:
        return touching(state, params)[:pursuers, pursuers:count]

    def pay(state: State, params: Params) -> Array:
        caught = catches(state, params)
        far = jnp.abs(state.place[pursuers:count])
        edge = jnp.where(far < 1, 10 * (far - 0.9), jnp.minimum(jnp.exp(2 * far - 2), 10))
        outside = jnp.where(far < 0.9, 0, edge).sum(-1)
        hunt = jnp.full(pursuers, PRICE * caught.sum(), jnp.float32)
        return jnp.concatenate([hunt, -PRICE * caught.sum(0) - outside])

    def steer(state: State, params: Params) -> Array:
        del params
        place, fleeing = state.place[:pursuers], state.place[pursuers:count]
        distance = vectors.norm(place[:, None] - fleeing)
        toward = 10 * (fleeing[distance.argmin(1)] - place)
        nearest = place[distance.argmin(0)] - fleeing
        away = -nearest / vectors.norm(nearest)[:, None] ** 2 - 2 * fleeing
        return jnp.clip(jnp.concatenate([toward, away]), -1.0, 1.0)

    each = lambda *numbers: np.repeat(np.array(numbers, np.float32), (pursuers, runners))
    scenario = Scenario(
        names,
        OBSTACLES,
        Params(
            np.append(each(0.075, 0.05), np.full(OBSTACLES, 0.2, np.float32)),
            each(3.0, 4.0),
            each(1.0, 1.3),
        ),
        np.ones(count + OBSTACLES, bool),
        see,
        pay,
        steer,
        lambda target: [drawing.RED] * pursuers + [drawing.GREEN] * runners + [drawing.STEEL] * 2,
        metrics=lambda state, params: {"caught": catches(state, params).any().astype(jnp.float32)},
    )
    return make_particles("simple_tag", scenario, actions, "each", ("each",))
