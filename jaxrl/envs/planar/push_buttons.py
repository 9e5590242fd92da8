"""Press buttons that toggle lights, and push a block through gates that buttons unlock.

A table from above, with a disc, the pusher, that moves over it and can be pressed down. It presses
the button below it when it is down there and was not before. Goals are states of all lights, and in
`task="scene"` of a block too.

    puzzle   `rows` x `columns` buttons with a light each: Lights Out. A press toggles the button's
             own light and those of its neighbors beside, above and below it. No block.
    scene    two buttons at the left and two chambers at the right, each behind a gate of its own. A
             press toggles the button's own light alone; the gate is open while it is lit, and
             otherwise nothing passes it. A block, a disc that the pusher pushes as in `push`, is
             to be brought to a place on the table or in a chamber, whose gate may have to be
             unlocked first and locked in the end.

Observation: float32, the pusher's position and velocity (m, m/s), each light (0 or 1) and whether
each button is down; in a scene then the block's position, velocity and spin (rad/s). Goal, in
`timestep.goal`: float32, the lights, and in a scene the block's position; with
`goals="observations"` a whole observation, in which pusher and block are at rest, and of which the
lights and the block's position alone count. Action: float32 [3], clipped to [-1, 1]: the pusher's
velocity in units of `max_speed`, held by a servo, and whether it is down (above 0). Reward: with
`reward="sparse"` 1 where all lights are those of the goal and the block is within `goal_radius` of
its place, 0 elsewhere; with "count" minus the number of lights and blocks that are not yet so.
Terminates where all are, unless `continuing`. Time limit: 60 + 20 steps for each button of a
puzzle, 300 steps for a scene, of 0.1 s. Metric `solved`: the share of lights and blocks that are as
they should be.

At first and in the goal the lights are those after presses of each button with probability 1/2 and
`scramble` on a dark table (but never those of a solved puzzle), so every goal can be reached from
every state (`lights_out`), also where a board (such as that of 4 x 4 buttons) leaves some out of
reach. Time steps tell the state, so `envs.goals.set_new_goals` turns this into play as OGBench's
players record it, with `envs.policies.mixed_skill` or `noisy_expert`: after a goal is reached the
next one is a press of a random button away, or in a scene, in half of the cases, another place of
the block.

The rules of buttons, lights, locks and success are those of `puzzle` and `scene` in OGBench (Park
et al., 2025, "OGBench: benchmarking offline goal-conditioned RL", arXiv:2410.20092): a press is the
moment at which a button goes down, the same cross of lights, two lights of which each unlocks one
thing, and rewards that count what is missing. Different: a disc in a plane in the place of an arm
with a gripper, in `puzzle` random goals instead of five tasks, and in `scene` chambers with gates
instead of a drawer and a window, whose positions are no part of the goal; there blocks are lifted.
Mechanics are those of `push`. Expert: presses as few buttons as possible, the nearest first; in a
scene it unlocks what is in the way, pushes the block to its place, then sets the lights.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Goals, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least, one_of
from jaxrl.envs.planar import free_bodies, lights_out, push_expert, push_table, tasks, vectors
from jaxrl.envs.planar.free_bodies import Body
from jaxrl.envs.wrappers.time_limit import time_limit

TASKS, REWARDS, GOALS = ("puzzle", "scene"), ("sparse", "count"), ("lights", "observations")
SUBSTEPS = 5
LARGEST = 6  # rows and columns of a puzzle
TABLE = 0.5  # m, half sides of the table
# A scene: the gates' place and thickness, and the wall between the chambers behind them.
GATE, THICK = 0.22, 0.03  # m: x of both gates, and thickness of gates and wall
_MIDDLE = (GATE + TABLE) / 2
# Center and half sides of the upper and the lower gate, and of the wall.
GATES = np.array(
    [
        [GATE, TABLE / 2, THICK / 2, TABLE / 2],
        [GATE, -TABLE / 2, THICK / 2, TABLE / 2],
    ],
    np.float32,
)
WALL = np.array([_MIDDLE, 0.0, (TABLE - GATE) / 2, THICK / 2], np.float32)
SCENE_BUTTONS = np.array([[-0.42, 0.3], [-0.42, -0.3]], np.float32)
# Where blocks may begin and be wanted, center and half sides: the table, and each chamber. The
# pusher has room on all sides of them.
PLACES = np.array(
    [
        [-0.12, 0.0, 0.16, 0.36],
        [0.366, 0.252, 0.02, 0.12],
        [0.366, -0.252, 0.02, 0.12],
    ],
    np.float32,
)
FRONT = 0.06  # m, x from which the expert pushes a block through a gate, and to which out of it
YELLOW = (240, 200, 70)


@struct
class Params:
    buttons: np.ndarray  # [N, 2], centers of the buttons (m)
    button_radius: float = 0.05  # m, distance from a button's center within which it is pressed
    scramble: float = 0.5  # probability that a button is pressed from the dark table to the goal
    inside: float = 0.5  # probability that a block begins, and that its place is, in a chamber
    goal_radius: float = 0.04  # m, distance at which a block is at its place
    object_radius: float = 0.045  # m, radius of the block
    object_mass: float = 0.5  # kg
    pusher_radius: float = 0.02  # m
    pusher_mass: float = 2.0  # kg
    max_speed: float = 0.5  # m/s at action 1
    servo: float = 60.0  # N s/m, gain of the servo on the error of the velocity
    gravity: float = 9.81  # m/s^2
    table_friction: float = 0.3  # friction coefficient of the block on the table
    contact_friction: float = 0.2  # friction coefficient between pusher, block, gates and walls
    restitution: float = 0.0  # coefficient of restitution of all contacts
    dt: float = 0.1  # s, length of a step
    continuing: bool = False  # whether an episode goes on at the goal


@struct
class State:
    pusher: Array  # [4]: position, velocity
    block: Array  # [5] position, velocity, spin in a scene; [0] in a puzzle
    lights: Array  # int32 [N]
    down: Array  # int32 [N]: 1 where a button is down
    goal: Array  # [N] lights, then [2] the block's place in a scene; or an observation


@dataclasses.dataclass(frozen=True)
class _Table:
    """Parameters that `push_table` reads, for a disc on a table without posts."""

    object_radius: Array
    object_mass: Array
    pusher_radius: Array
    restitution: Array
    contact_friction: Array
    parts: tuple = ()
    posts: tuple = ()
    table: tuple[float, float] = (TABLE, TABLE)


def chamber_of(place: Array) -> Array:
    """Return the chamber [...] in which a place [..., 2] is, int32: 0 the upper one, 1 the lower
    one, and -1 for the table."""
    chamber = jnp.where(place[..., 1] > 0, 0, 1)
    return jnp.where(place[..., 0] > GATE, chamber, -1)


@functools.cache
def push_buttons(
    task: str = "puzzle",
    rows: int = 3,
    columns: int = 3,
    reward: str = "sparse",
    goals: str = "lights",
) -> Environment:
    """The table with buttons. `task`: "puzzle", of `rows` x `columns` buttons, 1 to 6 each and at
    least two in all, or "scene". `reward`: "sparse" or "count". `goals`: "lights" or
    "observations"."""
    name = "push_buttons"
    one_of(name, "task", task, TASKS)
    one_of(name, "reward", reward, REWARDS)
    one_of(name, "goals", goals, GOALS)
    for option, value in (("rows", rows), ("columns", columns)):
        at_least(name, option, value, 1)
        if value > LARGEST:
            raise UserError(
                f"The {option} of '{name}' are {value}; there may be {LARGEST} at most."
            )
    scene = task == "scene"
    if scene:
        matrix, buttons = np.eye(2, dtype=np.int32), SCENE_BUTTONS
        solution, radius, limit = lights_out.solve(matrix), 0.05, 300
    else:
        at_least(name, "rows * columns", rows * columns, 2)
        matrix, solution = (
            lights_out.neighbors(rows, columns),
            lights_out.board_solution(rows, columns),
        )
        apart = 0.8 / max(rows, columns)
        row, column = np.divmod(np.arange(rows * columns), columns)
        x, y = column - (columns - 1) / 2, (rows - 1) / 2 - row
        buttons = (apart * np.stack([x, y], 1)).astype(np.float32)
        radius, limit = 0.3 * apart, 60 + 20 * rows * columns
    count = len(buttons)
    split = functools.partial(_split, count)

    def presses(pressed: Array) -> Array:
        """Return by which lights change, int32 [N], when these buttons [N] are pressed."""
        return jnp.asarray(matrix) @ pressed.astype(jnp.int32) % 2

    def observe(state: State) -> Array:
        parts = [state.pusher, state.lights, state.down, state.block]
        return jnp.concatenate([x.astype(jnp.float32) for x in parts])

    def achieved_goal(observation: Array) -> Array:
        return _aim(count, observation) if goals == "lights" else observation

    def make_goal(pusher: Array, aim: Array) -> Array:
        """Return the goal of lights and the block's place, with the pusher [2] at rest."""
        if goals == "lights":
            return aim
        lights, place = jnp.split(aim, [count])
        still = [jnp.zeros(2), lights, jnp.zeros(count), place, jnp.zeros(3 * scene)]
        return jnp.concatenate([pusher, *still])

    def is_solved(reached: Array, goal: Array, params: Params) -> Array:
        """Return which lights and blocks are as the goal says, bool."""
        reached, goal = _aim(count, reached), _aim(count, goal)
        lights = jnp.abs(reached[..., :count] - goal[..., :count]) < 0.5
        if not scene:
            return lights
        near = vectors.norm(reached[..., count:] - goal[..., count:]) <= params.goal_radius
        return jnp.concatenate([lights, near[..., None]], -1)

    def outcome(reached: Array, goal: Array, params: Params) -> tuple[Array, Array]:
        parts = is_solved(reached, goal, params)
        done = parts.all(-1)
        missing = (parts.sum(-1) - parts.shape[-1]).astype(jnp.float32)
        paid = done.astype(jnp.float32) if reward == "sparse" else missing
        return paid, done & ~jnp.asarray(params.continuing)

    def channels(state: State, params: Params) -> dict:
        parts = is_solved(achieved_goal(observe(state)), state.goal, params)
        share = parts.mean(dtype=jnp.float32)
        success = parts.all().astype(jnp.float32)
        return {"goal": state.goal, "metrics": {"success": success, "solved": share}}

    def next_goal(key: Key, achieved: Array, params: Params) -> Array:
        button_key, block_key, place_key = jax.random.split(key, 3)
        button = jax.random.randint(button_key, (), 0, count)
        before, place = jnp.split(_aim(count, achieved), [count])
        lights = (before + presses(jnp.arange(count) == button)) % 2
        if scene:
            moves = jax.random.bernoulli(block_key)
            lights = jnp.where(moves, before, lights)
            place = jnp.where(moves, _draw_place(place_key, params), place)
        return make_goal(achieved[:2], jnp.concatenate([lights, place]))

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        keys = jax.random.split(key, 6)
        lights = presses(jax.random.bernoulli(keys[0], 0.5, (count,)))
        aim = presses(jax.random.bernoulli(keys[1], params.scramble, (count,)))
        if not scene:  # a puzzle that is solved already gets one press more
            one = jnp.arange(count) == jax.random.randint(keys[2], (), 0, count)
            aim = jnp.where((aim == lights).all(), (aim + presses(one)) % 2, aim)
        start = _draw_place(keys[4], params) if scene else jnp.zeros(0)
        place = _draw_place(keys[5], params) if scene else jnp.zeros(0)
        pusher = _draw_pusher(keys[3], start, params)
        rests = _draw_pusher(jax.random.fold_in(keys[3], 1), place, params)
        goal = make_goal(rests, jnp.concatenate([aim.astype(jnp.float32), place]))
        block = jnp.concatenate([start, jnp.zeros(3 * scene)])
        down = jnp.zeros(count, jnp.int32)
        state = State(jnp.concatenate([pusher, jnp.zeros(2)]), block, lights, down, goal)
        return state, timesteps.first(observe(state), **channels(state, params))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        del key
        action = jnp.clip(action, -1.0, 1.0)
        move = _move_scene if scene else _move_alone
        pusher, block = move(state, action[:2], params)
        near = vectors.norm(jnp.asarray(params.buttons) - pusher[:2]) <= params.button_radius
        down = (near & (action[2] > 0)).astype(jnp.int32)
        lights = (state.lights + presses(down * (1 - state.down))) % 2
        state = State(pusher, block, lights, down, state.goal)
        seen = observe(state)
        paid, ended = outcome(achieved_goal(seen), state.goal, params)
        return state, timesteps.following(seen, paid, ended, **channels(state, params))

    def state_of(timestep: TimeStep) -> State:
        pusher, lights, down, block = split(timestep.observation)
        whole = lambda x: jnp.round(x).astype(jnp.int32)
        return State(pusher, block, whole(lights), whole(down), timestep.goal)

    def expert(state: State, params: Params) -> Array:
        state = dataclasses.replace(state, goal=_aim(count, state.goal))
        change = jnp.abs(state.lights - jnp.round(state.goal[:count])).astype(jnp.int32)
        wanted = lights_out.fewest_presses(solution, change)
        if scene:
            return _expert_of_scene(state, wanted, params)
        return _press(state, wanted, params, lambda aim: 5.0 * (aim - state.pusher[:2]))

    return time_limit(
        Environment(
            name=name,
            reset=jax.jit(reset, inline=True),
            step=jax.jit(step, inline=True),
            params=Params(buttons, radius),
            observation_space=Box(-math.inf, math.inf, (4 + 2 * count + 5 * scene,)),
            action_space=Box(-1.0, 1.0, (3,)),
            render=_render,
            step_seconds=lambda state, params: params.dt,
            expert=jax.jit(expert, inline=True),
            goals=Goals(achieved_goal, outcome, next_goal),
            state_of=state_of,
            scores={"success": "success", "solved": "solved"},
        ),
        limit,
    )


