"""Start of an episode as a parameter, for groups of episodes with the same start."""

from __future__ import annotations

import dataclasses
import functools

import jax

from jaxrl.core.types import Environment, Key, Tree, struct
from jaxrl.envs.wrappers.lifting import lift_fields


@struct
class Params:
    inner: Tree
    key: Key  # key that the wrapped environment is reset with


@functools.cache
def start_key(env: Environment) -> Environment:
    """Start episodes of `env` from `params.key` instead of by chance: two with the same key have
    the same start (a language task's prompt) and differ only in what follows.

    Spaces, state and name are those of `env`. `tasks.starts(env.params, start_key.Params)` draws
    starts, whose ids are their keys. The same environment gives the same object.
    """

    def reset(key, params):
        return env.reset(params.key, params.inner)

    def step(key, state, action, params):
        return env.step(key, state, action, params.inner)

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=Params(env.params, jax.random.key(0)),
        **lift_fields(env, params=True),
    )
