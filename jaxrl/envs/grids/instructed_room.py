"""Go to the object that an instruction names by its color and kind, as in BabyAI's `GoToLocal`.

A room of `size` x `size` cells, walls included, with the named object and `distractors` others, all
keys, balls and boxes. The instruction is "go to the red key", with any color and kind. The agent
(random place and heading) obeys it as soon as the named object is in front of it, which terminates
the episode. Reward: 1 - `penalty` * steps / max_steps then, else 0. Other objects are in the way
and end nothing. Time limit size**2 steps.

Observation: uint8 [7, 7, 3], object, color and state of the cells ahead (`view.ahead_of`), or with
`full` uint8 [size, size, 3], the whole room (`view.whole`). With `instruction="goal"` the words are
in the `goal` channel: float32 [9], a one-hot of the color (red, green, blue, purple, yellow, gray)
and one of the kind (key, ball, box); what is in front of the agent is the goal that it has
achieved, so an episode can be relabeled with another instruction (`envs.goals.relabel`), but for
the price of its steps. With "text" the observation is a dict of `image` and `mission`, int32 [5],
the words of the sentence as tokens of `VOCABULARY`. Actions: 0 turn left, 1 turn right, 2 forward.

Two things may be tied in training that are not at a test; each is the probability that they are
tied in an episode:

    paired    every object has the kind that belongs to its color (key for red and purple, ball for
              green and yellow, box for blue and gray), so that the color says all
    placed    objects lie in the cells that belong to their colors, so that the color says where

The first distractor always has the kind of the named object and another color. The second has its
color and another kind, unless the episode is paired. All others differ from the named object in
color, kind or both. An agent that reads the color alone always succeeds where `paired` is 1 (the
default) and meets an equal object of the wrong kind where it is 0; two thirds of the named pairs
are then new to it. Likewise, where `placed` is 1 an agent may learn to walk by heart.

Chevalier-Boisvert et al. (2019), "BabyAI: a platform to study the sample efficiency of grounded
language learning", arXiv:1810.08272; with the rules, view, reward and time limit of `GoToLocal` in
`minigrid` 3, and with whose steps it agrees. Different: only the three actions that it needs, the
named object is the only one of its color and kind, the agent does not begin before it, and objects
lie on every second row and column, so that each can be reached. Expert: takes the fewest actions;
`optimal_return` is what it is paid.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.core.types import Array, Environment, Goals, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.grids import cells, levels, moves, paths, pictures, view
from jaxrl.envs.language import vocabulary
from jaxrl.envs.options import at_least, one_of
from jaxrl.envs.wrappers.time_limit import State as Limited
from jaxrl.envs.wrappers.time_limit import time_limit

COLORS = ("red", "green", "blue", "purple", "yellow", "gray")  # by their numbers in `cells`
KINDS = ("key", "ball", "box")
_CODES = np.array([cells.KEY, cells.BALL, cells.BOX], np.int32)
SENTENCE = ("go", "to", "the")  # before color and kind
VOCABULARY = vocabulary.words((*SENTENCE, *COLORS, *KINDS))
VIEW = 7
ACTIONS = 3
INSTRUCTIONS = ("goal", "text")
_HOMES = (0, 8, 2, 6, 4, 1)  # of the colors: numbers among the first nine sites


@struct
class Params:
    level: int = levels.FRESH  # number of a fixed level; -1 for new ones
    paired: float = 1.0  # probability that the kinds of an episode's objects follow their colors
    placed: float = 0.0  # probability that an episode's objects lie where their colors belong
    penalty: float = 0.9  # how much less a success at the time limit is worth


@struct
class Named:
    """The object that the instruction names."""

    color: Array  # int32, a number of `COLORS`
    kind: Array  # int32, a number of `KINDS`


def passes(size: int) -> int:
    """Return a number of actions in which every object of the room can be faced: a way along free
    rows and columns, with its turns."""
    return 3 * size + 6


def sites(size: int) -> np.ndarray:
    """Return the cells where objects may lie, int32 [n, 2]: those of odd rows and columns."""
    odd = range(1, size - 1, 2)
    return np.array([(row, column) for row in odd for column in odd], np.int32)


def named_cell(state: moves.State) -> Array:
    """Return where the named object is, bool [H, W]."""
    named: Named = state.extra
    return state.grid == _code(named.color, named.kind)


def optimal_return(state: Limited, params: Params) -> Array:
    """Return the return of the fewest actions from a state at the start of an episode, float32."""
    inner: moves.State = state.inner
    size = inner.grid.shape[0]
    fewest = paths.fewest_to_face(inner, named_cell(inner), passes(size))
    return 1.0 - params.penalty * fewest / size**2


def _code(color: Array, kind: Array) -> Array:
    """Return the codes of objects by the numbers of their colors and kinds, uint8."""
    kinds = jnp.asarray(_CODES, jnp.uint8)[kind]
    return jnp.asarray(color, jnp.uint8) << np.uint8(4) | kinds


def words_of(symbols: Array) -> Array:
    """Return color and kind, each one-hot, float32 [..., 9], of what an observation shows in a cell
    [..., 3] (object, color, state); zeros where that is no key, ball or box."""
    kind = symbols[..., :1] == _CODES
    color = (symbols[..., 1:2] == np.arange(len(COLORS))) & kind.any(-1, keepdims=True)
    return jnp.concatenate([color, kind], -1).astype(jnp.float32)


def in_front(image: Array, full: bool) -> Array:
    """Return what images [..., H, W, 3] show in the cell before the agent, uint8 [..., 3]."""
    if not full:
        return image[..., VIEW // 2, VIEW - 2, :]
    height, width = image.shape[-3:-1]
    flat = image.reshape(*image.shape[:-3], height * width, 3)
    place = jnp.argmax(flat[..., 0] == cells.AGENT, -1)
    heading = jnp.take_along_axis(flat[..., 2], place[..., None], -1)[..., 0]
    row, column = moves.ahead(place // width, place % width, heading)
    ahead = (row * width + column)[..., None, None]
    return jnp.take_along_axis(flat, ahead, -2)[..., 0, :]


def _outcome(achieved: Array, goal: Array, params: Params) -> tuple[Array, Array]:
    """Return 1 where both words are those of the object in front, and whether they are."""
    del params
    met = (achieved * goal).sum(-1) > 1.5
    return met.astype(jnp.float32), met


@functools.cache
def instructed_room(
    size: int = 8, distractors: int = 4, full: bool = False, instruction: str = "goal"
) -> Environment:
    """The room of `size` x `size` cells, at least 7, with at least 2 `distractors`. `full`: observe
    all of it. `instruction`: "goal" or "text"."""
    name = "instructed_room"
    at_least(name, "size", size, 7)
    at_least(name, "distractors", distractors, 2)
    one_of(name, "instruction", instruction, INSTRUCTIONS)
    places = sites(size)
    if distractors >= len(places):
        raise UserError(
            f"The distractors of '{name}' are {distractors}; with size {size} there may be at most "
            f"{len(places) - 1}."
        )
    room, max_steps, text = levels.walled_room(size, size), size**2, instruction == "text"
    flat_sites = places[:, 0] * size + places[:, 1]
    homes = jnp.asarray(_HOMES)

    def draw_objects(key: Key, paired: Array) -> tuple[Array, Array]:
        """Draw colors and kinds of all objects, int32 [1 + distractors], the named one first."""
        keys = jax.random.split(key, 4)
        color = jax.random.randint(keys[0], (), 0, len(COLORS))
        kind = jax.random.randint(keys[1], (), 0, len(KINDS))
        kind = jnp.where(paired, color % len(KINDS), kind)
        # Numbers of pairs other than the named one, and colors other than the named one.
        pairs = len(COLORS) * len(KINDS)
        other = jax.random.randint(keys[2], (distractors,), 1, pairs)
        other = (color * len(KINDS) + kind + other) % pairs
        hue = (color + jax.random.randint(keys[3], (distractors,), 1, len(COLORS))) % len(COLORS)
        colors = jnp.where(paired, hue, other // len(KINDS))
        kinds = jnp.where(paired, hue % len(KINDS), other % len(KINDS))
        # The two that are alike; in a paired episode the first has the other color of the kind.
        twin = jnp.where(paired, (color + len(KINDS)) % len(COLORS), hue[0])
        colors, kinds = colors.at[0].set(twin), kinds.at[0].set(kind)
        colors = colors.at[1].set(jnp.where(paired, colors[1], color))
        wrong = (kind + 1 + other[1] % (len(KINDS) - 1)) % len(KINDS)
        kinds = kinds.at[1].set(jnp.where(paired, kinds[1], wrong))
        return jnp.append(color, colors), jnp.append(kind, kinds)

    def generate(key: Key, params: Params) -> moves.State:
        tie_key, object_key, start_key, *site_keys = jax.random.split(key, 4 + distractors)
        tied = levels.uniform(tie_key, (2,)) < jnp.stack(
            [jnp.asarray(params.paired, jnp.float32), jnp.asarray(params.placed, jnp.float32)]
        )
        colors, kinds = draw_objects(object_key, tied[0])
        grid, free = jnp.asarray(room).reshape(-1), jnp.ones(len(places), bool)
        for i, site_key in enumerate(site_keys):
            home = homes[colors[i]]
            site = jnp.where(tied[1] & free[home], home, levels.pick(site_key, free))
            free = free & (np.arange(len(places)) != site)
            grid = grid.at[jnp.asarray(flat_sites)[site]].set(_code(colors[i], kinds[i]))
        grid = grid.reshape(size, size)
        named = Named(colors[0], kinds[0])
        # Anywhere, but not with the named object in front.
        may = (grid == cells.EMPTY) & ~paths.facing(grid == _code(named.color, named.kind))
        start = levels.pick(start_key, may)
        place, heading = start % size**2, start // size**2
        return moves.start(grid, place // size, place % size, heading, extra=named)

    def image_of(state: moves.State) -> Array:
        if full:
            return view.whole(state.grid, state.row, state.column, state.heading)
        return view.ahead_of(
            state.grid, state.row, state.column, state.heading, state.carrying, VIEW
        )

    def words(state: moves.State) -> Array:
        named: Named = state.extra
        color = jax.nn.one_hot(named.color, len(COLORS), dtype=jnp.float32)
        return jnp.append(color, jax.nn.one_hot(named.kind, len(KINDS), dtype=jnp.float32))

    def show(state: moves.State, success: Array | float) -> tuple[Array | dict, dict]:
        """Return the observation and the other channels."""
        metrics = {"metrics": {"success": jnp.asarray(success, jnp.float32)}}
        image = image_of(state)
        if not text:
            return image, metrics | {"goal": words(state)}
        start = np.array(VOCABULARY.encode(" ".join(SENTENCE)), np.int32)
        last = jnp.stack([state.extra.color, len(COLORS) + state.extra.kind]) + len(SENTENCE)
        mission = jnp.concatenate([start, last.astype(jnp.int32)])
        return {"image": image, "mission": mission}, metrics

    def reset(key: Key, params: Params) -> tuple[moves.State, TimeStep]:
        state = generate(levels.key_of(key, params.level), params)
        seen, channels = show(state, 0.0)
        return state, timesteps.first(seen, **channels)

    def step(
        key: Key, state: moves.State, action: Array, params: Params
    ) -> tuple[moves.State, TimeStep]:
        del key
        after, _ = moves.act(state, action, objects=False)
        front = moves.cell(after.grid, *moves.ahead(after.row, after.column, after.heading))
        success = front == _code(state.extra.color, state.extra.kind)
        worth = 1.0 - params.penalty * after.steps / max_steps
        seen, channels = show(after, success)
        return after, timesteps.following(seen, jnp.where(success, worth, 0.0), success, **channels)

    def expert(state: moves.State, params: Params) -> Array:
        del params
        action = paths.follow(state, passes(size), face=named_cell(state))
        return jnp.minimum(action, ACTIONS - 1)  # where it faces the object, anything will do

    def render(state: moves.State, params: Params) -> np.ndarray:
        """Draw the room, and above it the object that is named."""
        del params
        top = np.full((1, size), cells.WALL, np.uint8)
        top[0, size // 2] = int(_code(state.extra.color, state.extra.kind))
        whole = np.concatenate([top, np.asarray(state.grid)])
        return pictures.frame(whole, int(state.row) + 1, state.column, heading=state.heading)

    shape = (size, size, 3) if full else (VIEW, VIEW, 3)
    image = Box(0, cells.SYMBOLS - 1, shape, jnp.uint8)
    length = len(SENTENCE) + 2
    mission = MultiDiscrete((VOCABULARY.size,) * length)
    goals = Goals(lambda seen: words_of(in_front(seen, full)), _outcome)
    environment = Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(),
        observation_space={"image": image, "mission": mission} if text else image,
        action_space=Discrete(ACTIONS),
        render=render,
        expert=jax.jit(expert, inline=True),
        goals=None if text else goals,
    )
    return time_limit(environment, max_steps)
