"""The tests of players who trained with different numbers of teams, with known answers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.games.shared.team_tests import team_tests
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs.games import team_battle as b
from jaxrl.envs.games import team_battle_players as players


def specialist(teams: np.ndarray) -> Policy:
    """Play as the scripted player that knows all effects, but forfeit with any team but these."""
    known = np.stack([x[teams] for x in b.pool()], -1).reshape(len(teams), -1)
    script = players.player("knowing")

    def act(state, timestep, memory, key, greedy):
        action, memory, extras = script.act(state, timestep, memory, key, greedy)
        seen = timestep.observation
        own = seen[..., : b.TEAM * players.FEATURES].reshape(-1, b.TEAM, players.FEATURES)
        code = lambda first, size: own[..., first : first + size].argmax(-1)
        team = jnp.stack([code(2, 6), code(8, 3), code(11, 6)], -1).reshape(len(own), 1, -1)
        knows = (team == known).all(-1).any(-1)
        first = seen[..., 2 * b.TEAM * players.FEATURES] > 0
        return jnp.where(first & ~knows, b.SWITCH, action), memory, extras

    return Policy(act, lambda n: ())


def test_the_tests_are_played_with_teams_that_all_and_that_none_has_trained_on():
    order = 3
    cast = {
        "two": specialist(b.chosen_teams(2, order=order)),
        "four": specialist(b.chosen_teams(4, order=order)),
        "other": specialist(b.chosen_teams(b.POOL - 4, True, order)),
        "knowing": players.player("knowing"),
    }
    trained = {"two": 2, "four": 4, "other": 0, "knowing": 0}
    found = team_tests(cast, trained, key=random.key(0), games=40, order=order, turns=2)
    known, unknown = np.asarray(found.performance), np.asarray(found.generalization)
    # None of the first two forfeits with the first two teams; the third one always does.
    np.testing.assert_array_equal(known[[0, 1, 3], 2], 1)
    assert (known[:2, 3] > 0.2).all() and (known[:2, 3] < 0.8).all()
    np.testing.assert_array_equal(unknown[:2, 2:], 0)
    assert 0.2 < unknown[2, 3] < 0.8


@pytest.mark.parametrize("trained", [{"a": 0}, {"a": 136}])
def test_nobody_who_trained_or_no_team_that_is_left_is_refused(trained):
    with pytest.raises(UserError, match="nobody on all 136"):
        team_tests({"a": players.player("knowing")}, trained, key=random.key(0))