def _split(count: int, observation: Array) -> tuple[Array, Array, Array, Array]:
    """Return pusher [..., 4], lights and what is down [..., N], and the block [..., 5 or 0]."""
    ends = [4, 4 + count, 4 + 2 * count]
    pusher, lights, down, block = jnp.split(observation, ends, -1)
    return pusher, lights, down, block


def _aim(count: int, goal: Array) -> Array:
    """Return the lights and the block's place [..., N or N + 2] of a goal or an observation."""
    if goal.shape[-1] <= count + 2:
        return goal
    _, lights, _, block = _split(count, goal)
    return jnp.concatenate([lights, block[..., :2]], -1)


def _draw_pusher(key: Key, place: Array, params: Params) -> Array:
    """Draw a position of the pusher [2] on the table, beside a block at `place` [2 or 0]."""
    scene = len(place) > 0
    low, high = (-0.35, 0.15) if scene else (-0.45, 0.45)
    pusher = jax.random.uniform(key, (2,), jnp.float32, low, high)
    if not scene:
        return pusher
    clear = jnp.asarray(params.object_radius) + params.pusher_radius + 0.01
    away = pusher - place
    distance = vectors.norm(away)
    out = jnp.where(distance > 1e-6, away / distance, jnp.asarray([-1.0, 0.0]))
    moved = jnp.clip(place + clear * out, -0.45, 0.19)
    return jnp.where(distance < clear, moved, pusher)


