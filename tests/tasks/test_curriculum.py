"""Curricula by score: probabilities against NumPy, and the road from an update to the tasks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.hyper import read_hyper
from jaxrl.core.learn import learn
from jaxrl.core.types import Agent, Batch, Info, Policy, TimeStep, Transition, struct
from jaxrl.envs.bandits.bandit import bandit
from jaxrl.kit.groups import Replay
from jaxrl.sources import episodes, kept_groups, mixed, recent, rehearsal, replay, rollouts
from jaxrl.tasks import EVENLY, by_failure, by_rank, by_value, by_window, curriculum
from jaxrl.tasks.curriculum import Scores

K = 5
LEVELS = {"level": np.arange(K, dtype=np.float32)}
NOBODY = Policy(lambda *_: None, lambda n: (), ())


def hyper_of(tasks):
    return {name: jnp.float32(value) for name, value in tasks.hyper.items()}


def scores(score, seen, last=None, episodes=0):
    last = np.zeros(len(score)) if last is None else last
    return Scores(
        {}, jnp.asarray(score, jnp.float32), jnp.asarray(seen), jnp.asarray(last, jnp.int32),
        jnp.int32(episodes), {},
    )  # fmt: skip


def probabilities(draw, state):
    return np.asarray(draw.probabilities(state, draw.hyper))


def replay_distribution(weight, age, seen, staleness):
    """Jiang et al. (2021), equations 1 and 3 and section 3, with loops and no shared code."""
    weight, age = np.where(seen, weight, 0.0), np.where(seen, age, 0.0)
    again = (1 - staleness) * weight / weight.sum() + staleness * age / age.sum()
    share_seen = seen.mean()
    unseen = np.where(seen, 0, 1) / max((~seen).sum(), 1)
    return share_seen * again + (1 - share_seen) * unseen


SCORE = np.array([0.5, 2.0, 0.1, 7.0, 1.0])
SEEN = np.array([True, True, True, False, True])
LAST = np.array([9, 4, 10, 0, 7])


def test_by_rank_is_the_replay_distribution_of_the_paper():
    found = probabilities(by_rank(0.5, 0.3), scores(SCORE, SEEN, LAST, 10))
    rank = np.array([3, 1, 4, 99, 2.0])  # of the seen alone: the unseen 7.0 has none
    expected = replay_distribution((1 / rank) ** (1 / 0.5), 10.0 - LAST, SEEN, 0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-5)


def test_by_value_is_the_replay_distribution_of_the_paper():
    found = probabilities(by_value(0.5, 0.3), scores(SCORE, SEEN, LAST, 10))
    expected = replay_distribution(SCORE ** (1 / 0.5), 10.0 - LAST, SEEN, 0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_small_scores_keep_their_ratios():
    """The powers of all of them underflow at a low temperature."""
    found = probabilities(by_value(0.1, 0.0), scores(SCORE * 1e-6, np.ones(K, bool)))
    expected = (SCORE / SCORE.max()) ** 10
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-4, atol=1e-30)


def test_failures_are_drawn_by_how_often_they_fail():
    """Kimi k1.5, section 2.3.4: in proportion to 1 - s; what was never tried counts as failed."""
    rate = np.array([0.25, 1.0, 0.5, 0.9, 0.0])
    failing = np.array([0.75, 0.0, 0.5, 1.0, 1.0])  # the fourth was never seen
    failing /= failing.sum()
    for even in (0.0, 0.4):
        found = probabilities(by_failure(even), scores(rate, SEEN))
        np.testing.assert_allclose(found, (1 - even) * failing + even / K, rtol=1e-6)
        solved = scores(np.ones(K), [True] * K)
        np.testing.assert_allclose(probabilities(by_failure(even), solved), 1 / K)


def test_tasks_between_two_limits_are_drawn_once_all_are_seen():
    rate, all_seen = np.array([0.0, 1.0, 0.25, 0.75, 0.5]), [True] * K
    draw = by_window(low=0.0, high=0.75, hard=0.25, later=10)
    for state, expected in (
        (scores(rate, SEEN), [0, 0, 0, 1, 0]),
        (scores(rate, all_seen, episodes=9), [0, 0, 1, 1, 1]),
        (scores(rate, all_seen, episodes=10), [0, 0, 1, 0, 0]),
        (scores(np.ones(K), all_seen), [1, 1, 1, 1, 1]),
    ):
        np.testing.assert_allclose(probabilities(draw, state), np.array(expected) / sum(expected))


@pytest.mark.parametrize("draw", [by_rank(), by_value(), EVENLY, by_failure(), by_window()])
def test_nothing_known_is_drawn_evenly(draw):
    np.testing.assert_allclose(probabilities(draw, scores(np.zeros(K), [False] * K)), 1 / K)


@pytest.mark.parametrize("draw", [by_value(), EVENLY])
def test_scores_of_zero_are_drawn_evenly(draw):
    np.testing.assert_allclose(
        probabilities(draw, scores(np.zeros(K), [True] * K)), 1 / K, rtol=1e-5
    )


def test_scores_are_means_over_the_steps_of_a_task():
    tasks = curriculum(LEVELS, EVENLY, rate=0.25)
    state = tasks.init(random.key(0), NOBODY, hyper_of(tasks))
    ids = jnp.array([[0, 1], [0, 1], [0, 4]])
    score = jnp.array([[1.0, 5.0], [3.0, jnp.nan], [100.0, 8.0]])
    mask = jnp.array([[True, True], [True, True], [False, True]])
    state = tasks.feedback(state, ids, score, mask)
    np.testing.assert_allclose(state.score, [2, 5, 0, 0, 8])  # the first score counts whole
    np.testing.assert_array_equal(state.seen, [True, True, False, False, True])
    state = tasks.feedback(state, jnp.array([0, 0, 2]), jnp.array([6.0, 4.0, 3.0]), None)
    np.testing.assert_allclose(state.score, [2 + 0.25 * 3, 5, 3, 0, 8])


def test_the_last_episode_of_each_task_is_numbered():
    tasks = curriculum(LEVELS, EVENLY)
    state = tasks.init(random.key(0), NOBODY, hyper_of(tasks))
    first = np.array([[True, True], [False, True], [True, False]])
    task = np.array([[0, 1], [0, 3], [1, 3]])
    none = np.zeros(first.shape, bool)
    step = TimeStep(none, np.zeros(first.shape, np.float32), none, none, first)
    window = Transition(step, none, step, task, {})
    state = tasks.update(state, NOBODY, jax.tree.map(jnp.asarray, window))
    np.testing.assert_array_equal(state.last, [1, 4, 0, 3, 0])
    assert state.episodes == 4
    state = tasks.update(state, NOBODY, jax.tree.map(jnp.asarray, window))
    np.testing.assert_array_equal(state.last, [5, 8, 0, 7, 0])


# ------------------------------------------------------------------------------- sources


def levels():
    """Arms of level k pay k / K for sure."""
    env = bandit(num_arms=2, arms="gaussian")
    params = dataclasses.replace(
        env.params,
        means=np.repeat(np.arange(K, dtype=np.float32)[:, None], 2, 1) / K,
        spread=np.zeros(K, np.float32),
        noise=np.zeros(K, np.float32),
    )
    return env, params


def pull(state, timestep, memory, key, greedy):
    return jnp.zeros(timestep.reward.shape, jnp.int32), memory, {}


PULL = Policy(pull, lambda n: (), ())
T, B = 4, 6


def with_tasks():
    env, params = levels()
    tasks = curriculum(params, by_rank(1.0))
    return env, tasks


def sources():
    env, tasks = with_tasks()
    plain = rollouts(env, B, T, tasks)
    old = replay(rollouts(env, B, T), B * T, B, warmup=B * T)
    settings = Replay(num_envs=B, num_steps=T, batch_size=B, capacity=B * T, warmup=B * T)
    whole = episodes(env, B, tasks)
    return {
        "rollouts": (plain, lambda s: s.tasks),
        "episodes": (whole, lambda s: s.tasks),
        "replay": (settings.source(env, tasks=tasks), lambda s: s.source.tasks),
        "recent": (recent(plain, 3), lambda s: s.source.tasks),
        "rehearsal": (rehearsal(plain, 8, 2), lambda s: s.source.tasks),
        "kept_groups": (kept_groups(whole, 2, lambda r: r[..., 0] > 0), lambda s: s.source.tasks),
        "mixed": (
            mixed(old, replay(plain, B * T, B, warmup=B * T)),
            lambda s: s.online.source.tasks,
        ),
        "sharded": (
            mixed(
                replay(rollouts(env, B, T), B * T, 2 * B, warmup=B * T, num_shards=2),
                replay(plain, B * T, B, warmup=B * T, num_shards=2),
                num_shards=2,
            ),
            lambda s: s.online.source.tasks,
        ),
    }


@pytest.mark.parametrize("name", list(sources()))
def test_every_source_hands_scores_to_its_tasks(name):
    """Steps are scored by their rewards, which tell their levels: the score of each level must come
    to be what it pays, whatever stands between the update and the tasks."""
    source, tasks_of = sources()[name]

    @jax.jit
    def run(key):
        hyper = {n: jnp.float32(v) for n, v in source.hyper.items()}
        state = source.init(key, hyper, PULL)

        def body(state, key):
            state, fresh, _ = source.collect(state, PULL, key)
            batch = source.sample(state, fresh, key)
            score = batch.transitions.reward + 1
            return source.feedback(state, batch, {"score": score, "keep": False}), ()

        return jax.lax.scan(body, state, jax.random.split(key, 30))[0]

    state = tasks_of(run(random.key(0)))
    assert state.seen.all()
    np.testing.assert_allclose(state.score, 1 + np.arange(K) / K, rtol=1e-5)


def test_recent_scores_the_newest_window_alone():
    """The older windows' scores are about what the source handed out before."""
    env, tasks = with_tasks()
    source = recent(rollouts(env, B, T, tasks), 2)
    hyper = {n: jnp.float32(v) for n, v in source.hyper.items()}
    state = source.init(random.key(0), hyper, PULL)
    for key in (1, 2):
        state, batch, _ = source.collect(state, PULL, random.key(key))
    score = jnp.repeat(jnp.array([100.0, 1.0]), T)[:, None] + jnp.zeros((1, B))
    state = source.feedback(state, batch, {"score": score})
    newest = np.unique(batch.transitions.task[-T:])
    expected = np.isin(np.arange(K), newest).astype(np.float32)
    np.testing.assert_allclose(state.source.tasks.score, expected)


