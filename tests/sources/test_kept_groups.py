"""Groups of episodes that wait replace fresh ones that are not informative."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import losses
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, Source, TimeStep, Transition
from jaxrl.sources import kept_groups

T, GROUPS, SIZE = 2, 4, 2
NOBODY: Any = None  # a policy that is never asked


def source(kinds):
    """Make a source whose window w has groups with differing answers where kinds[w, group]. Actions
    are the number of the group since the beginning. Rewards after the end must not count."""

    def collect(state, policy, key):
        group = jnp.repeat(jnp.arange(GROUPS), SIZE)
        right = jnp.asarray(kinds)[state][group] & (jnp.arange(GROUPS * SIZE) % SIZE == 0)
        reward = jnp.stack([right, jnp.ones(GROUPS * SIZE)]).astype(jnp.float32)
        none = jnp.zeros((T, GROUPS * SIZE), bool)
        step = TimeStep(none, reward, none, none, none)
        action = jnp.broadcast_to(GROUPS * state + group, none.shape)
        mask = jnp.array([[True], [False]]) & ~none
        return (
            state + 1,
            Batch(Transition(step, action, step, (), {}), jnp.float32(0), mask=mask),
            {},
        )

    sample = lambda state, fresh, key: fresh
    return Source("", lambda *_: jnp.int32(0), collect, sample, num_envs=GROUPS * SIZE)


def windows(kinds, waits, num_shards=1):
    """Return the groups in each batch if the updates feed back `waits`."""
    keeps = kept_groups(source(kinds), SIZE, losses.informative_groups, num_shards)
    key = jax.random.key(0)
    state, found = keeps.init(key, {}, NOBODY), []
    for wait in waits:
        state, batch, _ = keeps.collect(state, NOBODY, key)
        assert (batch.transitions.action == batch.transitions.action[0, 0::SIZE].repeat(SIZE)).all()
        found.append(batch.transitions.action[0, ::SIZE].tolist())
        state = keeps.feedback(state, batch, {"keep": jnp.bool_(wait)})
    return found


KINDS = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0]], bool)


def test_kept_groups_replace_those_that_are_not_informative():
    """Kept groups come again as long as updates wait, and never more than a batch of them."""
    first, second, third, fourth = windows(KINDS, [True, True, False, False])
    assert first == [1, 0, 2, 3]
    assert second == [6, 1, 4, 5]
    assert third == [8, 11, 6, 1]
    assert fourth == [13, 12, 14, 15]
    full = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
    assert windows(full, [True, True])[1] == [4, 5, 0, 1]


def test_kept_groups_stay_in_their_shard():
    found = windows(KINDS, [True, True, False, False], num_shards=2)
    assert found == [[1, 0, 2, 3], [1, 4, 6, 7], [8, 1, 11, 6], [13, 12, 14, 15]]


def test_groups_that_do_not_fit():
    with pytest.raises(UserError, match="8 episodes do not divide into groups of 3"):
        kept_groups(source(KINDS), 3, losses.informative_groups)