def _draw_place(key: Key, params: Params) -> Array:
    """Draw a place of the block [2], on the table or in a chamber."""
    where_key, side_key, place_key = jax.random.split(key, 3)
    within = jax.random.bernoulli(where_key, params.inside)
    area = jnp.where(within, 1 + jax.random.randint(side_key, (), 0, 2), 0)
    center, half = jnp.split(jnp.asarray(PLACES)[area], 2)
    return center + half * jax.random.uniform(place_key, (2,), jnp.float32, -1.0, 1.0)


# ------------------------------------------------------------------------------ mechanics


def _driven(pusher: Body, velocity: Array, dt: Array, params: Params) -> Body:
    """Return the pusher after `dt`, driven toward a velocity by its servo."""
    force = params.servo * velocity
    speed = free_bodies.drive(pusher.velocity, force, params.pusher_mass, params.servo, dt)
    speed = vectors.cap_length(speed, free_bodies.LARGEST_MOVE * params.pusher_radius / dt)
    return dataclasses.replace(pusher, position=pusher.position + dt * speed, velocity=speed)


def _pusher(state: State, params: Params) -> Body:
    p, still = state.pusher, jnp.zeros(())
    return Body(p[:2], still, p[2:], still, 1 / jnp.asarray(params.pusher_mass), still)


