"""Domain randomization: each episode has its own parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Key, Tree, struct


@struct
class State:
    """State of the wrapped environment and the parameters of this episode."""

    inner: Tree
    params: Tree


@functools.cache
def domain_randomization(env: Environment, draw: Callable[[Key, Tree], Tree]) -> Environment:
    """Randomize `env` (Tobin et al., 2017): at each reset `draw(key, params)` returns the
    parameters of the episode, given those that were passed to the environment.

    The effect is that of `tasks.randomize`. Prefer that for training: it stores a key where this
    stores parameters in each state, and its task ids tell scores and curricula which environment
    was played. Use this wrapper if the environment itself must be random wherever it goes: under
    any tasks (a lifelong schedule of ranges), in evaluation, inside another wrapper. `render`,
    `expert` and `step_seconds` use the drawn parameters; `goals` is None, since those are not
    visible outside the state.

    Raises `UserError` if `draw` returns another structure, shape or dtype than `env.params`.
    """
    expected = _signature(jax.eval_shape(trees.strong, env.params))
    drawn = _signature(
        jax.eval_shape(lambda key: trees.strong(draw(key, env.params)), jax.random.key(0))
    )
    if drawn != expected:
        raise UserError(
            f"The draw for '{env.name}' returns {drawn}; it must match its params, {expected}."
        )

    def reset(key, params):
        draw_key, key = jax.random.split(key)
        params = trees.strong(draw(draw_key, params))
        inner, timestep = env.reset(key, params)
        return State(inner, params), timestep

    def step(key, state, action, params):
        inner, timestep = env.step(key, state.inner, action, state.params)
        return State(inner, state.params), timestep

    def lift(function):
        return function and (lambda state, params: function(state.inner, state.params))

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        render=lift(env.render),
        expert=lift(env.expert),
        step_seconds=lift(env.step_seconds),
        goals=None,
        rules=None,
        state_of=None,
    )


def _signature(tree: Tree) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}
