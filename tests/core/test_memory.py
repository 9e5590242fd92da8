"""Memories that begin anew with an episode: by a select, or as they say themselves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import memory as memories
from jaxrl.core import random, stream
from jaxrl.core.memory import Memory
from jaxrl.core.shared import Original, Shared
from jaxrl.core.types import Policy, struct
from jaxrl.tasks.basic import fixed
from tests.counting import counting

FIRST = jnp.array([True, False, True])


@struct
class Diary(Memory):
    """Counts steps, and keeps lines of which only those of this episode are read."""

    lines: jax.Array
    count: jax.Array

    def restart(self, first):
        return dataclasses.replace(self, count=jnp.where(first, 0, self.count))

    def shrink(self):
        return Diary(self.lines[:, :0], self.count)


def diary(n):
    return Diary(jnp.zeros((n, 4)), jnp.zeros(n, jnp.int32))


def test_only_what_cannot_say_how_it_begins_is_selected():
    original = Original(np.arange(5.0), "five numbers")
    own = Diary(jnp.ones((3, 4)), jnp.array([5, 6, 7]))
    shared = Shared(jnp.arange(5.0), jnp.uint32(1), original)
    memory = {"diary": (own,), "state": jnp.ones((3, 2)), "shared": shared}
    blank = {"diary": (diary(3),), "state": jnp.full((3, 2), 0.5), "shared": shared}
    found = memories.restart(FIRST, blank, memory)
    assert found["diary"][0].lines is own.lines and found["shared"] is shared
    assert found["diary"][0].count.tolist() == [0, 6, 0]
    assert found["state"].tolist() == [[0.5, 0.5], [1, 1], [0.5, 0.5]]


def test_a_blank_memory_without_room():
    found = memories.shrink({"diary": diary(3), "state": jnp.ones((3, 2))})
    assert found["diary"].lines.shape == (3, 0) and found["diary"].count.tolist() == [0, 0, 0]
    assert found["state"].tolist() == jnp.ones((3, 2)).tolist()


def test_a_stream_restarts_both_kinds_alike():
    """Episodes of four steps: the memory counts 0, 1, 2, 3 and begins anew."""

    def policy(blank, count_of, counted):
        def act(state, timestep, memory, key, greedy):
            count = count_of(memory)
            return count % 3, counted(memory, count + 1), {"count": count}

        return Policy(act, blank, ())

    def write(memory, count):
        lines = memory.lines.at[:, 0].add(1.0)
        return Diary(lines, count)

    plain = policy(lambda n: jnp.zeros(n, jnp.int32), lambda m: m, lambda m, count: count)
    own = policy(diary, lambda m: m.count, write)
    env = counting(terminates_after=4)
    tasks = fixed(env.params)

    def run(policy):
        begin = stream.start(env, tasks, env.params, policy, random.key(0), 2)

        def body(streams, x):
            streams, _, transition, _ = stream.advance(env, tasks, env.params, streams, policy, x)
            return streams, transition.extras["count"]

        return jax.lax.scan(body, begin, stream.step_inputs(random.key(1), 10))

    (_, expected), (end, found) = run(plain), run(own)
    assert expected[:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    np.testing.assert_array_equal(found, expected)
    assert (end.memory.lines[:, 0] == 10).all()  # never overwritten
