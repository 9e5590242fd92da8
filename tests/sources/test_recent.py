"""The newest windows as one, compared with everything that was ever collected."""

import jax
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.sources import recent
from tests.sources.test_replay import HELD, WINDOWS, T, inner, play


def test_a_batch_is_the_newest_history_in_order():
    _, state, fresh, batch = play(recent(inner(), HELD))
    _, _, alone, _ = play(inner())
    every = alone.transitions.next_observation.reshape(WINDOWS * T, -1, 3)
    for window in (0, 2, HELD - 1, WINDOWS - 1):
        held = min(window + 1, HELD) * T
        mask = batch.mask[window]
        np.testing.assert_array_equal(mask.sum(0), held)
        assert mask[-held:].all() and mask.shape[0] == HELD * T
        found = batch.transitions.next_observation[window][-held:]
        np.testing.assert_array_equal(found, every[: (window + 1) * T][-held:])
    assert batch.memory is None and batch.tail is None
    np.testing.assert_array_equal(batch.env_steps, fresh.env_steps)
    assert jax.tree.leaves(state.transitions)[0].shape[1] == HELD * T


def test_at_least_one_window():
    with pytest.raises(UserError, match="windows must be at least 1"):
        recent(inner(), 0)
