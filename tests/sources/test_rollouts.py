import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy, Tasks
from jaxrl.envs.wrappers import time_limit
from jaxrl.sources.episodes import episodes
from jaxrl.sources.rehearsal import rehearsal
from jaxrl.sources.replay import replay
from jaxrl.sources.rollouts import rollouts
from jaxrl.tasks import each, fixed
from tests.counting import NEVER, counting

T, B, WINDOWS = 7, 3, 5


def policy():
    """Make a policy whose memory counts the steps since its reset."""

    def act(state, timestep, memory, key, greedy):
        return memory % 3, memory + 1, {"log_prob": 1.0 * memory}

    return Policy(act, lambda n: jnp.zeros(n, jnp.int32), ())


def go(source, windows=WINDOWS, key=0):
    """Return the last state, and batches, statistics and tails with a leading axis [windows]."""

    @jax.jit
    def run(key):
        state = source.init(key, {}, policy())

        def body(state, key):
            state, fresh, statistics = source.collect(state, policy(), key)
            return state, (source.sample(state, fresh, key), statistics)

        return jax.lax.scan(body, state, jax.random.split(key, windows))

    return jax.tree.map(np.asarray, run(random.key(key)))


@pytest.fixture(scope="module")
def first_windows():
    return go(rollouts(counting(terminates_after=4), B, T))


def test_streams_go_on_across_windows(first_windows):
    _, (batch, _) = first_windows
    assert batch.transitions.reward.shape == (WINDOWS, T, B)
    t = batch.transitions.observation[..., 0].reshape(-1, B)
    expected = np.arange(WINDOWS * T)[:, None] % 4
    np.testing.assert_array_equal(t, np.broadcast_to(expected, t.shape))


def test_the_memory_is_that_at_the_start_of_the_window_and_the_tail_follows(first_windows):
    state, (batch, _) = first_windows
    observation, memory = batch.tail[0].observation, batch.tail[1]
    np.testing.assert_array_equal(memory[:-1], batch.memory[1:])
    np.testing.assert_array_equal(observation[:-1], batch.transitions.observation[1:, 0])
    np.testing.assert_array_equal(observation[-1], state.streams.timestep.observation)
    # The memory counts the steps of the episode, of the old one where a new one begins.
    steps = batch.transitions.observation[:, 0, :, 0]
    first = batch.transitions.first[:, 0]
    np.testing.assert_array_equal(batch.memory[~first], steps[~first])
    assert (batch.memory[1:][first[1:]] == 4).all() and first[1:].any()
    np.testing.assert_array_equal(batch.transitions.extras["log_prob"][:, 0], steps)


def test_steps_are_counted(first_windows):
    state, (batch, _) = first_windows
    np.testing.assert_array_equal(batch.env_steps, T * B * np.arange(1, WINDOWS + 1))
    assert batch.env_steps.dtype == np.float32
    assert rollouts(counting(), B, T).env_steps == T * B
    assert state.windows == WINDOWS


def test_statistics_of_all_windows_add_up(first_windows):
    _, (_, statistics) = first_windows
    row = m.values(m.reduce(statistics))
    assert row["episodes"] == (WINDOWS * T // 4) * B
    assert row["episode_length"] == 4
    assert row["episode_return"] == 10 * (1 + 2 + 3 + 4) + (0 + 1 + 2 + 0)


@pytest.mark.slow
def test_a_pool_serves_the_same_episodes_and_counts_what_it_reuses():
    with_pool = go(rollouts(counting(terminates_after=2), B, T, reset_pool=4))
    without = go(rollouts(counting(terminates_after=2), B, T))
    np.testing.assert_array_equal(
        with_pool[1][0].transitions.reward, without[1][0].transitions.reward
    )
    resets = without[1][0].transitions.done.sum((1, 2))
    np.testing.assert_array_equal(with_pool[1][1]["resets_reused"].total, np.maximum(resets - 4, 0))
    assert "resets_reused" not in without[1][1]
    transitions = with_pool[1][0].transitions
    tags = transitions.observation[1, 1:, :, 1][transitions.first[1, 1:]]
    assert len(np.unique(tags)) == 4 < len(tags)


def test_tasks_learn_from_every_window():
    seen = Tasks(
        "counting windows",
        init=lambda key, policy, hyper: (jnp.int32(0), jnp.float32(0)),
        sample=lambda state, key, n: jnp.full(n, state[0]),
        params=lambda state, task: counting(terminates_after=3).params,
        update=lambda state, policy, transitions: (
            state[0] + 1,
            state[1] + transitions.reward.sum(),
        ),
    )
    state, (batch, _) = go(rollouts(counting(), B, T, seen))
    assert state.tasks[0] == WINDOWS
    np.testing.assert_allclose(state.tasks[1], batch.transitions.reward.sum())
    for window in range(1, WINDOWS):
        ids = batch.transitions.task[window]
        assert set(np.unique(ids)) <= {window - 1, window}
        assert (ids[1:][batch.transitions.first[window, 1:]] == window).all()


@pytest.mark.slow
def test_the_default_task_is_the_environments_params():
    a = go(rollouts(counting(terminates_after=5), B, T))[1][0]
    b = go(rollouts(counting(), B, T, fixed(counting(terminates_after=5).params)))[1][0]
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert go(rollouts(counting(NEVER), B, T))[1][0].transitions.done.sum() == 0


@pytest.mark.parametrize("sizes", [(0, 5, None), (5, 0, None), (5, 5, 0)])
def test_sizes_below_one(sizes):
    with pytest.raises(UserError, match="must be at least 1, got 0"):
        rollouts(counting(), sizes[0], sizes[1], reset_pool=sizes[2])


def test_a_pool_is_refused_where_tasks_go_by_place():
    env = counting()
    tasks = each(jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 2), env.params))
    with pytest.raises(UserError, match="reset_pool is 4, but the tasks 'each' go by"):
        rollouts(env, B, T, tasks, reset_pool=4)


def test_a_source_knows_how_many_environments_it_steps_side_by_side():
    source, limited = rollouts(counting(), B, T), time_limit(counting(), T)
    for around in (source, replay(source, 64, 8), rehearsal(source, 8, 2)):
        assert around.num_envs == B
    assert episodes(limited, 4).num_envs == 4
