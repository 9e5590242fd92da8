"""Pairs of segments: windows within episodes, labels against enumeration, who is left out."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy, TimeStep, Transition
from jaxrl.envs.policies import mixed_skill
from jaxrl.envs.wrappers import expert_channel
from jaxrl.sources import played_by, rollouts, segment_pairs
from jaxrl.sources.segments import Teacher, by_scores, find_windows, set_columns

NOBODY = Policy(lambda *_: ((), (), {}), lambda n: (), ())
LENGTHS = (5, 2, 7, 3, 4)  # of the episodes
ROWS = sum(LENGTHS)
REWARD = np.random.default_rng(0).normal(size=ROWS).astype(np.float32)


def transitions(reward=REWARD):
    """Episodes of `LENGTHS`, of which a step observes its episode and its row."""
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    row = np.arange(ROWS)
    last = np.isin(row, np.cumsum(LENGTHS) - 1)
    seen = np.stack([episode, row], -1).astype(np.float32)
    zero, no = np.zeros(ROWS, np.float32), np.zeros(ROWS, bool)
    first = np.concatenate([[True], last[:-1]])
    before = TimeStep(seen, zero, no, no, first)
    after = TimeStep(seen + np.float32([0, 1]), np.asarray(reward), last, no, no)
    return Transition(before, row, after, (), {})


def draw(source, seed=0, count=1):
    """Return the state and `count` batches, with a leading axis."""

    @jax.jit
    def run(key):
        state = source.init(key, source.hyper, NOBODY)
        state, fresh, _ = source.collect(state, NOBODY, key)
        sample = lambda key: source.sample(state, fresh, key)
        return state, jax.vmap(sample)(jax.random.split(key, count))

    return jax.tree.map(np.asarray, run(random.key(seed)))


def windows_of(length, episodes=range(len(LENGTHS))):
    """Rows at which windows begin, by enumeration."""
    begin = np.cumsum((0, *LENGTHS))
    return {
        row for e in episodes for row in range(begin[e], begin[e + 1] - length + 1) if length > 0
    }


@pytest.mark.parametrize("length", [1, 3, 7])
def test_windows_are_those_within_an_episode(length):
    found = find_windows(jnp.asarray(transitions().done), length)
    starts = np.flatnonzero(np.diff(np.asarray(found.count), prepend=0))
    assert set(starts) == windows_of(length)
    drawn = np.asarray(found.draw(random.key(0), (4000,)))
    share = np.bincount(drawn, minlength=ROWS) / 4000
    expected = np.isin(np.arange(ROWS), list(windows_of(length))) / len(windows_of(length))
    np.testing.assert_allclose(share, expected, atol=0.04)


def test_a_record_that_is_cut_off_ends_there():
    found = find_windows(jnp.array([False, False, True, False, False]), 3)
    np.testing.assert_array_equal(found.count, [1, 1, 1, 1, 1])
    assert find_windows(jnp.zeros(2, bool), 3).count[-1] == 0


def test_windows_are_held_out_by_episodes():
    last = jnp.asarray(transitions().done)
    starts = lambda **o: set(
        np.flatnonzero(np.diff(find_windows(last, 3, 2, **o).count, prepend=0)).tolist()
    )
    assert starts() == windows_of(3, [0, 2, 4])
    assert starts(of_held_out=True) == windows_of(3, [1, 3])


def test_moved_windows_stay_in_their_episode():
    found = find_windows(jnp.asarray(transitions().done), 3)
    row = found.draw(random.key(0), (2000,))
    moved = np.asarray(found.shift(random.key(1), row, 2.0))
    assert set(moved) == windows_of(3)
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    np.testing.assert_array_equal(episode[moved], episode[row])
    assert (moved != row).mean() > 0.4


def test_segments_never_cross_an_end_and_pairs_are_neighbors():
    source = segment_pairs(transitions(), Teacher(), length=3, count=64, batch_size=16, others=2)
    state, batch = draw(source, count=50)
    x = jax.tree.map(lambda x: np.moveaxis(x, 1, 0).reshape(3, -1, *x.shape[3:]), batch.transitions)
    episode, row = x.observation[..., 0], x.observation[..., 1].astype(int)
    assert (episode == episode[0]).all() and (np.diff(row, axis=0) == 1).all()
    assert set(row[0]) == windows_of(3) and batch.mask.all()
    np.testing.assert_array_equal(x.reward, REWARD[row])
    groups = row[0].reshape(-1, set_columns(others=2))
    known = {frozenset(map(int, pair)) for pair in state.starts[:, 0]}
    assert {frozenset(map(int, pair)) for pair in groups[:, :2]} == known
    total = x.reward.sum(0).reshape(groups.shape)
    assert (total[:, 0] >= total[:, 1]).all()  # the one with more reward was preferred


def probability(first, second, *, discount, rationality, equal, mistakes):
    """Probability that the first of two segments is preferred, by B-Pref's rules."""
    total = lambda rewards: sum(discount**t * r for t, r in enumerate(rewards))
    difference = total(first) - total(second)
    if abs(difference) <= equal:
        return 0.5
    if math.isinf(rationality):
        right = float(difference > 0)
    else:
        right = 1 / (1 + math.exp(-rationality * difference))
    return (1 - mistakes) * right + mistakes * (1 - right)


