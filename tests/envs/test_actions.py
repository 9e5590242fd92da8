"""Actions that do not fit are one sentence of error, wherever the environment came from."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import spaces
from jaxrl.core.errors import UserError


def _step(env, action):
    state, _ = env.reset(jax.random.key(0), env.params)
    return env.step(jax.random.key(1), state, action, env.params)


@pytest.mark.parametrize("action", [2, -1, np.int64(7), jnp.int32(2)])
def test_a_known_index_out_of_range_is_rejected(action):
    with pytest.raises(UserError, match=r"The action of 'cartpole' is -?\d; .*Discrete\(n=2\)"):
        _step(envs.make("cartpole"), action)


@pytest.mark.parametrize(
    ("name", "action", "sentence"),
    [
        ("cartpole", 0.5, r"float32\[\]; it must be int32\[\]"),
        ("cartpole", "left", r"holds 'left'; it must be an element of Discrete"),
        ("cartpole", True, r"bool\[\]; it must be int32"),
        ("cartpole", jnp.zeros(1, jnp.int32), r"int32\[1\]; it must be int32\[\]"),
        ("pendulum", jnp.zeros(1, jnp.int32), r"int32\[1\]; it must be float32\[1\]"),
        ("pendulum", jnp.float32(0.0), r"float32\[\]; it must be float32\[1\]"),
        ("pendulum", {"torque": jnp.zeros(1)}, "has the structure"),
    ],
)
def test_the_wrong_dtype_or_shape_is_rejected_even_under_jit(name, action, sentence):
    env = envs.make(name)
    with pytest.raises(UserError, match=sentence):
        _step(env, action)
    if not isinstance(action, str):  # which JAX rejects before we see it
        with pytest.raises(UserError, match=sentence):
            jax.eval_shape(lambda action: _step(env, action)[1], action)


def test_replaced_environments_check_their_own_space_once():
    narrow = dataclasses.replace(envs.make("cartpole"), action_space=spaces.Discrete(1), name="one")
    for env in (narrow, dataclasses.replace(narrow, params=narrow.params)):
        _step(env, 0)
        with pytest.raises(UserError, match="'one' is 1"):
            _step(env, 1)
        assert env.step.unchecked is envs.make("cartpole").step.unchecked


def test_a_function_wrapped_around_step_is_kept():
    env, calls = envs.make("cartpole"), []

    @functools.wraps(env.step)  # copies the attributes of what it wraps, as jax.jit does
    def count_calls(*arguments):
        calls.append(arguments)
        return env.step(*arguments)

    _step(dataclasses.replace(env, step=count_calls), 1)
    assert len(calls) == 1
    compiled = jax.jit(env.step)
    assert dataclasses.replace(env, step=compiled).step.unchecked is compiled


def test_any_integer_dtype_and_floats_beyond_the_bounds_pass():
    _step(envs.make("cartpole"), 1)
    _step(envs.make("cartpole"), np.uint8(1))
    _step(
        envs.make("pendulum"), jnp.float32([5.0])
    )  # beyond the bounds, to which the environment clips
