"""Skirmish: a side of agents with hit points fights a scripted side, and agents die.

An open field of `size` x `size` cells; `agents` stand in its first columns and `enemies` in its
last ones, in random rows. Every unit has `hit_points`, and attacks a unit of the other side that is
at most `REACH` steps away (rows and columns together), which costs that unit one point. Units
without points are dead: they are gone from the field, and an agent that died can only do nothing
until the next episode (`alive`). Actions: 0 nothing, 1 north, 2 south, 3 west, 4 east, then one for
each enemy, to attack it. Illegal are steps off the field, and attacks on what is out of reach or
dead; they do nothing. In each step all attacks come first, at the same time, then those who are
left and did not attack move by the rule of `grids.crowd`.

An enemy attacks the nearest agent in reach (of equally near ones that with the fewest points), and
otherwise walks toward the nearest agent, along the longer way first.

Reward, which all agents share: half of the share of the enemies' points that they took in this
step, and 1/2 for the last one. Terminates when a side is dead; time limit 40 steps. Metrics: `won`,
and `survived`, the share of agents that are alive at the end. Observation of each agent, float32
[3 + 4 (agents - 1) + 5 enemies]: its row, column and points, then for each other agent whether it
is seen, the rows and columns to it and its points, and the same for each enemy with whether it is
in reach; fractions of the size and of all points. An agent sees units within `sight` rows and
columns (0: all), and the dead see zeros. Privileged: `state`, row, column and points of all units.

Expert: all attack the enemy in reach with the fewest points, and otherwise walk toward the enemy
that is nearest to all of them together. After the StarCraft multi-agent challenge (Samvelyan et
al., 2019, arXiv:1902.04043), whose units move in a plane and have weapons of their own.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids.crowd import Crowd
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

MAX_STEPS = 40
REACH = 2  # steps from which a unit attacks
MOVES = 5
# Steps of the actions: nothing, north, south, west, east.
STEPS = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)


@struct
class State:
    crowd: Crowd  # agents, then enemies
    points: Array  # int32 [agents + enemies]


def toward(place: Array, goal: Array) -> Array:
    """Return the step [..., 2] from places to goals [..., 2] along the longer way, rows first."""
    way = goal - place
    size = jnp.abs(way)
    by_row = (size[..., 0] >= size[..., 1])[..., None]
    axis = jnp.where(by_row, np.array([1, 0]), np.array([0, 1]))
    return jnp.sign(way) * axis


def distances(place: Array, others: Array) -> Array:
    """Return the steps between each of `place` [n, 2] and each of `others` [m, 2]: [n, m]."""
    return jnp.abs(place[:, None] - others).sum(-1)


@functools.cache
def skirmish(
    agents: int = 3, enemies: int = 3, size: int = 7, hit_points: int = 4, sight: int = 3
) -> Environment:
    """A field of `size` x `size` cells, at least 5; 2 or more `agents` and 1 or more `enemies`, of
    each at most `size`. `hit_points` of every unit; `sight` in cells, 0 for the whole field."""
    name = "skirmish"
    for option, value, least in (
        ("agents", agents, 2),
        ("enemies", enemies, 1),
        ("size", size, 5),
        ("hit_points", hit_points, 1),
        ("sight", sight, 0),
    ):
        at_least(name, option, value, least)
    for option, value in (("agents", agents), ("enemies", enemies)):
        if value > size:
            raise UserError(f"The {option} of '{name}' are {value}; {size} rows hold one each.")
    names = tuple(f"agent_{i}" for i in range(agents))
    shape, units = (size, size), agents + enemies
    wall = np.zeros(shape, bool)
    far = max(4 * size, hit_points + 1)  # above all distances, and all points
    never = min(far**3, np.iinfo(np.int32).max)

    def in_reach(state: State) -> Array:
        """Return which agents and enemies are alive and in reach of each other: [agents,
        enemies]."""
        place, alive = state.crowd.place, state.crowd.alive
        near = distances(place[:agents], place[agents:]) <= REACH
        return near & alive[:agents, None] & alive[agents:]

    def legal(state: State) -> Array:
        """Return the legal actions of each agent, bool [agents, 5 + enemies]."""
        goal = state.crowd.place[:agents, None] + jnp.asarray(STEPS)
        walks = ((goal >= 0) & (goal < size)).all(-1) & state.crowd.alive[:agents, None]
        return jnp.concatenate([walks.at[:, 0].set(True), in_reach(state)], 1)

    def see(state: State) -> Array:
        """Return the observations of all agents, [agents, D]."""
        place, alive = state.crowd.place, state.crowd.alive
        way = place - place[:agents, None]  # [agents, units, 2]
        seen = alive & (jnp.abs(way) <= (sight or size)).all(-1)
        strength = jnp.broadcast_to(state.points / hit_points, seen.shape)[..., None]
        told = jnp.concatenate([seen[..., None], way / size, strength], -1)
        told = jnp.where(seen[..., None], told, 0.0)
        others = np.array([[j for j in range(agents) if j != i] for i in range(agents)])
        friends = told[np.arange(agents)[:, None], others]
        foes = jnp.concatenate([told[:, agents:], in_reach(state)[..., None]], -1)
        own = jnp.concatenate([place[:agents] / size, strength[0, :agents]], -1)
        flat = lambda x: x.reshape(agents, -1)
        all_of = jnp.concatenate([own, flat(friends), flat(foes)], 1)
        return jnp.where(alive[:agents, None], all_of, 0.0).astype(jnp.float32)

    def channels(state: State) -> tuple[dict, dict]:
        """Return the observations and the other channels."""
        alive = state.crowd.alive
        by_name = lambda x: {n: x[i] for i, n in enumerate(names)}
        whole = jnp.concatenate([state.crowd.place / size, (state.points / hit_points)[:, None]], 1)
        whole = jnp.where(alive[:, None], whole, 0.0)
        more = {
            "legal_actions": by_name(legal(state)),
            "alive": alive[:agents],
            "privileged": {"state": whole.reshape(-1).astype(jnp.float32)},
            "metrics": {
                "won": (~alive[agents:].any()).astype(jnp.float32),
                "survived": alive[:agents].mean(dtype=jnp.float32),
            },
        }
        return by_name(see(state)), more

    def reset(key: Key, params: tuple) -> tuple[State, TimeStep]:
        del params
        keys = jax.random.split(key, 2)
        rows = lambda key, n: jax.lax.top_k(jax.random.uniform(key, (size,)), n)[1]
        column = np.repeat([0, size - 1], [agents, enemies])
        row = jnp.concatenate([rows(keys[0], agents), rows(keys[1], enemies)])
        crowd = crowds.gather(jnp.stack([row, jnp.asarray(column)], 1))
        state = State(crowd, jnp.full(units, hit_points, jnp.int32))
        seen, more = channels(state)
        return state, timesteps.first(seen, **more)

    def nearest(place: Array, targets: Array, rank: Array) -> Array:
        """Return for each of `place` the nearest of `targets` [m, 2], the lowest in `rank` [m] of
        equally near ones; ranks of `far` and more are never taken."""
        cost = distances(place, targets) * far + rank
        return jnp.where(rank >= far, jnp.int32(never), cost).argmin(1)

    def enemy_orders(state: State) -> tuple[Array, Array]:
        """Return the steps of the enemies [enemies, 2], and whom they attack: bool [enemies,
        agents]."""
        place, alive = state.crowd.place, state.crowd.alive
        rank = jnp.where(alive[:agents], state.points[:agents], far)
        aim = nearest(place[agents:], place[:agents], rank)
        hits = jax.nn.one_hot(aim, agents, dtype=bool) & in_reach(state).T
        walk = toward(place[agents:], place[aim])
        return jnp.where(hits.any(1, keepdims=True), 0, walk), hits

    def step(key: Key, state: State, action: dict, params: tuple) -> tuple[State, TimeStep]:
        del key, params
        chosen = jnp.stack([action[n] for n in names])
        allowed = jnp.take_along_axis(legal(state), chosen[:, None], 1)[:, 0]
        chosen = jnp.where(allowed, chosen, 0)
        enemy_walk, enemy_hits = enemy_orders(state)
        hits = jax.nn.one_hot(chosen - MOVES, enemies, dtype=bool)
        walk = jnp.asarray(STEPS)[jnp.where(chosen < MOVES, chosen, 0)]
        lost = jnp.concatenate([enemy_hits.sum(0), hits.sum(0)])
        points = jnp.maximum(state.points - lost, 0)
        taken = (state.points - points)[agents:].sum() / (enemies * hit_points)
        crowd = dataclasses.replace(state.crowd, alive=points > 0)
        crowd = crowds.move(crowd, jnp.concatenate([walk, enemy_walk]), wall)
        after = State(crowd, points)
        sides = points[:agents].any(), points[agents:].any()
        won = state.points[agents:].any() & ~sides[1]
        seen, more = channels(after)
        reward = taken / 2 + won / 2
        return after, timesteps.following(seen, reward, ~(sides[0] & sides[1]), **more)

    def expert(state: State, params: tuple) -> dict:
        del params
        place, alive = state.crowd.place, state.crowd.alive
        enemy = jnp.where(alive[agents:], state.points[agents:], far)
        reach = in_reach(state)
        weakest = jnp.where(reach, enemy * enemies + np.arange(enemies), far * units).argmin(1)
        apart = (distances(place[:agents], place[agents:]) * alive[:agents, None]).sum(0)
        goal = jnp.where(alive[agents:], apart, far * units).argmin()
        walk = toward(place[:agents], place[agents + goal])
        number = (walk[:, None] == jnp.asarray(STEPS)).all(-1).argmax(1)
        order = jnp.where(reach.any(1), MOVES + weakest, number)
        order = jnp.where(alive[:agents], order, 0).astype(jnp.int32)
        return {n: order[i] for i, n in enumerate(names)}

    def render(state: State, params: tuple) -> np.ndarray:
        """Draw agents blue and enemies red, with a dot for each point that a unit has left."""
        del params
        ground = np.full((*shape, 3), drawing.PAPER, np.uint8)
        colors = [drawing.BLUE] * agents + [drawing.RED] * enemies
        picture, places = crowds.draw(ground, state.crowd, colors)
        for (row, column), left in zip(places, np.asarray(state.points), strict=True):
            for i in range(int(left)):
                picture.disc(row, column, 0.3 + 0.4 * (i + 0.5) / left, 0.5, 0.05, drawing.PAPER)
        return picture.frame()

    width = 3 + 4 * (agents - 1) + 5 * enemies
    environment = Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=(),
        observation_space=dict.fromkeys(names, Box(-1.0, 1.0, (width,))),
        action_space=dict.fromkeys(names, Discrete(MOVES + enemies)),
        render=render,
        expert=jax.jit(expert, inline=True),
        scores={"won": "won"},
        agents=names,
    )
    return time_limit(environment, MAX_STEPS)
