"""Cover as many landmarks as there are agents, without touching one another.

Observation: of each agent, float32 [4 + 2 L + 2 (N - 1)]: its velocity and place, then where the
landmarks and the other agents are from here. Reward: half of minus the sum over landmarks of the
distance to the nearest agent, and half of minus the number of agents that it touches. Metric
`covered`: share of landmarks with an agent within 0.1 m. Mechanics, actions and source are those
of `particles.mechanics`; observations lack the four zeros for each other agent's unused words.
Expert: goes to the landmarks by the assignment of least total distance.
"""

from __future__ import annotations

import functools
import itertools

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment
from jaxrl.envs import drawing
from jaxrl.envs.options import at_least
from jaxrl.envs.particles.mechanics import (
    Params,
    Scenario,
    State,
    make_particles,
    others,
    seek,
    touching,
)
from jaxrl.envs.planar import vectors

COVERED = 0.1  # m


@functools.cache
def simple_spread(agents: int = 3, actions: str = "continuous", reward: str = "sum") -> Environment:
    """`agents` discs, at least 2, and as many landmarks. `actions`: "continuous" or "discrete".
    `reward`: "sum" or "each"."""
    at_least("simple_spread", "agents", agents, 2)
    names = tuple(f"agent_{i}" for i in range(agents))
    assignments = np.array(list(itertools.permutations(range(agents))))

    def distances(state: State) -> Array:
        """Distances of the landmarks to the agents, [L, N]."""
        return vectors.norm(state.place[agents:, None] - state.place[:agents])

    def see(state: State) -> dict[str, Array]:
        def view(i: int) -> Array:
            here = state.place[i]
            around = jnp.concatenate([state.place[agents:], others(state.place[:agents], i)]) - here
            return jnp.concatenate([state.velocity[i], here, around.ravel()])

        return {name: view(i) for i, name in enumerate(names)}

    def pay(state: State, params: Params) -> Array:
        touched = touching(state, params)[:agents, :agents].sum(1)
        return -0.5 * distances(state).min(1).sum() - 0.5 * touched

    def steer(state: State, params: Params) -> Array:
        del params
        lengths = distances(state)[assignments, np.arange(agents)].sum(1)
        chosen = jnp.asarray(assignments)[lengths.argmin()]
        return jnp.stack([seek(state, i, state.place[agents + chosen[i]]) for i in range(agents)])

    scenario = Scenario(
        names,
        agents,
        Params(
            np.repeat(np.array([0.15, 0.05], np.float32), agents),
            np.full(agents, 5.0, np.float32),
            np.full(agents, np.inf, np.float32),
        ),
        np.arange(2 * agents) < agents,
        see,
        pay,
        steer,
        lambda target: [drawing.BLUE] * agents + [drawing.INK] * agents,
        metrics=lambda state, params: {"covered": (distances(state).min(1) < COVERED).mean()},
    )
    return make_particles("simple_spread", scenario, actions, reward)
