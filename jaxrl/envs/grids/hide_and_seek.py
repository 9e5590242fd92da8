"""Hide and seek: a team hides behind walls and boxes, and another one looks for it.

A square of `size` x `size` cells, in whose lower right quarter is a room with walls and `doors`
doors. The boxes start in the room, hiders anywhere, seekers outside of it. Moves follow the one
rule of `grids.crowd`. Actions: 0 stay; 1 to 4 step east, south, west, north, and push a box that is
in the way; 5 to 8 step so and pull the box behind; 9 lock the boxes beside, or unlock those that
one's own team has locked. Locked boxes cannot be moved. Illegal are steps into walls and locked
boxes, pulling and locking where there is no box for it, and whatever seekers do in the first
`preparation` steps, but to stay; illegal actions do nothing.

A cell is seen unless a wall or a box is on the straight line to it; everybody sees all round.
Reward, float32 [N], hiders first: after the preparation, in each step, 1 to every hider and -1 to
every seeker if no seeker sees any hider, else the opposite. Without `walled` the square has no wall
around it: an agent that leaves it loses `penalty` in each step outside instead, and all do while a
box is outside. Nothing terminates; time limit `steps` steps. Metrics: `hidden`, the share of steps
after the preparation in which nobody was seen; `locked`, the share of boxes that are locked;
`moved`, the share of boxes that are not where they began.

Observation "entities" of each agent, float32 [3 + 3 (N - 1) + 5 boxes]: its row and column and how
much of the preparation is over; for every other agent, first of its own team, the way there in
units of the square's size and a 1, and zeros if it does not see it; for every box the same, and
whether its own team or the other has locked it. "grid", float32 [7, 7, 7]: the cells up to 3 away,
as planes of what is seen, walls, boxes, boxes locked by its own team and by the other, its own team
and the other. Privileged: `state`, float32: places of all, boxes, locks, and the time. Expert:
hiders step where the fewest seekers see them, then away from these; seekers walk to the nearest
hider.

After the quadrant of Baker et al. (2020), "Emergent tool use from multi-agent autocurricula",
arXiv:1909.07528, and the authors' code: its rewards (`joint_zero_sum`), the penalty, that replaces
what else is earned, the preparation of 0.4 of an episode without rewards, and locks of a team. Not
here: ramps, a field of view of 135 degrees, bodies with momentum, laser distances, and rooms drawn
at random; there a box is locked only while all who are near want it to be.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids import levels, paths
from jaxrl.envs.grids.crowd import FREE, NEIGHBORS, Crowd
from jaxrl.envs.options import at_least, one_of
from jaxrl.envs.wrappers.time_limit import time_limit

STAY, WALK, PULL, LOCK = 0, 1, 5, 9  # the first of each kind
ACTIONS = 10
STEPS = np.concatenate([np.zeros((1, 2), np.int32), NEIGHBORS, NEIGHBORS, np.zeros((1, 2), int)])
RADIUS = 3  # of the view of a grid
OBSERVATIONS = ("entities", "grid")
HIDERS, SEEKERS = range(2)  # numbers of the teams


@struct
class Params:
    """Parameters of hide and seek."""

    penalty: float = 10.0  # what an agent loses in a step outside of the square


@struct
class State:
    crowd: Crowd
    begun: Array  # int32 [M, 2]: where the boxes were at first
    time: Array  # int32, steps taken
    hidden: Array  # int32, steps after the preparation in which nobody was seen


def plan(size: int, doors: int, walled: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the walls and the inside of the room, both bool [size + 2, size + 2]: a square of
    `size` x `size` cells and what is around it."""
    middle = size // 2 + 1
    wall, room = (np.zeros((size + 2, size + 2), bool) for _ in range(2))
    wall[middle:, middle:] = True
    room[middle + 1 : -1, middle + 1 : -1] = True
    wall &= ~room
    door = (middle + size + 1) // 2
    if doors > 0:
        wall[middle, door] = False
    if doors > 1:
        wall[door, middle] = False
    if walled:
        wall[[0, -1]] = wall[:, [0, -1]] = True
    return wall, room


