"""Episodes that each have parameters of their own."""

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
    """The wrapped environment's state and the parameters of this episode."""

    inner: Tree
    params: Tree


@functools.cache
def domain_randomization(env: Environment, draw: Callable[[Key, Tree], Tree]) -> Environment:
    """`env` with domain randomization (Tobin et al., 2017): at each reset `draw(key, params)` gives
    the parameters of the episode, from those that the environment was given.

    It has the effect of `tasks.randomize`. Use that for training: it stores a key where this stores
    parameters in each state, and task ids let scores and curricula know which environment was
    played. Use this where the environment itself is to be random wherever it goes: under any tasks
    (a lifelong schedule of ranges), in evaluation, inside another wrapper. `render`, `expert` and
    `step_seconds` are of the parameters that were drawn; `goals` is None, as they cannot be seen
    from outside the state.

    Raises `UserError` when `draw` returns another structure, shape or kind than `env.params`.
    """
    expected = _signature(jax.eval_shape(trees.strong, env.params))
    drawn = _signature(
        jax.eval_shape(lambda key: trees.strong(draw(key, env.params)), jax.random.key(0))
    )
    if drawn != expected:
        raise UserError(
            f"What was drawn for '{env.name}' is {drawn}; it must be as its params, {expected}."
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
    )


def _signature(tree: Tree) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}
