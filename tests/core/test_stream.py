"""The stream in an environment that counts, so that every number of every step is known."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import metrics, random, stream, trees
from jaxrl.core.types import Policy, Tasks
from jaxrl.tasks.basic import fixed
from tests.counting import NEVER, counting

STEPS, COPIES = 60, 6


def counting_policy():
    """Make a policy whose memory counts the steps since its reset, and whose action is that count
    (mod 3)."""

    def act(state, timestep, memory, key, greedy):
        return (
            memory["count"] % 3,
            {"count": memory["count"] + 1},
            {"log_prob": memory["count"] * 1.0},
        )

    return Policy(act, lambda n: {"count": jnp.zeros(n, jnp.int32)}, ())


def lengths():
    """Make tasks with ids 0 .. 5: an episode ends after id + 1 steps, terminated if the id is even
    and truncated if it is odd."""

    def params(state, task):
        even = task % 2 == 0
        return {
            "terminates_after": jnp.where(even, task + 1, NEVER),
            "truncates_after": jnp.where(even, NEVER, task + 1),
        }

    return Tasks(
        "lengths",
        init=lambda key, policy, hyper: (),
        sample=lambda state, key, n: jax.random.randint(key, (n,), 0, 6),
        params=params,
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def run(key, pool_size=None, copies=COPIES):
    env, tasks, policy = counting(), lengths(), counting_policy()
    start_key, pool_key, key = jax.random.split(key, 3)
    begin = stream.start(env, tasks, (), policy, start_key, copies)
    pool = None if pool_size is None else stream.pool(env, tasks, (), pool_key, pool_size)

    def body(carry, key):
        streams, pool = carry
        streams, pool, transition, endings = stream.advance(
            env, tasks, (), streams, policy, key, pool=pool
        )
        return (streams, pool), (transition, endings, streams)

    (end, pool), (transitions, endings, after) = jax.lax.scan(
        body, (begin, pool), stream.step_inputs(key, STEPS)
    )
    return begin, end, pool, transitions, stream.statistics(endings), after


@pytest.fixture(scope="module", params=[None, 500], ids=["fresh", "pool"])
def window(request):
    return jax.tree.map(lambda x: np.asarray(x), run(random.key(3), request.param))


def simulate(transitions):
    """Compute in plain Python what should happen, from the ids and numbers that were drawn."""
    steps, copies = transitions.task.shape
    expected = {
        name: np.zeros((steps, copies))
        for name in ("t", "first", "action", "reward", "next_t", "terminated", "truncated")
    }
    returns = []
    for b in range(copies):
        t, total = 0, 0.0
        for s in range(steps):
            length = transitions.task[s, b] + 1
            ends = t + 1 >= length
            step = {
                "t": t,
                "first": t == 0,
                "action": t % 3,
                "reward": 10 * (t + 1) + t % 3,
                "next_t": t + 1,
                "terminated": ends and transitions.task[s, b] % 2 == 0,
                "truncated": ends and transitions.task[s, b] % 2 == 1,
            }
            for name, value in step.items():
                expected[name][s, b] = value
            t, total = t + 1, total + step["reward"]
            if ends:
                returns.append((s, b, total, t))
                t, total = 0, 0.0
    return expected, returns


def test_every_step_is_as_simulated(window):
    _, _, _, transitions, _, _ = window
    expected, _ = simulate(transitions)
    got = {
        "t": transitions.observation[..., 0],
        "first": transitions.first,
        "action": transitions.action,
        "reward": transitions.reward,
        "next_t": transitions.next_observation[..., 0],
        "terminated": transitions.terminated,
        "truncated": transitions.truncated,
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    assert expected["terminated"].any() and expected["truncated"].any()


def test_the_memory_is_reset_exactly_at_first_steps(window):
    _, _, _, transitions, _, after = window
    expected, _ = simulate(transitions)
    np.testing.assert_array_equal(transitions.extras["log_prob"], expected["t"])
    # The memory in the stream is reset at the next action only, so that a batch can see it.
    np.testing.assert_array_equal(after.memory["count"], expected["t"] + 1)


def test_the_successor_is_of_the_same_episode_and_the_next_step_follows_it(window):
    _, _, _, transitions, _, _ = window
    tag, next_tag = transitions.observation[..., 1], transitions.next_observation[..., 1]
    np.testing.assert_array_equal(tag, next_tag)
    done = transitions.done[:-1]
    for name in ("observation", "reward", "first", "terminated", "truncated"):
        here = getattr(transitions.next_timestep, name)[:-1][~done]
        there = getattr(transitions.timestep, name)[1:][~done]
        np.testing.assert_array_equal(here, there, err_msg=name)
    assert (tag[1:][done] != tag[:-1][done]).all()
    np.testing.assert_array_equal(transitions.first[1:], done)
    assert (transitions.timestep.reward[1:][done] == 0).all()
    assert not transitions.timestep.done[1:][done].any()


def test_tasks_change_only_at_resets(window):
    begin, end, _, transitions, _, _ = window
    changed = transitions.task[1:] != transitions.task[:-1]
    assert not changed[~transitions.done[:-1]].any()
    assert changed.any()
    np.testing.assert_array_equal(begin.task, transitions.task[0])
    ids = transitions.task[transitions.first]
    assert set(ids) == set(range(6))
    kept = ~transitions.done[-1]
    np.testing.assert_array_equal(end.task[kept], transitions.task[-1][kept])


def test_episode_statistics(window):
    _, end, _, transitions, statistics, _ = window
    _, episodes = simulate(transitions)
    row = metrics.values(statistics)
    returns, lengths_ = [e[2] for e in episodes], [e[3] for e in episodes]
    np.testing.assert_allclose(row["episode_return"], np.mean(returns), rtol=1e-6)
    np.testing.assert_allclose(row["episode_length"], np.mean(lengths_), rtol=1e-6)
    np.testing.assert_allclose(row["double_length"], 2 * np.mean(lengths_), rtol=1e-6)
    assert row["episodes"] == len(episodes)
    # Running totals of the unfinished episodes.
    finished = np.zeros(COPIES, int)
    for s, b, *_ in episodes:
        finished[b] = s + 1
    for b in range(COPIES):
        assert end.episode_length[b] == STEPS - finished[b]
        np.testing.assert_allclose(
            end.episode_return[b], transitions.reward[finished[b] :, b].sum(), rtol=1e-6
        )


@pytest.mark.slow
def test_no_episodes_no_mean():
    env = counting(terminates_after=NEVER)
    policy = counting_policy()
    begin = stream.start(env, fixed(env.params), env.params, policy, random.key(0), 2)
    *_, endings = stream.advance(
        env, fixed(env.params), env.params, begin, policy, stream.step_input(random.key(1))
    )
    endings = jax.tree.map(lambda x: x[None], endings)  # a window of one step
    row = metrics.values(stream.statistics(endings))
    assert np.isnan(row["episode_return"]) and np.isnan(row["episode_length"])
    assert row["episodes"] == 0


def test_no_two_steps_or_resets_share_random_numbers(window):
    _, _, _, transitions, _, _ = window
    noise = transitions.next_observation[..., 2].ravel()
    tags = transitions.observation[..., 1][transitions.first]
    assert len(np.unique(np.concatenate([noise, tags]))) == len(noise) + len(tags)


def test_a_pool_is_used_in_order_and_counts_its_resets():
    _, _, pool, transitions, _, _ = jax.tree.map(np.asarray, run(random.key(3), 500))
    order = pool.fresh[1].tag
    got = transitions.observation[..., 1][1:][transitions.first[1:]]  # time first, then copy
    np.testing.assert_array_equal(got, order[: len(got)])
    assert pool.used == transitions.done.sum()


def test_an_overflowing_pool_repeats():
    _, _, pool, transitions, _, _ = jax.tree.map(np.asarray, run(random.key(3), 4))
    got = transitions.observation[..., 1][1:][transitions.first[1:]]
    np.testing.assert_array_equal(got, np.resize(pool.fresh[1].tag, len(got)))
    ids = transitions.task[1:][transitions.first[1:]]
    np.testing.assert_array_equal(ids, np.resize(pool.fresh[0], len(ids)))
    assert pool.used == transitions.done.sum() > 4


@pytest.mark.slow
def test_copies_do_not_affect_each_other():
    """The episode of one copy changes, and the numbers of the others stay."""
    env, tasks, policy = counting(), lengths(), counting_policy()
    begin = stream.start(env, tasks, (), policy, random.key(0), COPIES)
    other = dataclasses.replace(
        begin,
        env_state=jax.tree.map(lambda x: x.at[2].set(x[2] + 3), begin.env_state),
        task=begin.task.at[2].set(5),
    )

    @jax.jit
    def roll(streams):
        def body(streams, key):
            streams, _, transition, _ = stream.advance(env, tasks, (), streams, policy, key)
            return streams, transition

        return jax.lax.scan(body, streams, stream.step_inputs(random.key(1), 20))

    a, b = roll(begin), roll(other)
    others = np.array([0, 1, 3, 4, 5])
    assert (a[1].reward[:, 2] != b[1].reward[:, 2]).any()
    for x, y in zip(jax.tree.leaves(a[1]), jax.tree.leaves(b[1]), strict=True):
        np.testing.assert_array_equal(x[:, others], y[:, others])


def test_another_key_is_another_stream_and_the_same_key_the_same():
    a, b, c = (run(random.key(k), None)[3].next_observation for k in (3, 4, 3))
    assert not np.isin(np.asarray(a[..., 2]), np.asarray(b[..., 2])).any()
    np.testing.assert_array_equal(a, c)


def test_greedy_and_the_policy_state_reach_the_policy():
    env = counting(actions=9)

    def act(state, timestep, memory, key, greedy):
        n = timestep.reward.shape[0]
        return jnp.full(n, state + (5 if greedy else 0), jnp.int32), memory, {}

    policy = Policy(act, lambda n: (), jnp.int32(2))
    begin = stream.start(env, fixed(env.params), env.params, policy, random.key(0), 2)
    for greedy, expected in ((False, 2), (True, 7)):
        _, _, transition, _ = stream.advance(
            env,
            fixed(env.params),
            env.params,
            begin,
            policy,
            stream.step_input(random.key(1)),
            greedy,
        )
        assert (transition.action == expected).all()


def test_where_selects_typed_keys():
    keys = jax.random.split(random.key(0), 3)
    chosen = trees.where(jnp.array([True, False, True]), keys, keys[::-1])
    assert (jax.random.key_data(chosen)[1] == jax.random.key_data(keys)[1]).all()
    assert (jax.random.key_data(chosen)[0] == jax.random.key_data(keys)[0]).all()
