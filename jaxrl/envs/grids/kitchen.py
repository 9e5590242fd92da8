"""Two cooks in a kitchen who make soup of onions and must not be in each other's way.

A `layout` is a name or lines of characters: X a counter, O onions, D dishes, P a pot, S where soup
is served, 1 and 2 where the cooks start, facing north. Actions: 0 nothing, 1 north, 2 south, 3
west, 4 east, 5 interact. A move turns the cook and takes it one cell on, if that is floor; cooks
who want the same cell or each other's stay. Interacting, first cook first, concerns the cell ahead:
to take an onion or a dish with empty hands, to put an onion into a pot that is not full, to fill a
dish with a soup that is done, to serve soup, and (with `counters`) to lay something on an empty
counter or take it from there. A pot with `onions` in it cooks for `cook_time` steps.

Reward, shared: `delivery` for each soup that is served, `placement` for each onion put into a pot,
`pickup` for soup put on a dish, and `dish` for a dish that is taken while more pots have onions in
them than dishes are carried and none lies on a counter. Never terminates; time limit `steps`.
Metric `delivered`: soups served so far.

Observation, float32 [n]: of oneself, then of the other cook, the row and column from -1 to 1, the
direction (one of 4) and what is carried (one of nothing, onion, dish, soup); for each pot the
onions and the steps it has cooked, as shares; for each counter what lies there (one of onion, dish,
soup). Privileged: `state`, as the first cook sees it. Expert: both are `cook`s,
of whom the second stays where both want the same cell.

Rules and layouts of Overcooked-AI (Carroll et al., 2019, "On the utility of learning about humans
for human-AI coordination", arXiv:1910.05789) as its package overcooked_ai had them with soup of
onions alone, which cooks by itself; its name for a layout is kept ("cramped_room",
"coordination_ring", "forced_coordination"). "stove" and "passage" are ours: kitchens with few
states, where both cooks want one cell. Its rewards for shaping are 3 for an onion, 3 for a dish and
5 for soup on a dish; here they are 0 unless set.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids import paths
from jaxrl.envs.grids.crowd import Crowd
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

LAYOUTS = {
    "cramped_room": "XXPXX\nO  2O\nX1  X\nXDXSX",
    "coordination_ring": "XXXPX\nX 1 P\nD2X X\nO   X\nXOSXX",
    "forced_coordination": "XXXPX\nO X1P\nO2X X\nD X X\nXXXSX",
    "stove": "XOPOX\nX1 2X\nXXXXX",
    "passage": "XXPXX\nO1 2O\nXXXXX",
}
STEPS = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]], np.int32)
ACTIONS, INTERACT = 6, 5
NOTHING, ONION, DISH, SOUP = range(4)
_COMPASS = np.array([4, 2, 3, 1], np.int32)  # actions of east, south, west, north
_COLORS = {"X": (196, 178, 150), "O": (222, 196, 92), "D": (206, 222, 236), "P": drawing.INK,
           "S": (150, 200, 160), " ": drawing.PAPER}  # fmt: skip
_CARRIED = (drawing.PAPER, (232, 208, 60), (246, 248, 250), (188, 120, 60))


@struct
class Params:
    """Parameters of the kitchen."""

    cook_time: int = 20
    delivery: float = 20.0  # reward for a soup served
    placement: float = 0.0  # for an onion put into a pot
    dish: float = 0.0  # for a dish taken when one is useful
    pickup: float = 0.0  # for soup put on a dish


@struct
class State:
    """State of a kitchen with `P` pots in a grid [H, W]."""

    crowd: Crowd
    facing: Array  # int32 [2], 0 to 3 for north, south, west, east
    carried: Array  # int32 [2], NOTHING, ONION, DISH or SOUP
    counter: Array  # int32 [H, W], what lies on each counter
    onions: Array  # int32 [P], in each pot
    cooked: Array  # int32 [P], steps that each pot has cooked
    delivered: Array  # int32


class Plan(NamedTuple):
    """A kitchen's cells, [H, W] bool by kind, its pots [P, 2] and where cooks start [2, 2]."""

    cells: np.ndarray  # characters
    pots: np.ndarray
    starts: np.ndarray

    def mask(self, kind: str) -> np.ndarray:
        """Return the cells of one kind, bool [H, W]."""
        return self.cells == kind