def _move_alone(state: State, way: Array, params: Params) -> tuple[Array, Array]:
    """Return the pusher [4] after a step on a table without a block, and no block."""
    dt = jnp.asarray(params.dt) / SUBSTEPS
    ground = free_bodies.fixed_body(jnp.zeros(2))

    def substep(_, pusher: Body) -> Body:
        pusher = _driven(pusher, params.max_speed * way, dt, params)
        half, radius = jnp.full(2, TABLE), params.pusher_radius
        for contact in free_bodies.walls_of_table(pusher.position[None], radius, half):
            pusher, _ = free_bodies.collide(
                pusher, ground, contact, params.restitution, params.contact_friction
            )
        return pusher

    pusher = jax.lax.fori_loop(0, SUBSTEPS, substep, _pusher(state, params))
    return jnp.concatenate([pusher.position, pusher.velocity]), state.block


def _move_scene(state: State, way: Array, params: Params) -> tuple[Array, Array]:
    """Return pusher [4] and block [5] after a step; gates are solid whose light is off."""
    array = functools.partial(jnp.asarray, dtype=jnp.float32)
    table = _Table(
        array(params.object_radius),
        array(params.object_mass),
        array(params.pusher_radius),
        array(params.restitution),
        array(params.contact_friction),
    )
    shape = push_table.shape_of(table)
    dt = array(params.dt) / SUBSTEPS
    solid = jnp.append(state.lights == 0, True)
    bars = jnp.concatenate([jnp.asarray(GATES), jnp.asarray(WALL)[None]])

    def keep_out(body: Body, radius: Array) -> Body:
        """Return a body that is out of the gates that are locked, and of the wall."""
        for bar, is_solid in zip(bars, solid, strict=True):
            fixed = free_bodies.fixed_body(bar[:2])
            contact = free_bodies.disc_box(body.position, radius, fixed, jnp.zeros(2), bar[2:])
            depth = jnp.where(is_solid, contact.depth, -1.0)
            contact = dataclasses.replace(contact, depth=depth)
            body, _ = free_bodies.collide(
                body, fixed, contact, table.restitution, table.contact_friction
            )
        return body

    def substep(_, bodies: tuple[Body, Body]) -> tuple[Body, Body]:
        pusher, block = bodies
        pusher = _driven(pusher, params.max_speed * way, dt, params)
        grip = params.table_friction * params.gravity
        block = free_bodies.slide(block, array(grip), shape.reach, dt)
        pusher, block = push_table.resolve_contacts(pusher, block, shape, table)
        block = keep_out(block, table.object_radius)
        # A block that something holds gives way no more: only the pusher does.
        held = dataclasses.replace(block, inverse_mass=0.0, inverse_inertia=0.0)
        contact = free_bodies.disc_disc(
            pusher.position, table.pusher_radius, block.position, shape.radius
        )
        pusher, _ = free_bodies.collide(
            pusher, held, contact, table.restitution, table.contact_friction
        )
        most = TABLE - table.pusher_radius
        pusher = dataclasses.replace(pusher, position=jnp.clip(pusher.position, -most, most))
        return keep_out(pusher, table.pusher_radius), block

    b, still = state.block, jnp.zeros(())
    block = Body(b[:2], still, b[2:4], b[4], 1 / table.object_mass, shape.inverse_inertia)
    pusher, block = jax.lax.fori_loop(0, SUBSTEPS, substep, (_pusher(state, params), block))
    return (
        jnp.concatenate([pusher.position, pusher.velocity]),
        jnp.concatenate([block.position, block.velocity, block.spin[None]]),
    )


