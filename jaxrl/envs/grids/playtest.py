"""Play through a small level of a game in one of four styles, and come across its bugs.

A room of `size` x `size` cells, a pixel each: walls around it, the agent, the exit in the lower
right corner, and a trace of the cells that were visited. Observation: uint8 [size, size, 3], that
picture. Actions: compass steps, 0 east, 1 south, 2 west, 3 north; walls stop them. The style of an
episode is what a user asks for; the goal channel names it, float32 [4], a one-hot:

    0 golden path   along the upper wall and down to the exit
    1 rim           once around the room, clockwise
    2 rows          every cell, row by row, back and forth
    3 columns       every cell, column by column

Expert: goes to the first cell of the style's path that was not visited, along the row first (along
the column first for `columns`). In each episode another `bugs` of the cells off the golden path
have a bug that is not seen. Reward: 1 for each bug that is found. Truncated after 2 * (size - 2)**2
steps, and when the path of the style is finished. Metrics: `coverage`, the visited share of cells;
`followed`, the visited share of the style's path; `agreement`, the share of actions that were the
expert's; `bugs`, the share of bugs that were found.

Made for agents that test a game in the style of a user's demonstrations, as in Abdelfattah et al.
(2023), "Preference-conditioned pixel-based AI agent for game testing".
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least

STYLES = ("golden path", "rim", "rows", "columns")
MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)], np.int32)  # row, column
FLOOR, SEEN, WALL, EXIT, AGENT = (
    (20, 20, 20),
    (90, 90, 90),
    (160, 110, 60),
    (0, 200, 0),
    (0, 0, 255),
)


@struct
class Params:
    style: int = -1  # of the next episode, 0 .. 3; -1 draws one


@struct
class State:
    place: Array  # int32 [2]: row and column within the walls
    visited: Array  # bool [N, N]
    bugs: Array  # bool [N, N], those not found yet
    style: Array  # int32
    steps: Array  # int32
    agreed: Array  # int32, actions that were the expert's
    found: Array  # int32, bugs that were found


def paths(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cells [4, side**2, 2] of the styles' paths, and their lengths [4]."""
    forth = list(range(side))
    back = forth[::-1]
    rows = [(i, j) for i in forth for j in (back if i % 2 else forth)]
    golden = [(0, j) for j in forth] + [(i, side - 1) for i in forth[1:]]
    rim = golden + [(side - 1, j) for j in back[1:]] + [(i, 0) for i in back[1:-1]]
    each = [golden, rim, rows, [(j, i) for i, j in rows]]
    cells = np.zeros((len(each), side**2, 2), np.int32)
    for i, path in enumerate(each):
        cells[i, : len(path)] = path
    return cells, np.array([len(path) for path in each], np.int32)


@functools.cache
def playtest(size: int = 9, bugs: int = 5) -> Environment:
    """The level of `size` x `size` cells, at least 5, with `bugs` hidden bugs, at least 1."""
    at_least("playtest", "size", size, 5)
    at_least("playtest", "bugs", bugs, 1)
    side = size - 2
    cells, lengths = paths(side)
    limit = 2 * side**2
    plain = np.ones((side, side), bool)
    plain[0, :] = plain[:, -1] = False
    hidden = np.flatnonzero(plain)
    bugs = min(bugs, len(hidden))

    def first_left(state: State) -> tuple[Array, Array]:
        """Return which steps of the style's path are not visited [side**2], and its cells."""
        path = jnp.asarray(cells)[state.style]
        exists = jnp.arange(side**2) < jnp.asarray(lengths)[state.style]
        return exists & ~state.visited[path[:, 0], path[:, 1]], path

    def expert(state: State, params: Params) -> Array:
        del params
        left, path = first_left(state)
        down, right = path[left.argmax()] - state.place
        sideways, along = jnp.where(right > 0, 0, 2), jnp.where(down > 0, 1, 3)
        row_first = jnp.where(right != 0, sideways, along)
        column_first = jnp.where(down != 0, along, sideways)
        action = jnp.where(state.style == 3, column_first, row_first)
        return jnp.where(left.any(), action, 3).astype(jnp.int32)

    def picture(state: State) -> Array:
        image = jnp.broadcast_to(jnp.asarray(WALL, jnp.uint8), (size, size, 3))
        floor = jnp.where(state.visited[..., None], jnp.asarray(SEEN), jnp.asarray(FLOOR))
        image = image.at[1:-1, 1:-1].set(floor.astype(jnp.uint8))
        image = image.at[side, side].set(jnp.asarray(EXIT, jnp.uint8))
        row, column = state.place + 1
        return image.at[row, column].set(jnp.asarray(AGENT, jnp.uint8))

    def channels(state: State) -> dict:
        left, _ = first_left(state)
        share = lambda x, y: x.astype(jnp.float32) / jnp.maximum(y, 1).astype(jnp.float32)
        return {
            "goal": jax.nn.one_hot(state.style, len(STYLES), dtype=jnp.float32),
            "metrics": {
                "coverage": state.visited.mean(dtype=jnp.float32),
                "followed": 1 - share(left.sum(), jnp.asarray(lengths)[state.style]),
                "agreement": share(state.agreed, state.steps),
                "bugs": state.found.astype(jnp.float32) / bugs,
            },
        }

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        style_key, bug_key = jax.random.split(key)
        drawn = jax.random.randint(style_key, (), 0, len(STYLES))
        style = jnp.where(jnp.asarray(params.style) < 0, drawn, params.style).astype(jnp.int32)
        chosen = jnp.asarray(hidden)[jax.random.permutation(bug_key, len(hidden))[:bugs]]
        none = jnp.zeros((side, side), bool)
        zero = jnp.int32(0)
        state = State(
            jnp.zeros(2, jnp.int32),
            none.at[0, 0].set(True),
            none.reshape(-1).at[chosen].set(True).reshape(side, side),
            style,
            zero,
            zero,
            zero,
        )
        return state, timesteps.first(picture(state), **channels(state))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        del key
        agreed = action == expert(state, params)
        place = jnp.clip(state.place + jnp.asarray(MOVES)[action], 0, side - 1)
        here = (place[0], place[1])
        found = state.bugs[here]
        after = State(
            place,
            state.visited.at[here].set(True),
            state.bugs.at[here].set(False),
            state.style,
            state.steps + 1,
            state.agreed + agreed,
            state.found + found,
        )
        over = (after.steps >= limit) | ~first_left(after)[0].any()
        timestep = timesteps.following(picture(after), found, **channels(after))
        return after, dataclasses.replace(timestep, truncated=over)

    def render(state: State, params: Params) -> np.ndarray:
        del params
        colors = np.array(picture(state))
        for row, column in np.argwhere(np.asarray(state.bugs)) + 1:
            colors[row, column] = drawing.RED
        return drawing.tiles(colors, 24)

    return Environment(
        name="playtest",
        reset=reset,
        step=step,
        params=Params(),
        observation_space=Box(0, 255, (size, size, 3), jnp.uint8),
        action_space=Discrete(4),
        max_steps=limit,
        render=render,
        expert=expert,
        scores={"followed": "style's path", "coverage": "coverage", "bugs": "bugs found"},
    )
