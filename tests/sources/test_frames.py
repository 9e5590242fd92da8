"""Large observations that a replay buffer stores once, compared with storing them twice."""

import math
import re

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.learn import start_source
from jaxrl.envs.policies import random_policy
from jaxrl.sources import episodes, frames, proportional, replay, rollouts
from tests.counting import counting
from tests.sources.test_replay import HELD, B, N, T, places, play, policy

CAPACITY = HELD * T * B


@pytest.fixture
def once(monkeypatch):
    """Store every observation once, however small it is."""
    return lambda size=1: monkeypatch.setattr(frames, "LARGE", size)


@pytest.mark.parametrize(
    ("length", "memory", "shards"), [(None, False, 1), (5, False, 2), (2 * T, True, 2)]
)
def test_batches_are_the_same(once, length, memory, shards):
    """Batches are equal whether episodes terminate or are truncated, also when the ring is full."""

    def batches():
        environment = counting(terminates_after=5, truncates_after=4)
        warmup = B * (length or 1)
        source = replay(
            rollouts(environment, B, T), CAPACITY, N, length, warmup=warmup, keep_memory=memory,
            num_shards=shards,
        )  # fmt: skip
        return play(source)

    (twice, _, _, expected), _ = batches(), once()
    (held, state, _, found) = batches()
    assert held.frames is not None and twice.frames is None
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert (found.transitions.truncated & ~found.transitions.terminated).any()
    assert state.filled[-1] == HELD * T


@pytest.mark.parametrize("length", [None, 2])
def test_fewer_steps_of_short_episodes_are_kept_and_all_are_right(once, length):
    once()
    environment = counting(terminates_after=1)
    first, state, fresh, batch = play(
        replay(rollouts(environment, B, T), CAPACITY, N, length, warmup=2 * B)
    )
    join = lambda x: x.reshape(-1, *x.shape[2:])
    whole, span = jax.tree.map(join, fresh.transitions), length or 1
    room = first.frames.number.shape[2]
    assert room == span + T < HELD * T
    assert span <= state.filled.min() and (state.filled <= room).all()
    for window in range(
        2, len(state.filled)
    ):  # the steps that `init` collected are no longer there
        x = jax.tree.map(lambda x: x[window], batch.transitions)  # noqa: B023
        at = places(x, whole, (window + 1) * T)
        rows = at[:, 0] + np.arange(span)[:, None]
        rows = rows if length else rows[0]
        found, expected = x.next_observation, whole.next_observation
        np.testing.assert_array_equal(found, expected[rows, at[:, 1]])


def test_a_loop_copies_no_ring(once):
    """Only rows that are written move; a copy of the ring at each step would cost its length."""
    once()
    environment = counting(terminates_after=5)
    source = replay(rollouts(environment, B, T), 60 * CAPACITY, N, 5, proportional(), warmup=5 * B)

    def run(state, keys):
        def body(state, key):
            state, fresh, _ = source.collect(state, policy(), key)
            batch = source.sample(state, fresh, key)
            state = source.feedback(state, batch, {"priority": batch.weight})
            return state, batch.transitions.reward.sum()

        return jax.lax.scan(body, state, keys)

    key = random.key(0)
    state = jax.eval_shape(lambda: start_source(source, key, source.hyper, policy()))
    program = jax.jit(run, donate_argnums=0).lower(state, jax.random.split(key, 3)).compile()
    rings = [x.shape for x in jax.tree.leaves(state) if x.size >= 60 * CAPACITY / 8]
    assert len(rings) == 7  # there is room for an eighth of ends
    copied = re.findall(r"\w+\[([\d,]+)\]\S* copy\(", program.as_text())
    assert not {",".join(map(str, shape)) for shape in rings} & set(copied)


def test_observations_that_are_stored_once():
    """Frames of Breakout are, as bits; CartPole's four numbers are not, nor are windows that do not
    follow each other."""

    def first_window(source, environment):
        return jax.eval_shape(
            lambda: start_source(source, random.key(0), source.hyper, random_policy(environment))
        )

    frame = envs.make("minatar_breakout")
    state = first_window(replay(rollouts(frame, 4, 2), 64, 4), frame)
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
    steps = math.prod(state.transitions.words.shape[:2])
    assert size(state.frames.before) == steps * 4 * math.ceil(10 * 10 * 4 / 32)
    assert size(state.frames) < 1.5 * size(state.frames.before)
    small = envs.make("cartpole")
    assert first_window(replay(rollouts(small, 4, 2), 64, 4), small).frames is None
    game = envs.make("minatar_breakout", time_limit=5)
    assert first_window(replay(episodes(game, 4), 64, 4), game).frames is None
