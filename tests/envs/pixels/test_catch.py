"""Catch against the rules of bsuite's `Catch`, written again in NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import registry

COPIES = 64


def _play(env, policy):
    """Play `COPIES` episodes and return everything that happens, leading axes [copy, step]."""

    def one(key):
        reset_key, step_key = jax.random.split(key)
        state, timestep = env.reset(reset_key, env.params)

        def step(state, key):
            action_key, key = jax.random.split(key)
            action = policy(action_key, state)
            after, timestep = env.step(key, state, action, env.params)
            return after, (state, action, timestep)

        _, steps = jax.lax.scan(step, state, jax.random.split(step_key, env.max_steps))
        return timestep, *steps

    first, *steps = jax.jit(jax.vmap(one))(jax.random.split(random.key(0), COPIES))
    return jax.tree.map(np.asarray, first), *jax.tree.map(np.asarray, steps)


def _board(rows, columns, ball, paddle):
    board = np.zeros((rows, columns, 1), bool)
    board[ball] = board[rows - 1, paddle] = True
    return board


@pytest.mark.parametrize(
    ("rows", "columns", "balls", "delayed"), [(10, 5, 1, False), (4, 3, 5, False), (5, 7, 3, True)]
)
def test_an_episode_is_that_of_bsuite(rows, columns, balls, delayed):
    env = registry.make("catch", rows=rows, columns=columns, balls=balls, delayed=delayed)
    policy = lambda key, state: jax.random.randint(key, (), 0, 3)
    first, states, actions, timesteps = _play(env, policy)
    assert env.max_steps == balls * (rows - 1) == actions.shape[1]
    columns_seen = set()
    for i in range(COPIES):
        paddle, y, caught, down = columns // 2, 0, 0, 0
        x = int(states.x[i, 0])
        assert np.array_equal(first.observation[i], _board(rows, columns, (0, x), paddle))
        for t in range(actions.shape[1]):
            columns_seen.add(x)
            paddle = min(max(paddle + int(actions[i, t]) - 1, 0), columns - 1)
            y += 1
            reward, ended = 0, False
            if y == rows - 1:
                down += 1
                caught += paddle == x
                reward = 1 if paddle == x else -1
                ended = down == balls
                if not ended:
                    y, x = 0, int(states.x[i, t + 1])
            if delayed:
                reward = 2 * caught - balls if ended else 0
            assert timesteps.reward[i, t] == reward
            assert timesteps.terminated[i, t] == ended
            assert timesteps.metrics["success"][i, t] == np.float32(caught) / balls
            board = _board(rows, columns, (y, x), paddle)
            assert np.array_equal(timesteps.observation[i, t], board)
        assert ended
    assert columns_seen == set(range(columns))


def test_balls_fall_equally_often_from_every_column():
    env = registry.make("catch")
    keys = jax.random.split(random.key(1), 20_000)
    state, _ = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, env.params)
    counts = np.bincount(np.asarray(state.x), minlength=5)
    assert np.abs(counts / 20_000 - 0.2).max() < 0.015


def test_the_expert_catches_every_ball():
    env = registry.make("catch", balls=2)
    expert = env.expert
    assert expert is not None
    *_, timesteps = _play(env, lambda key, state: expert(state, env.params))
    assert np.all(timesteps.reward.sum(1) == 2.0)
    assert np.all(timesteps.metrics["success"][:, -1] == 1.0)


def test_an_impossible_board_is_rejected():
    for option, value in (("rows", 1), ("columns", 0), ("balls", -2)):
        with pytest.raises(
            UserError, match=f"The {option} of 'catch' is {value}; it must be an int"
        ):
            registry.make("catch", **{option: value})