TEACHERS = {
    "rational": {"discount": 1.0, "rationality": math.inf, "equal": 0.0, "mistakes": 0.0},
    "noisy": {"discount": 0.7, "rationality": math.inf, "equal": 0.8, "mistakes": 0.25},
    "boltzmann": {"discount": 0.9, "rationality": 2.0, "equal": 0.3, "mistakes": 0.1},
}


@pytest.mark.parametrize("kind", TEACHERS)
def test_labels_are_as_probable_as_enumeration_says(kind):
    options = dict(TEACHERS[kind])
    mistakes = options.pop("mistakes")
    soft = Teacher(by_scores(**options), mistakes=mistakes, soft=True)
    state, _ = draw(segment_pairs(transitions(), soft, length=3, count=500, batch_size=4))
    expected = np.array(
        [
            probability(*(REWARD[s : s + 3] for s in pair), mistakes=mistakes, **options)
            for pair in state.starts[:, 0]
        ]
    )
    np.testing.assert_allclose(state.labels.preferred[:, 0], expected, atol=1e-5)
    # Labels that are drawn once are right as often, where the teacher prefers one at all.
    drawn = dataclasses.replace(soft, soft=False)
    source = segment_pairs(transitions(), drawn, length=3, count=20_000, batch_size=4)
    state, _ = draw(source)
    label = state.labels.preferred[:, 0]
    by_pair = {}
    for pair, value in zip(map(tuple, state.starts[:, 0]), label, strict=True):
        by_pair.setdefault(pair, []).append(value)
    for pair, values in by_pair.items():
        share = probability(*(REWARD[s : s + 3] for s in pair), mistakes=mistakes, **options)
        assert abs(np.mean(values) - share) < 5 * math.sqrt(0.25 / len(values)) + 1e-6
        assert set(values) <= ({0.5} if share == 0.5 else {0.0, 1.0})


def test_ties_come_in_either_order_or_not_at_all():
    reward = np.zeros(ROWS, np.float32)
    tied = Teacher(by_scores(equal=0.1))
    source = segment_pairs(transitions(reward), tied, length=3, count=1, batch_size=8)
    state, batch = draw(source, seed=4, count=200)
    first = batch.transitions.observation[..., 1][:, 0, ::2]
    a, b = state.starts[0, 0]
    assert a != b and batch.mask.all()
    np.testing.assert_allclose((first == a).mean(), 0.5, atol=0.05)
    left_out = dataclasses.replace(tied, skip_ties=True)
    source = segment_pairs(transitions(reward), left_out, length=3, count=8, batch_size=8, others=1)
    _, batch = draw(source)
    np.testing.assert_array_equal(
        batch.mask[0], np.tile([False, False, True], 8)[None].repeat(3, 0)
    )


def test_all_pairs_of_a_set_have_the_same_user():
    sign = lambda step, user: jnp.where(user == 0, 1.0, -1.0) * step.reward
    teacher = Teacher(by_scores(sign), user_of=lambda step: step.action % 2)
    source = segment_pairs(transitions(), teacher, length=2, count=100, batch_size=32, size=4)
    state, batch = draw(source)
    totals = np.array([REWARD[s : s + 2].sum() for s in range(ROWS - 1)])
    assert 20 < state.user.sum() < 80
    for user, starts, label in zip(state.user, state.starts, state.labels.preferred, strict=True):
        more = totals[starts[:, 0]] > totals[starts[:, 1]]
        more = more if user == 0 else ~more
        same = starts[:, 0] == starts[:, 1]
        np.testing.assert_array_equal(label[~same], more[~same])
    total = batch.transitions.reward[0].sum(0).reshape(32, 4, 2)
    order = np.sign(total[..., 0] - total[..., 1])
    assert ((order >= 0).all(-1) | (order <= 0).all(-1)).all() and {-1, 1} <= set(order.flat)


def test_each_run_may_play_its_own_data():
    env = envs.make("chain")
    with_channel = expert_channel(env)
    played = played_by(rollouts(with_channel, 8, 64), mixed_skill(with_channel, (0.0, 1.0)))
    source = segment_pairs(played, Teacher(), length=4, count=32, batch_size=32)
    a, b = draw(source)[0], draw(source, seed=1)[0]
    assert a.data.reward.shape == (512,) and a.data.timestep.privileged is None
    assert not np.array_equal(a.data.action, b.data.action)
    _, batch = draw(source)
    x = jax.tree.map(lambda x: x[0], batch.transitions)
    assert not x.first[1:].any() and not x.done[:-1].any()
    here, there = x.next_observation[:-1], x.observation[1:]
    np.testing.assert_array_equal(here, there)  # streams are not joined
    rows = a.starts[:, 0, 0] + np.arange(4)[:, None]
    assert (rows // 64 == rows[0] // 64).all()


def test_what_does_not_fit_is_refused():
    options = {"length": 3, "count": 4, "batch_size": 4}
    make = lambda **changes: segment_pairs(transitions(), Teacher(), **(options | changes))
    with pytest.raises(UserError, match=r"No episode .* has a segment of 8 steps"):
        make(length=8)
    with pytest.raises(UserError, match="held out"):
        make(length=4, held_out=2, of_held_out=True)
    with pytest.raises(UserError, match="count must be at least 1"):
        make(count=0)
    with pytest.raises(UserError, match="num_shards"):
        make(num_shards=3)