@functools.cache
def hide_and_seek(
    size: int = 7,
    hiders: int = 2,
    seekers: int = 2,
    boxes: int = 2,
    doors: int = 2,
    preparation: int = 16,
    steps: int = 40,
    walled: bool = True,
    observation: str = "entities",
) -> Environment:
    """A square of `size` x `size` cells, at least 5; at least one of `hiders` and `seekers`. There
    are 0 to 2 `doors`, and as many `boxes` as the room holds at most. `observation`: "entities" or
    "grid"."""
    name = "hide_and_seek"
    for option, value, least in (
        ("size", size, 5),
        ("hiders", hiders, 1),
        ("seekers", seekers, 1),
        ("boxes", boxes, 0),
        ("doors", doors, 0),
        ("preparation", preparation, 0),
        ("steps", steps, preparation + 1),
    ):
        at_least(name, option, value, least)
    one_of(name, "observation", observation, OBSERVATIONS)
    wall, room = plan(size, doors, walled)
    if doors > 2 or boxes > room.sum():
        raise UserError(
            f"'{name}' has {doors} doors and {boxes} boxes; its room of size {size} takes at "
            f"most 2 doors and {room.sum()} boxes."
        )
    count, shape = hiders + seekers, wall.shape
    names = tuple(f"hider_{i}" for i in range(hiders)) + tuple(
        f"seeker_{i}" for i in range(seekers)
    )
    team = np.repeat([HIDERS, SEEKERS], [hiders, seekers])
    teammates = team[:, None] == team
    # Every other agent, first of the own team: [N, N - 1].
    others = np.array(
        [
            sorted(set(range(count)) - {i}, key=lambda j: (team[j] != team[i], j))
            for i in range(count)
        ]
    ).reshape(count, count - 1)
    rows, columns = levels.rows_and_columns(shape)
    outside = np.ones(shape, bool)
    outside[1:-1, 1:-1] = False
    surrounded = np.pad(wall, 1, constant_values=True)

    def legal(state: State) -> Array:
        """Return the legal actions of each agent, bool [N, 10]."""
        crowd = state.crowd
        around = crowd.place[:, None] + jnp.asarray(NEIGHBORS)  # [N, 4, 2]
        free = ~jnp.asarray(surrounded)[around[..., 0] + 1, around[..., 1] + 1]
        at = (around[:, :, None] == crowd.box).all(-1)  # [N, 4, M]
        loose = crowd.lock == FREE
        walk = free & ~(at & ~loose).any(-1)
        # The box behind a step is in the opposite direction, two further on.
        pull = walk & jnp.roll((at & loose).any(-1), 2, 1)
        mine = loose | (crowd.lock == team[:, None])
        lock = (at.any(1) & mine).any(1, keepdims=True)
        may = jnp.concatenate([walk, pull, lock], 1)
        may &= ((state.time >= preparation) | (team == HIDERS))[:, None]
        return jnp.concatenate([jnp.ones((count, 1), bool), may], 1)

    def sight(crowd: Crowd) -> Array:
        """Return the cells that each agent sees, bool [N, H, W]."""
        return crowds.visible(crowd.place, wall | crowds.mark(crowd.box, shape))

    def by_lock(crowd: Crowd) -> Array:
        """Return the boxes that each agent's own team and the other have locked, [N, M, 2]."""
        own = crowd.lock == team[:, None]
        return jnp.stack([own, (crowd.lock != FREE) & ~own], -1)

    def see(state: State, seen: Array) -> Array:
        """Return the observations of all agents, [N, ...]."""
        crowd, locked = state.crowd, by_lock(state.crowd)
        if observation == "grid":
            mark = lambda places, values: crowds.mark(places, shape, values)
            on = jnp.ones(len(crowd.box), bool)
            each = jax.vmap(
                lambda mates, locked: jnp.stack(
                    [
                        jnp.ones(shape, bool),
                        jnp.asarray(wall),
                        mark(crowd.box, on),
                        mark(crowd.box, locked[:, 0]),
                        mark(crowd.box, locked[:, 1]),
                        mark(crowd.place, mates),
                        mark(crowd.place, ~mates),
                    ],
                    -1,
                )
            )(jnp.asarray(teammates), locked)
            return crowds.look(each.astype(jnp.float32), crowd.place, RADIUS, seen)
        met = lambda places: seen[:, places[:, 0], places[:, 1]]
        way = (jnp.concatenate([crowd.place, crowd.box]) - crowd.place[:, None]) / size
        to = jnp.concatenate([way, jnp.ones((count, len(way[0]), 1))], -1)
        to = jnp.where(met(jnp.concatenate([crowd.place, crowd.box]))[..., None], to, 0.0)
        agents = jnp.take_along_axis(to, jnp.asarray(others)[..., None], 1)
        met_boxes = to[:, count:, 2:]
        things = jnp.concatenate([to[:, count:], locked * met_boxes], -1)
        ready = jnp.minimum(state.time / max(preparation, 1), 1.0)
        own = jnp.concatenate([crowd.place / (size + 1), jnp.full((count, 1), ready)], 1)
        flat = lambda x: x.reshape(count, -1)
        return jnp.concatenate([own, flat(agents), flat(things)], 1).astype(jnp.float32)

    def whole(state: State) -> Array:
        """Return the state as numbers."""
        crowd = state.crowd
        places = jnp.concatenate([crowd.place, crowd.box]).reshape(-1) / (size + 1)
        locks = (crowd.lock[:, None] == np.arange(2)).reshape(-1)
        ready = jnp.minimum(state.time / max(preparation, 1), 1.0)
        return jnp.concatenate([places, locks, jnp.stack([ready, state.time / steps])]).astype(
            jnp.float32
        )

    def is_any_seen(seen: Array, crowd: Crowd) -> Array:
        """Return whether any seeker sees any hider."""
        hiding = crowd.place[:hiders]
        return seen[hiders:, hiding[:, 0], hiding[:, 1]].any()

    def channels(state: State, seen: Array) -> tuple[dict, dict]:
        """Return the observations and the other channels."""
        by_name = lambda x: {n: x[i] for i, n in enumerate(names)}
        crowd = state.crowd
        share = lambda x: x.sum().astype(jnp.float32) / max(boxes, 1)
        played = jnp.maximum(state.time - preparation, 1)
        metrics = {
            "hidden": state.hidden / played,
            "locked": share(crowd.lock != FREE),
            "moved": share((crowd.box != state.begun).any(1)),
        }
        more = {
            "legal_actions": by_name(legal(state)),
            "privileged": {"state": whole(state)},
            "metrics": metrics,
        }
        return by_name(see(state, seen)), more

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        del params
        empty, places = jnp.asarray(~wall & ~outside), []
        limits = [room] * boxes + [~wall] * hiders + [~room] * seekers
        for limit, key_ in zip(limits, jax.random.split(key, len(limits)), strict=True):
            index = levels.pick(key_, empty & limit)
            places.append(jnp.stack([index // shape[1], index % shape[1]]))
            empty &= (rows != places[-1][0]) | (columns != places[-1][1])
        crowd = crowds.gather(
            jnp.stack(places[boxes:]), jnp.stack(places[:boxes]) if boxes else None
        )
        zero = jnp.zeros((), jnp.int32)
        state = State(crowd, crowd.box, zero, zero)
        seen, more = channels(state, sight(crowd))
        return state, timesteps.first(seen, jnp.zeros(count), **more)

    def step(key: Key, state: State, action: dict, params: Params) -> tuple[State, TimeStep]:
        del key
        chosen = jnp.stack([action[n] for n in names])
        allowed = jnp.take_along_axis(legal(state), chosen[:, None], 1)[:, 0]
        chosen = jnp.where(allowed, chosen, STAY)
        crowd = crowds.toggle_locks(state.crowd, chosen == LOCK, team)
        pull = (chosen >= PULL) & (chosen < LOCK)
        crowd = crowds.move(crowd, jnp.asarray(STEPS, jnp.int32)[chosen], wall, pull)
        seen = sight(crowd)
        hidden = ~is_any_seen(seen, crowd)
        paid = jnp.where(hidden == (team == HIDERS), 1.0, -1.0)
        away = lambda places: jnp.asarray(outside)[places[:, 0], places[:, 1]]
        lost = away(crowd.place) | away(crowd.box).any()
        paid = jnp.where(lost, -params.penalty, paid)
        paid = jnp.where(state.time < preparation, 0.0, paid)
        counts = hidden & (state.time >= preparation)
        state = State(crowd, state.begun, state.time + 1, state.hidden + counts)
        seen, more = channels(state, seen)
        return state, timesteps.following(seen, paid, **more)

    def expert(state: State, params: Params) -> dict:
        del params
        crowd, moves = state.crowd, {}
        place, watch = crowd.place, sight(state.crowd)[hiders:].sum(0)
        box = crowds.mark(crowd.box, shape)
        locked = crowds.mark(crowd.box, shape, crowd.lock != FREE)
        # Seekers may push a box away.
        cost = jnp.where(box, np.int16(4), np.int16(1))
        cost = jnp.broadcast_to(jnp.where(wall | locked, paths.FAR, cost), (4, *shape))
        to_hider = paths.by_compass(cost, crowds.mark(place[:hiders], shape), 4 * size)
        barred = jnp.broadcast_to(jnp.where(wall | box, paths.FAR, np.int16(1)), (4, *shape))
        from_seeker = paths.by_compass(barred, crowds.mark(place[hiders:], shape), 4 * size)
        score = jnp.minimum(from_seeker, 8 * size) - 100 * watch
        score = jnp.where(wall | box | outside, -10_000, score)
        may = legal(state)
        for i, agent in enumerate(names):
            if i < hiders:
                at = place[i] + jnp.asarray(STEPS[:PULL])
                move = score[at[:, 0], at[:, 1]].argmax()
            else:
                move = WALK + paths.compass_action(cost, to_hider, place[i, 0], place[i, 1])
            moves[agent] = jnp.where(may[i, move], move, STAY).astype(jnp.int32)
        return moves

    def render(state: State, params: Params) -> np.ndarray:
        del params
        watched = np.asarray(sight(state.crowd)[hiders:].any(0))
        ground = np.full((*shape, 3), drawing.PAPER, np.uint8)
        ground[outside] = drawing.SHADE
        ground[watched] = (246, 224, 214)
        ground[wall] = drawing.STEEL
        colors = [drawing.BLUE] * hiders + [drawing.RED] * seekers
        return crowds.draw(ground, state.crowd, colors, team)[0].frame()

    width = 3 + 3 * (count - 1) + 5 * boxes
    box = Box(-2.0, 2.0, (width,))
    if observation == "grid":
        box = Box(0.0, 1.0, (2 * RADIUS + 1, 2 * RADIUS + 1, 7))
    environment = Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(),
        observation_space=dict.fromkeys(names, box),
        action_space=dict.fromkeys(names, Discrete(ACTIONS)),
        render=render,
        expert=jax.jit(expert, inline=True),
        scores={"hidden": "hidden"},
        agents=names,
    )
    return time_limit(environment, steps)
