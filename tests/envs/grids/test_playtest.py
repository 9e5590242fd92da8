"""Styles of play: their paths, what the picture shows, and what is counted."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import check_environment, make
from jaxrl.envs.grids import playtest as module


@pytest.fixture(scope="module")
def env():
    return make("playtest")


def _play(env, style, steps, choose=None):
    """Play an episode; return the state and the time step after each step."""
    params = make("playtest", style=style).params
    step, expert = jax.jit(env.step), jax.jit(env.expert)
    state, timestep = jax.jit(env.reset)(jax.random.key(style), params)
    seen = [(state, timestep)]
    for i in range(steps):
        action = expert(state, params) if choose is None else jnp.int32(choose[i])
        state, timestep = step(jax.random.key(0), state, action, params)
        seen.append((state, timestep))
    return seen


def test_it_keeps_the_rules_of_environments(env):
    check_environment(env)


@pytest.mark.parametrize(("style", "steps"), [(0, 12), (1, 23), (2, 48), (3, 48)])
def test_the_expert_walks_the_path_of_the_style_and_no_further(env, style, steps):
    seen = _play(env, style, steps)
    cells, lengths = module.paths(7)
    walked = [tuple(int(x) for x in state.place) for state, _ in seen]
    assert walked == [tuple(x) for x in cells[style, : lengths[style]].tolist()]
    ends = [bool(timestep.truncated) for _, timestep in seen]
    assert ends == [False] * steps + [True]
    metrics = seen[-1][1].metrics
    assert float(metrics["followed"]) == 1 and float(metrics["agreement"]) == 1
    assert float(metrics["coverage"]) == pytest.approx(lengths[style] / 49)
    # Only those that cover the level find every bug; none lies on the golden path.
    assert (float(metrics["bugs"]) == 1) == (style >= 2)
    assert float(sum(t.reward for _, t in seen)) == pytest.approx(5 * float(metrics["bugs"]))
    assert style != 0 or float(metrics["bugs"]) == 0


def test_a_bug_is_found_once(env):
    seen = _play(env, 2, 0)
    state = seen[0][0]
    bugs = jnp.zeros((7, 7), bool).at[0, 1].set(True)
    state = dataclasses.replace(state, bugs=bugs)
    rewards = []
    for action in (0, 2, 0):  # east, west, east
        state, timestep = env.step(jax.random.key(0), state, jnp.int32(action), env.params)
        rewards.append(float(timestep.reward))
    assert rewards == [1, 0, 0]


def test_the_picture_shows_agent_trace_walls_and_exit_but_no_bug(env):
    state, timestep = _play(env, 0, 2, [0, 1])[-1]
    image = np.asarray(timestep.observation)
    assert image[2, 2].tolist() == list(module.AGENT)
    assert image[1, 1].tolist() == image[1, 2].tolist() == list(module.SEEN)
    assert image[7, 7].tolist() == list(module.EXIT) and image[0, 3].tolist() == list(module.WALL)
    assert (image[1:-1, 1:-1] == module.FLOOR).all(-1).sum() == 49 - 4
    assert state.bugs.sum() == 5


def test_walls_stop_the_agent_and_disagreement_counts(env):
    state, timestep = _play(env, 0, 2, [3, 0])[-1]  # against the upper wall, then east
    assert state.place.tolist() == [0, 1]
    assert float(timestep.metrics["agreement"]) == 0.5