@functools.cache
def read_layout(layout: str) -> Plan:
    """Read a layout, by its name or its lines.

    Raises `UserError` unless it is a rectangle with both cooks, a pot and onions, whose edge is not
    floor.
    """
    lines = LAYOUTS.get(layout, layout).strip("\n").split("\n")
    wide = {len(line) for line in lines}
    text = "".join(lines)
    known = len(wide) == 1 and set(text) <= set("XODPS 12") and "P" in text and "O" in text
    if not (known and text.count("1") == text.count("2") == 1):
        raise UserError(
            f"The layout of 'kitchen' is {layout!r}; it must be {', '.join(LAYOUTS)}, or lines of "
            "one length of X, O, D, P, S and spaces with a 1, a 2, onions and a pot."
        )
    cells = np.array([list(line) for line in lines])
    starts = np.stack([np.argwhere(cells == who)[0] for who in "12"]).astype(np.int32)
    cells[tuple(starts.T)] = " "
    edge = np.concatenate([cells[0], cells[-1], cells[:, 0], cells[:, -1]])
    if (edge == " ").any():
        raise UserError(f"The layout of 'kitchen' is {layout!r}; its edge must not be floor.")
    return Plan(cells, np.argwhere(cells == "P").astype(np.int32), starts)


def _interact(
    plan: Plan, needed: int, counters: bool, state: State, i: int, params: Params
) -> tuple[State, Array]:
    """Let cook `i` interact with the cell ahead; return the state and the reward."""
    at = state.crowd.place[i] + jnp.asarray(STEPS[1:5])[state.facing[i]]
    is_kind = lambda kind: jnp.asarray(plan.mask(kind))[at[0], at[1]]
    carried, lying = state.carried[i], state.counter[at[0], at[1]]
    here = (jnp.asarray(plan.pots) == at).all(1)  # [P]
    done = here & (state.onions == needed) & (state.cooked >= params.cook_time)

    on_counter = is_kind("X") & counters
    lays = on_counter & (carried != NOTHING) & (lying == NOTHING)
    lifts = on_counter & (carried == NOTHING) & (lying != NOTHING)
    grabs = is_kind("O") & (carried == NOTHING)
    plates = is_kind("D") & (carried == NOTHING)
    adds = here & (state.onions < needed) & (carried == ONION)
    fills = done & (carried == DISH)
    serves = is_kind("S") & (carried == SOUP)

    begun, dishes = (state.onions > 0).sum(), (state.carried == DISH).sum()
    useful = plates & (begun > dishes) & ~(state.counter == DISH).any()
    after = jnp.select(
        [lifts, grabs, plates, fills.any(), lays | adds.any() | serves],
        [lying, ONION, DISH, SOUP, NOTHING],
        carried,
    )
    placed = jnp.where(lays, carried, jnp.where(lifts, NOTHING, lying))
    paid = serves * params.delivery + adds.any() * params.placement
    paid += useful * params.dish + fills.any() * params.pickup
    state = State(
        state.crowd,
        state.facing,
        state.carried.at[i].set(after.astype(jnp.int32)),
        state.counter.at[at[0], at[1]].set(placed.astype(jnp.int32)),
        jnp.where(fills, 0, state.onions + adds).astype(jnp.int32),
        jnp.where(fills, 0, state.cooked).astype(jnp.int32),
        state.delivered + serves,
    )
    return state, paid


