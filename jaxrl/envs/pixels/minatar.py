"""Parts that the five MinAtar games share: the six actions, sticky actions, and the builder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.staging import isolate
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.envs import timesteps
from jaxrl.envs.pixels import screen
from jaxrl.envs.wrappers.time_limit import time_limit as limited

SIZE = 10  # rows and columns of every screen
NOOP, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
# A perfect player's episode need never end, but an evaluation must.
TIME_LIMIT = 10_000


@dataclasses.dataclass(frozen=True, eq=False)
class Rules:
    """Rules of a game. The random events of a step are drawn before it is played, so that a test
    can play any of them.

    start(words, params) -> state; `words` are uniform uint32 [start_words]
    chance(words, params) -> draws: random events of this step, from uint32 [step_words]
    transition(state, action, draws, params) -> (state, reward, terminated), `action` one of the six
    observe(state, params) -> bool [10, 10, len(colors)]
    expert(state, params) -> one of the six actions
    actions: those that do something; colors: one per channel, for the renderer
    """

    name: str
    params: Tree
    start: Callable[[Array, Tree], Tree]
    chance: Callable[[Array, Tree], Tree]
    transition: Callable[[Tree, Array, Tree, Tree], tuple[Tree, Array, Array]]
    observe: Callable[[Tree, Tree], Array]
    expert: Callable[[Tree, Tree], Array]
    actions: tuple[int, ...]
    colors: tuple[tuple[int, int, int], ...]
    start_words: int = 0
    step_words: int = 0


@struct
class State:
    game: Tree
    last_action: Array  # int32, one of the six; what a sticky action repeats


def game(rules: Rules, minimal_actions: bool, time_limit: int) -> Environment:
    """Build the environment of `rules`; every builder caches it.

    minimal_actions: offer only the actions that do something in this game, renumbered from 0 in
        the order of the six (no-op, left, up, right, down, fire).
    time_limit: truncate after so many steps; 0 for never.

    Raises `UserError` for a negative or fractional `time_limit`.
    """
    actions = rules.actions if minimal_actions else tuple(range(6))
    observe = jax.jit(rules.observe, inline=True)

    def reset(key: Key, params: Tree) -> tuple[State, TimeStep]:
        words = jax.random.bits(key, (rules.start_words,), jnp.uint32)
        state = rules.start(words, params)
        timestep = timesteps.first(observe(state, params))
        return State(state, jnp.full((), NOOP, jnp.int32)), timestep

    def step(key: Key, state: State, action: Array, params: Tree) -> tuple[State, TimeStep]:
        words = jax.random.bits(key, (1 + rules.step_words,), jnp.uint32)
        sticks = unit(words[0]) < params.sticky_probability
        action = jnp.where(
            sticks, state.last_action, _renumber(action, tuple(range(len(actions))), actions)
        )
        draws = rules.chance(words[1:], params)
        after, reward, terminated = once(rules.transition, state.game, action, draws, params)
        observation = observe(after, params)
        return State(after, action), timesteps.following(observation, reward, terminated)

    def render(state: State, params: Tree) -> np.ndarray:
        return screen.picture(observe(state.game, params), rules.colors)

    def expert(state: State, params: Tree) -> Array:
        action = rules.expert(state.game, params)
        return _renumber(action, actions, tuple(range(len(actions))))

    env = Environment(
        name=rules.name,
        # One program for users who step by hand; inside another program, jit changes nothing.
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=rules.params,
        observation_space=Box(0, 1, (SIZE, SIZE, len(rules.colors)), jnp.bool_),
        action_space=Discrete(len(actions)),
        render=render,
        expert=jax.jit(expert, inline=True),
    )
    return env if time_limit == 0 else limited(env, time_limit)


def once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `function(*arguments)`, the last of which are the game's parameters, as a stage:
    otherwise XLA would recompute a transition in each cell of the observation."""
    return isolate(arguments[-1].sticky_probability <= jnp.inf, function, *arguments)


def unit(word: Array) -> Array:
    """Convert a uint32 to a uniform float32 in [0, 1)."""
    return (word >> 8).astype(jnp.float32) * 2.0**-24


def move(x: Array, y: Array, action: Array, top: int, bottom: int) -> tuple[Array, Array]:
    """Move a player from column `x` and row `y` by `action`, within rows `top` to `bottom`."""
    sideways = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    down = (action == DOWN).astype(jnp.int32) - (action == UP).astype(jnp.int32)
    x, y = x + sideways.astype(x.dtype), y + down.astype(y.dtype)
    return jnp.clip(x, 0, SIZE - 1), jnp.clip(y, top, bottom)


def outlook(
    transition: Callable[..., Any], state: Tree, draws: Tree, params: Tree, steps: int
) -> tuple[Tree, Array, Array]:
    """Predict what follows each of the six actions if `steps` - 1 no-ops come after it and every
    step draws `draws`: states, rewards and whether the game is over by then, each [6, steps]."""

    def follow(carry, action):
        state, over = carry
        state, reward, terminated = transition(state, action, draws, params)
        over = over | terminated
        return (state, over), (state, reward, over)

    def first(action):
        actions = jnp.where(jnp.arange(steps) == 0, action, NOOP)
        return jax.lax.scan(follow, (state, jnp.zeros((), bool)), actions)[1]

    return jax.vmap(first)(jnp.arange(6))


def _renumber(action: Array, names: tuple[int, ...], numbers: tuple[int, ...]) -> Array:
    """Return the one of `numbers`, int32, at the place that `action` has in `names`."""
    if names == numbers:
        return jnp.asarray(action, jnp.int32)
    return jnp.select([action == a for a in names], [jnp.int32(n) for n in numbers])
