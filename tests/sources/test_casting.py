"""Players of the episodes of a batch."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.sources import Player, cast, episodes

ENV = envs.make("judged_words", letters=3, length=4)


def remembers(state, timestep, memory, key, greedy):
    """Write the letter `state` in each step, and count one's steps."""
    action = jnp.full(memory.shape, state, jnp.int32)
    return action, memory + 1, {"log_prob": memory.astype(jnp.float32) * 10 + state}


def test_episodes_are_played_in_turns_with_memories_of_their_own():
    players = (lambda state: state, lambda state: state + 1, lambda state: 2 * state)
    source = cast(episodes(ENV, 9), [Player(state) for state in players])
    policy = Policy(remembers, lambda n: jnp.zeros(n, jnp.int32), jnp.int32(1))
    state = source.init(random.key(0), {}, policy)
    _, batch, _ = source.collect(state, policy, random.key(1))
    letters = np.tile([1, 2, 2], 3)
    np.testing.assert_array_equal(batch.transitions.action, np.tile(letters, (4, 1)))
    expected = 10.0 * np.arange(4)[:, None] + letters
    np.testing.assert_array_equal(batch.transitions.extras["log_prob"], expected)


def test_a_player_may_be_greedy():
    def act(state, timestep, memory, key, greedy):
        return jnp.full(memory.shape, int(greedy), jnp.int32), memory, {}

    source = cast(episodes(ENV, 4), (Player(), Player(greedy=True)))
    policy = Policy(act, lambda n: jnp.zeros(n, jnp.int32), jnp.int32(1))
    _, batch, _ = source.collect(source.init(random.key(0), {}, policy), policy, random.key(1))
    np.testing.assert_array_equal(batch.transitions.action, np.tile([0, 1, 0, 1], (4, 1)))


@pytest.mark.parametrize("count", [0, 2])
def test_players_that_do_not_divide_the_environments_are_refused(count):
    with pytest.raises(UserError, match=f"9 environments do not divide among {count} players"):
        cast(episodes(ENV, 9), [Player()] * count)