def cook(
    plan: Plan, needed: int, state: State, i: int, *, last: bool = False, yields: bool = False
) -> Array:
    """Return the action of a cook that follows a script.

    It carries onions to the nearest pot with room, as long as those in pots and in hands do not
    suffice, then a dish to a full pot if the other cook carries none, and soup to where it is
    served, each time along a shortest path, around the other cook where there is a way. It waits at
    a pot until the soup is done. A cook with nothing to do steps aside for the other one, not to
    a pot, and so does the second cook where the first is in the way.

    last: of equal choices, take the last in the order east, south, west, north, instead of the
    first. yields: stay as long as the other cook alone carries anything.
    """
    shape = plan.cells.shape
    first = lambda options: 3 - jnp.argmax(options[::-1]) if last else jnp.argmax(options)
    carried, others = state.carried[i], state.carried[1 - i]
    kind = lambda name: jnp.asarray(plan.mask(name))
    pot = lambda mask: crowds.mark(jnp.asarray(plan.pots), shape, mask)
    full = state.onions == needed
    short = state.onions.sum() + (others == ONION) < needed * len(plan.pots)
    plates = full.any() & (others != DISH) & (others != SOUP) & kind("D").any()
    hands = kind("D") & plates | kind("O") & ~plates & short
    wanted = jnp.stack([hands, pot(~full), pot(full), kind("S")])[carried]

    place, other = state.crowd.place[i], state.crowd.place[1 - i]
    here = lambda grids: grids[:, place[0], place[1]]
    floor, taken = kind(" "), crowds.mark(other[None], shape)
    enter = jnp.where(floor, jnp.where(taken, np.int16(50), np.int16(1)), paths.FAR)
    enter = jnp.broadcast_to(enter, (4, *shape))
    around = jnp.stack([paths.next_to(wanted, d, False) for d in range(4)])
    distance = paths.by_compass(enter, around.any(0) & floor, floor.size)
    ways = here(jnp.stack([paths.next_to(enter[d] + distance, d) for d in range(4)]))
    at_goal = here(around).any()
    way = jnp.where(at_goal, first(here(around)), first(ways == ways.min()))
    ahead = place + jnp.asarray(STEPS[1:5])[state.facing[i]]
    action = jnp.where(at_goal & wanted[ahead[0], ahead[1]], INTERACT, jnp.asarray(_COMPASS)[way])

    at_pot = jnp.stack([paths.next_to(pot(full | ~full), d, False) for d in range(4)]).any(0)
    free = jnp.stack([paths.next_to(floor & ~taken & ~at_pot, d, False) for d in range(4)])
    aside = jnp.where(here(free).any(), jnp.asarray(_COMPASS)[first(here(free))], 0)
    meets = jnp.abs(place - other).sum() == 1
    idle = ~at_goal & (ways.min() >= paths.FAR)
    blocked = ~at_goal & (place + jnp.asarray(STEPS)[action] == other).all()
    gives_way = meets & (idle | (blocked & (i == 1)))
    action = jnp.where(gives_way, aside, jnp.where(idle | blocked, 0, action))
    if yields:
        action = jnp.where((carried == NOTHING) & (others != NOTHING), 0, action)
    return action.astype(jnp.int32)


