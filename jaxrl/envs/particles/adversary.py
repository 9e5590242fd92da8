"""A team covers a target among the landmarks, and hides from an adversary which of them it is.

Observation: of the adversary where the landmarks and the others are from here, float32 [2 L +
2 N]; of a member of the team first where the target is. Reward: the team is paid the adversary's
distance to the target less that of its own nearest member; the adversary minus its distance. Metric
`fooled`: whether the team is nearer than the adversary. Nobody collides. Mechanics, actions and
source are those of `particles.mechanics`. Expert: the team goes one to each landmark, as far as it
reaches, the nearest one to the target; the adversary goes to the middle of the landmarks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment
from jaxrl.envs import drawing
from jaxrl.envs.options import at_least
from jaxrl.envs.particles.mechanics import Params, Scenario, State, make_particles, others, seek
from jaxrl.envs.planar import vectors


@functools.cache
def simple_adversary(team: int = 2, actions: str = "continuous") -> Environment:
    """A `team` of at least 1, as many landmarks, and one adversary. `actions`: "continuous" or
    "discrete"."""
    at_least("simple_adversary", "team", team, 1)
    count = team + 1
    names = ("adversary", *(f"agent_{i}" for i in range(team)))

    def distances(state: State) -> Array:
        """Distances of the agents to the target, [N]."""
        return vectors.norm(state.place[:count] - state.place[count + state.target])

    def see(state: State) -> dict[str, Array]:
        def view(i: int) -> Array:
            around = jnp.concatenate([state.place[count:], others(state.place[:count], i)])
            target = state.place[count + state.target][None]
            known = around if i == 0 else jnp.concatenate([target, around])
            return (known - state.place[i]).ravel()

        return {name: view(i) for i, name in enumerate(names)}

    def pay(state: State, params: Params) -> Array:
        del params
        distance = distances(state)
        good = distance[0] - distance[1:].min()
        return jnp.concatenate([-distance[:1], jnp.full(team, good)])

    def steer(state: State, params: Params) -> Array:
        del params
        middle = state.place[count:].mean(0)
        # The member that is nearest to the target has rank 0, and goes there.
        rank = jnp.argsort(jnp.argsort(distances(state)[1:]))
        aims = [state.place[count + (state.target + rank[i]) % team] for i in range(team)]
        return jnp.stack([seek(state, i, aim) for i, aim in enumerate([middle, *aims])])

    def metrics(state: State, params: Params) -> dict[str, Array]:
        del params
        distance = distances(state)
        return {"fooled": (distance[1:].min() < distance[0]).astype(jnp.float32)}

    def colors(target: int) -> Sequence[tuple[int, int, int]]:
        marks = [drawing.GREEN if i == target else drawing.STEEL for i in range(team)]
        return [drawing.RED] + [drawing.BLUE] * team + marks

    scenario = Scenario(
        names,
        team,
        Params(
            np.array([0.15] * count + [0.08] * team, np.float32),
            np.full(count, 5.0, np.float32),
            np.full(count, np.inf, np.float32),
        ),
        np.zeros(count + team, bool),
        see,
        pay,
        steer,
        colors,
        metrics=metrics,
    )
    return make_particles("simple_adversary", scenario, actions, "each", ("each",))
