"""Diffusion policy: what its windows hold at the edges of episodes, its loss, and how plans are
followed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import diffusion_policy
from jaxrl.algorithms.diffusion.shared import chunks
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import TimeStep, Transition
from jaxrl.diffusion import VariancePreserving
from tests.algorithms.diffusion import bandit
from tests.kit.stub import losses_of, stub

ENV = envs.make("pendulum")
SETTINGS = {"horizon": 4, "execute": 2, "observations": 3, "levels": 3, "steps": 3}
CONFIG = replace(diffusion_policy.Config(), SETTINGS | {"width": 8, "blocks": 1})
RECIPE = diffusion_policy.recipe(ENV, Static(CONFIG))


def window(first=(), done=(), length=6):
    """A window [length, 2]; the first column begins and ends episodes at these rows, the other
    never."""
    at = np.arange(length)[:, None]
    only = lambda rows: np.isin(at, rows) & np.array([True, False])
    no, zero = np.zeros((length, 2), bool), np.zeros((length, 2), np.float32)
    seen = np.float32(at[..., None] + 10 * np.arange(2)[:, None]) * np.ones(3, np.float32)
    action = np.float32(0.1 * at[..., None] + np.array([[0.0], [0.05]]))
    before = TimeStep(seen, zero, no, no, only(first))
    after = TimeStep(seen, zero, only(done), no, no)
    return jax.tree.map(jnp.asarray, Transition(before, action, after, (), {}))


@pytest.mark.parametrize(
    ("first", "done", "expected"),
    [
        ((), (), [0, 1, 2, 3, 4, 5]),
        ((0,), (5,), [0, 1, 2, 3, 4, 5]),
        ((1,), (), [1, 1, 2, 3, 4, 5]),
        ((2,), (1, 4), [2, 2, 2, 3, 4, 4]),
        ((3,), (2,), [0, 1, 2, 2, 2, 2]),
        ((1, 4), (0, 3), [1, 1, 2, 3, 3, 3]),
    ],
)
def test_windows_stay_within_the_episode_of_the_current_step(first, done, expected):
    rows = chunks.rows_within_episodes(window(first, done), 2)
    np.testing.assert_array_equal(rows[:, 0], expected)
    np.testing.assert_array_equal(rows[:, 1], np.arange(6))


def test_the_loss_denoises_the_actions_from_the_current_step_on():
    x = window((2,), (1, 4))
    given = {}

    def denoiser(noisy, level, condition):
        given.update(condition=np.asarray(condition))
        return 0.5 * noisy + level[:, None, None]

    net = stub(denoiser=denoiser, key=bandit.key)
    output = losses_of(RECIPE)["denoiser_loss"](net, x)
    seen = np.asarray(x.observation)
    rows = [np.array([2, 2, 2, 3, 4, 4]), np.arange(6)]
    condition = [seen[rows[b][:3], b].reshape(-1) for b in (0, 1)]
    np.testing.assert_array_equal(given["condition"], condition)
    clean = np.stack([np.asarray(x.action)[rows[b][2:], b] / 2 for b in (0, 1)])
    noised = VariancePreserving(3, "cosine", axes=2).add_noise(bandit.key(), jnp.asarray(clean))
    error = 0.5 * noised.noisy + noised.level[:, None, None] - noised.target
    expected = np.square(np.asarray(error)).mean((1, 2))
    np.testing.assert_allclose(output, np.broadcast_to(expected, (6, 2)), rtol=1e-5)


def test_plans_are_followed_and_made_anew():
    """Plans of 1, 2, 3, 4 tenths of what was observed last; every second step makes one."""
    plans = []

    def make_plan(timestep, past, key):
        plans.append(np.asarray(past))
        return timestep.observation[:, None, :1] * jnp.arange(1, 5)[:, None] / 10

    memory = chunks.no_plan(2, 4, 1, 2, 3)
    actions = []
    for i in range(5):
        no = jnp.zeros(2, bool)
        first = jnp.array([i in (0, 3), i == 0])
        seen = TimeStep(jnp.full((2, 3), 1.0 + i), jnp.zeros(2), no, no, first)
        action, memory = chunks.follow_plan(
            make_plan, seen, memory, random.key(i), features=seen.observation, execute=2
        )
        actions.append(np.asarray(action)[:, 0])
    # The first environment begins again at step 3, where its plan of step 2 would go on.
    np.testing.assert_allclose(np.stack(actions)[:, 0], [0.1, 0.2, 0.3, 0.4, 0.8], rtol=1e-5)
    np.testing.assert_allclose(np.stack(actions)[:, 1], [0.1, 0.2, 0.3, 0.6, 0.5], rtol=1e-5)
    np.testing.assert_array_equal(memory.past[:, :, 0], [[4, 5], [4, 5]])


@pytest.mark.slow
def test_it_acts_within_bounds_and_learns_from_windows():
    agent = diffusion_policy.diffusion_policy.agent(ENV, CONFIG)
    state = jax.jit(agent.init)(random.key(0), agent.hyper)
    no = jnp.zeros(2, bool)
    seen = TimeStep(jnp.ones((2, 3)), jnp.zeros(2), no, no, ~no)
    act = jax.jit(lambda *given: agent.act(state, *given, True))
    action, memory, _ = act(seen, agent.memory(2), random.key(1))
    later = dataclasses.replace(seen, first=no)
    second, after, _ = act(later, memory, random.key(2))
    np.testing.assert_allclose(second, 2 * memory.steps[:, 1], atol=1e-5)
    third, anew, _ = act(later, after, random.key(3))
    assert (after.at == 2).all() and (anew.at == 1).all() and (memory.steps != anew.steps).any()
    assert all((jnp.abs(x) <= 2).all() for x in (action, second, third))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"execute": 5}, "execute is 5; a plan of 4 actions"),
        ({"num_envs": 2}, "learns from a dataset alone"),
        ({"data.name": ""}, "learns from a dataset alone"),
    ],
)
def test_what_does_not_fit_is_refused(changes, said):
    with pytest.raises(UserError, match=said):
        diffusion_policy.diffusion_policy.agent(ENV, replace(CONFIG, changes))
