"""The solution of tic-tac-toe against known facts about the game."""

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.envs.games.opponents import against_random
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.exact import tic_tac_toe


def of(mine, theirs):
    x = np.zeros(18, np.float32)
    x[list(mine)] = 1
    x[[9 + i for i in theirs]] = 1
    return tic_tac_toe.move_values()[int(tic_tac_toe.code(x))]


def test_every_position_and_known_moves():
    assert len(tic_tac_toe.positions()) == 4520  # 5478 minus the 958 that are over
    assert set(of([], [])) == {0}  # a draw, whatever the first move
    corner = of([], [0])  # only the center draws against a corner
    assert corner[4] == 0 and set(np.delete(corner, [0, 4])) == {-1} and corner[0] == -2
    assert of([0, 1], [3, 4])[2] == 1 and of([0, 1], [3, 4])[6] == -1
    assert np.all(tic_tac_toe.positions().sum(1) < 9)


@pytest.mark.slow
def test_the_perfect_player_never_loses_and_chance_does():
    """Play both the perfect player and its opponent."""
    playing = against_random("tic_tac_toe")
    played = evaluate(playing, tic_tac_toe.perfect_policy(), random.key(0), 200).metrics
    assert not played["lost"].any() and played["won"].mean() > 0.8
    chance = random_policy(envs.make("tic_tac_toe"))
    played = evaluate(tic_tac_toe.against_perfect(), chance, random.key(1), 200).metrics
    assert played["lost"].mean() > 0.6 and played["won"].max() == 0.5
    np.testing.assert_array_equal(played["outcome"], -played["lost"])
