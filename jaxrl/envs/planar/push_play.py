"""A table with an object and no task, on which skills are to be discovered.

Table, pusher, object, action and observation [11] are those of `push`, without a goal. Reward:
minus the distance (m) between pusher and object, beyond their radii, which is a reward for reaching
the object and not for moving it. Cost: 1 in steps at whose end the pusher or the object is within
`margin` of the table's edge, else 0. Never terminates; time limit 200 steps of 0.1 s. Metrics:
`displacement`, how far (m) the object is from where it was at the start of the episode, and
`episode_cost`, the number of steps near the edge.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.envs.planar import push_pictures, push_table, vectors
from jaxrl.envs.planar.push import push
from jaxrl.envs.wrappers.lifting import lift_fields


@struct
class Params:
    inner: Tree  # parameters of `push`
    margin: float = 0.02  # m, distance from the table's edge below which a step costs 1


@struct
class State:
    inner: Tree
    start: Array  # [2], where the object was at the start of the episode
    spent: Array  # cost of the episode so far


@functools.cache
def push_play(shape: str = "disc", control: str = "velocity") -> Environment:
    """The pushing table without a task. shape: "disc", "box" or "t". control: "velocity" or
    "force"."""
    table = push(shape=shape, control=control)

    def emit(
        state: State, timestep: TimeStep, params: Params, moved: bool
    ) -> tuple[State, TimeStep]:
        observation: Any = timestep.observation
        near, edge = _distances(observation, params)
        cost = (edge < params.margin).astype(jnp.float32) * moved
        spent = state.spent + cost
        metrics = {
            "displacement": vectors.norm(observation[4:6] - state.start),
            "episode_cost": spent,
        }
        timestep = dataclasses.replace(
            timestep, reward=-near * moved, goal=None, cost=cost, metrics=metrics
        )
        return dataclasses.replace(state, spent=spent), timestep

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        inner, timestep = table.reset(key, params.inner)
        state = State(inner, timestep.observation[4:6], jnp.zeros((), jnp.float32))
        return emit(state, timestep, params, False)

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        inner, timestep = table.step(key, state.inner, action, params.inner)
        return emit(dataclasses.replace(state, inner=inner), timestep, params, True)

    return dataclasses.replace(
        table,
        name="push_play",
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(dataclasses.replace(table.params, continuing=True)),
        **(
            lift_fields(table, state=True, params=True)
            | {"goals": None, "expert": None, "render": _render}
            | {"scores": {"displacement": "displacement", "episode_cost": "cost"}}
        ),
    )


def _render(state: State, params: Params) -> np.ndarray:
    """Draw the table without the goal of `push`, which is of no account here."""
    return push_pictures.draw(state.inner.inner, params.inner)


def _distances(observation: Array, params: Params) -> tuple[Array, Array]:
    """Return the gap between pusher and object (m), and the least gap between one of them and the
    table's edge. An object counts as the disc around it."""
    radius = push_table.shape_of(params.inner).radius
    pusher, target, own = observation[:2], observation[4:6], params.inner.pusher_radius
    between = vectors.norm(pusher - target) - radius - own
    table = jnp.asarray(params.inner.table)
    edge = jnp.minimum(
        jnp.min(table - jnp.abs(pusher)) - own, jnp.min(table - jnp.abs(target)) - radius
    )
    return jnp.maximum(between, 0.0), edge