# ------------------------------------------------------------------------------ experts


def _act(velocity: Array, press: Array, params: Params) -> Array:
    """Return the action of a velocity (m/s), and down where `press`."""
    velocity = vectors.cap_length(velocity, params.max_speed) / params.max_speed
    return jnp.append(jnp.clip(velocity, -1.0, 1.0), jnp.where(press, 1.0, -1.0))


def _press(state: State, wanted: Array, params: Params, travel: Callable) -> Array:
    """Return the action that presses the nearest of the `wanted` buttons [N]; `travel(aim)` is the
    velocity to a place. Where none is wanted the pusher stays."""
    buttons = jnp.asarray(params.buttons)
    away = vectors.norm(buttons - state.pusher[:2])
    target = jnp.where(wanted > 0, away, jnp.inf).argmin()
    any_left = (wanted > 0).any()
    there = away[target] < 0.6 * params.button_radius
    velocity = jnp.where(any_left & ~there, travel(buttons[target]), 0.0)
    return _act(velocity, any_left & there & (state.down[target] == 0), params)


def _expert_of_scene(state: State, wanted: Array, params: Params) -> Array:
    """Unlock what is in the block's way, push it to its place, then set the lights."""
    pusher, block, aim = state.pusher[:2], state.block[:2], state.goal[2:]
    clear = params.object_radius + params.pusher_radius + 0.02
    there, mine = chamber_of(aim), chamber_of(pusher)
    # A block before a gate, with the pusher behind it in the chamber, is still on its way out.
    leaves = (mine >= 0) & (block[0] > FRONT + 0.02)
    here = jnp.where(leaves, mine, chamber_of(block))
    settled = vectors.norm(block - aim) < 0.75 * params.goal_radius
    # Gates through which the block has to go, or the pusher to reach it.
    chamber = jnp.arange(2)
    needed = (chamber == here) | ((chamber == there) & (here != there))
    locked = needed & (state.lights == 0)

    def travel(goal: Array) -> Array:
        """Return the velocity to a place, by a gate if need be, and around the block."""
        mouth = jnp.stack([jnp.float32(GATE - 0.1), pusher[1]])
        leaving = (mine >= 0) & (chamber_of(goal) != mine)
        way = 5.0 * (jnp.where(leaving, mouth, goal) - pusher)
        spoke = pusher - block
        distance = vectors.norm(spoke)
        outward = spoke / distance
        inward = jnp.minimum(way @ outward, 0.0)
        aside = vectors.perpendicular(outward)
        side = jnp.where(way @ aside < 0, -1.0, 1.0)
        around = way - inward * outward + (5.0 * (clear - distance) * outward)
        around = around - inward * side * aside
        return jnp.where((distance < clear + 0.02) & (inward < 0), around, way)

    def push() -> Array:
        """Return the velocity that pushes the block on, or leads to where it can be pushed."""
        out = jnp.stack([jnp.float32(FRONT), block[1]])
        front = jnp.stack([jnp.float32(FRONT), aim[1]])
        inline = jnp.abs(block[1] - aim[1]) < 0.03
        toward = jnp.where((there >= 0) & ~(inline & (block[0] > FRONT - 0.02)), front, aim)
        target = jnp.where(here == there, aim, jnp.where(here >= 0, out, toward))
        near = push_expert.pushing(pusher, block, target, clear, 0.6 * params.max_speed)
        # Into a chamber beside the block, where there is more room, before it goes behind it.
        inner = jnp.where(here == 0, 1.0, -1.0) * (TABLE + THICK / 2) / 2
        beside = block + jnp.where(block[1] > inner, -1.0, 1.0) * jnp.array([0.0, clear + 0.01])
        mouth = jnp.stack([jnp.float32(GATE - 0.1), beside[1]])
        enters = (mine != here) & (jnp.abs(pusher[1] - beside[1]) > 0.06)
        distance = vectors.norm(pusher - block)
        far = (here >= 0) & (distance > clear + 0.05)
        back = jnp.stack([jnp.float32(GATE - 0.1), pusher[1]])
        to_table = (here < 0) & (mine >= 0)
        way = travel(jnp.where(to_table, back, jnp.where(enters, mouth, beside)))
        # On the table straight to the block at first: a wide turn around it might end at a gate.
        nears = (here < 0) & (mine < 0) & (distance > clear + 0.1)
        return jnp.where(far | to_table, way, jnp.where(nears, travel(block), near))

    work = _act(push(), jnp.bool_(False), params)
    buttons = jnp.where(settled, wanted, locked.astype(jnp.int32))
    return jnp.where(settled | locked.any(), _press(state, buttons, params, travel), work)