# ------------------------------------------------------------------------------- a whole run


@struct
class Table:
    value: jax.Array  # float32 [K]: estimates of the rewards of levels
    hyper: dict


def table_agent(rates):
    """Estimates the reward of each level, some levels slower than others, and scores a step by the
    error of the estimate."""

    def update(state, batch: Batch, key):
        task = batch.transitions.task
        error = batch.transitions.reward - state.value[task]
        count = jnp.zeros(K).at[task].add(1.0)
        mean = jnp.zeros(K).at[task].add(error) / jnp.maximum(count, 1)
        value = state.value + jnp.asarray(rates) * mean
        info = Info({"loss": jnp.square(error).mean()}, {"score": jnp.abs(error)})
        return Table(value, state.hyper), info

    init = lambda key, hyper: Table(jnp.full(K, 2.0), {})
    return Agent("table", init, pull, update)


def shares_played(draw, steps=60):
    """Return the share of each level in the second half of a run."""
    env, params = levels()
    rates = np.array([0.5, 0.5, 0.5, 0.01, 0.5], np.float32)
    source = rollouts(env, 32, 2, curriculum(params, draw))
    algorithm = learn(table_agent(rates), source)

    @jax.jit
    def run(key):
        state = algorithm.init(key, algorithm.hyper)

        def body(state, key):
            state, _ = algorithm.step(state, key)
            return state, state.source.streams.task

        return jax.lax.scan(body, state, jax.random.split(key, steps))[1]

    tasks = np.asarray(run(random.key(0)))[steps // 2 :]
    return np.bincount(tasks.ravel(), minlength=K) / tasks.size


def test_the_level_that_is_learned_slowest_is_played_most():
    np.testing.assert_allclose(shares_played(EVENLY), 1 / K, atol=0.05)
    for draw in (by_rank(0.2, 0.1), by_value(0.5, 0.1)):
        share = shares_played(draw)
        assert share.argmax() == 3 and share[3] > 0.7
        assert (share > 0).all()  # stale levels come again


def test_hyperparameters_are_arrays_of_the_run():
    env, params = levels()
    source = rollouts(env, B, T, curriculum(params, by_value(), path="levels."))
    algorithm = learn(table_agent(np.ones(K)), source)
    names = {"levels.rate", "levels.temperature", "levels.staleness"}
    assert names <= set(algorithm.hyper)
    rates = jnp.array([0.25, 1.0])
    hyper = {n: jnp.broadcast_to(jnp.asarray(v), 2) for n, v in algorithm.hyper.items()}
    states = jax.vmap(algorithm.init)(
        jax.random.split(random.key(0), 2), hyper | {"levels.rate": rates}
    )
    np.testing.assert_allclose(read_hyper(states)["levels.rate"], rates)