@functools.cache
def kitchen(
    layout: str = "cramped_room", onions: int = 3, counters: bool = True, steps: int = 400
) -> Environment:
    """A kitchen of a `layout`, by its name or its lines, with soup of `onions`. `counters`: whether
    things can be laid on counters. `steps`: the time limit."""
    name = "kitchen"
    at_least(name, "onions", onions, 1)
    at_least(name, "steps", steps, 1)
    plan = read_layout(layout)
    shape, pots = plan.cells.shape, len(plan.pots)
    names = ("agent_0", "agent_1")
    center = (np.array(shape, np.float32) - 1) / 2
    tops = np.argwhere(plan.mask("X")) if counters else np.zeros((0, 2), int)

    def see(state: State, i: int, params: Params) -> Array:
        """Return what cook `i` sees."""
        parts = []
        for who in (i, 1 - i):
            parts += [
                state.crowd.place[who] / center - 1,
                jax.nn.one_hot(state.facing[who], 4),
                jax.nn.one_hot(state.carried[who], 4),
            ]
        cooked = state.cooked / jnp.maximum(params.cook_time, 1)
        lying = state.counter[tops[:, 0], tops[:, 1]]
        parts += [state.onions / onions, jnp.minimum(cooked, 1.0)]
        parts += [jax.nn.one_hot(lying - 1, 3).reshape(-1)]
        return jnp.concatenate(parts).astype(jnp.float32)

    def channels(state: State, params: Params) -> tuple[dict, dict]:
        """Return the observations and the other channels."""
        seen = {n: see(state, i, params) for i, n in enumerate(names)}
        more = {
            "privileged": {"state": seen[names[0]]},
            "metrics": {"delivered": state.delivered.astype(jnp.float32)},
        }
        return seen, more

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        del key
        zeros = lambda *n: jnp.zeros(n, jnp.int32)
        crowd = crowds.gather(jnp.asarray(plan.starts))
        state = State(crowd, zeros(2), zeros(2), zeros(*shape), zeros(pots), zeros(pots), zeros())
        seen, more = channels(state, params)
        return state, timesteps.first(seen, **more)

    def step(key: Key, state: State, action: dict, params: Params) -> tuple[State, TimeStep]:
        del key
        chosen = jnp.stack([action[n] for n in names])
        reward = jnp.zeros(())
        for i in range(2):
            done, paid = _interact(plan, onions, counters, state, i, params)
            acts = chosen[i] == INTERACT
            state = jax.tree.map(lambda a, b, acts=acts: jnp.where(acts, a, b), done, state)
            reward += jnp.where(acts, paid, 0.0)
        place = state.crowd.place
        move = jnp.asarray(STEPS)[chosen]
        swap = (place + move == place[::-1]).all()  # the crowd's rule lets two change places
        crowd = crowds.move(state.crowd, jnp.where(swap, 0, move), ~plan.mask(" "))
        turns = (chosen > 0) & (chosen < INTERACT)
        cooks = (state.onions == onions) & (state.cooked < params.cook_time)
        state = State(
            crowd,
            jnp.where(turns, chosen - 1, state.facing),
            state.carried,
            state.counter,
            state.onions,
            state.cooked + cooks,
            state.delivered,
        )
        seen, more = channels(state, params)
        return state, timesteps.following(seen, reward, **more)

    def expert(state: State, params: Params) -> dict:
        del params
        action = jnp.stack([cook(plan, onions, state, i) for i in range(2)])
        aims = state.crowd.place + jnp.asarray(STEPS)[action]
        meet = (aims[0] == aims[1]).all()
        return {names[0]: action[0], names[1]: jnp.where(meet, 0, action[1])}

    def render(state: State, params: Params) -> np.ndarray:
        del params
        ground = np.array([[_COLORS[kind] for kind in row] for row in plan.cells], np.uint8)
        picture, places = crowds.draw(ground, state.crowd, (drawing.BLUE, drawing.GREEN))
        for (row, column), facing, carried in zip(places, state.facing, state.carried, strict=True):
            down, right = STEPS[1 + int(facing)]
            picture.disc(row, column, 0.5 + 0.28 * right, 0.5 + 0.28 * down, 0.1, drawing.INK)
            if int(carried):
                picture.disc(row, column, 0.5, 0.5, 0.18, _CARRIED[int(carried)])
        for row, column in np.argwhere(np.asarray(state.counter) > 0):
            lying = int(np.asarray(state.counter)[row, column])
            picture.disc(row, column, 0.5, 0.5, 0.22, _CARRIED[lying])
        for (row, column), count in zip(plan.pots, np.asarray(state.onions), strict=True):
            for i in range(int(count)):
                picture.disc(row, column, 0.5 + 0.26 * (i - 1), 0.5, 0.11, _CARRIED[ONION])
        return picture.frame()

    box = Box(-1.0, 1.0, (20 + 2 * pots + 3 * len(tops),))
    environment = Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(),
        observation_space=dict.fromkeys(names, box),
        action_space=dict.fromkeys(names, Discrete(ACTIONS)),
        render=render,
        expert=jax.jit(expert, inline=True),
        scores={"delivered": "delivered"},
        agents=names,
    )
    return time_limit(environment, steps)