# ------------------------------------------------------------------------------ picture


def _render(state: State, params: Params) -> np.ndarray:
    """Draw the table from above: lit buttons yellow, with a green rim where the goal agrees and a
    red one where it does not; locked gates dark, the block orange and its place pale green."""
    scale = 320 / (2 * TABLE)
    canvas = drawing.Canvas(344, 344, scale, (172, 172))
    tasks.arena(canvas, TABLE, TABLE)
    lights = np.asarray(state.lights)
    goal = np.asarray(_aim(len(lights), jnp.asarray(state.goal)))
    radius = float(params.button_radius)
    for number, (x, y) in enumerate(np.asarray(params.buttons, float)):
        agrees = abs(lights[number] - goal[number]) < 0.5
        canvas.circle((x, y), radius, drawing.GREEN if agrees else drawing.RED)
        canvas.circle((x, y), 0.75 * radius, YELLOW if lights[number] else drawing.STEEL)
    if len(state.block):
        for number, (x, y, wide, high) in enumerate(np.asarray(GATES, float)):
            color = drawing.PAPER if lights[number] else drawing.INK
            tasks.rectangle(canvas, (x - wide, y - high), (x + wide, y + high), color)
        x, y, wide, high = (float(number) for number in WALL)
        tasks.rectangle(canvas, (x - wide, y - high), (x + wide, y + high), drawing.STEEL)
        place = float(goal[2]), float(goal[3])
        canvas.circle(place, float(params.goal_radius), (171, 202, 187))
        canvas.circle(place, 0.008, drawing.GREEN)
        block = float(state.block[0]), float(state.block[1])
        canvas.circle(block, float(params.object_radius), drawing.ORANGE)
    pusher = float(state.pusher[0]), float(state.pusher[1])
    canvas.circle(pusher, float(params.pusher_radius), drawing.BLUE)
    return canvas.frame()
