"""SS-ORL: what the inverse dynamics model sees, and that nothing learns from hidden actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import ss_orl
from jaxrl.algorithms.offline.shared import inverse_dynamics
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import TimeStep, Transition
from jaxrl.datasets.transitions import from_episodes
from tests.algorithms.offline.labels import Labels
from tests.datasets.stand_in import no_training

__all__ = ["no_training"]

ENV = envs.make("pendulum")
STEPS = 200.0
SETTINGS = {
    "data.name": "random",
    "data.batch_size": 64,
    "torso.hidden": (8,),
    "inverse.torso.hidden": (32,),
    "inverse.optimizer.learning_rate": 0.01,
    "inverse.steps": STEPS,
    "labeled": 0.5,
    "labeled_below": 1.0,
}


def test_the_model_sees_observations_around_a_step():
    no, row = np.zeros((4, 2), bool), np.arange(4.0)[:, None] + 10 * np.arange(2)
    seen = np.float32(row[..., None] * np.ones(3))
    before = TimeStep(seen, np.float32(row), no, no, no)
    after = TimeStep(seen + 100, np.float32(row), no, no, no)
    x = Transition(before, np.float32(row[..., None]), after, (), {})
    found = inverse_dynamics.see(ENV, jax.tree.map(jnp.asarray, x), past=2)
    # Two observations before the step, its own, its successor, and one after that.
    expected = [[0, 1, 2, 102, 103], [10, 11, 12, 112, 113]]
    np.testing.assert_array_equal(found.features, np.repeat(expected, 3, 1))
    np.testing.assert_array_equal(found.action, [[2], [12]])


@pytest.mark.parametrize(
    "share, below, count, among",
    [(0.2, 0.5, 1, {0, 2}), (0.5, 0.5, 2, {0, 2}), (1.0, 0.5, 2, {0, 2}), (0.01, 0.01, 1, {2})],
)
def test_labeled_episodes_are_those_with_the_lowest_returns(share, below, count, among):
    rewards = [[1.0, 1], [9.0], [0.0, 1, 0], [5.0, 5]]

    def episode(rewards):
        no = np.zeros(len(rewards), bool)
        seen = np.zeros((len(rewards) + 1, 1), np.float32)
        action = np.zeros(len(rewards), np.int32)
        return dict(
            zip(
                ("observations", "actions", "rewards", "terminations", "truncations"),
                (seen, action, np.array(rewards), no, no),
                strict=True,
            )
        )

    x = from_episodes([episode(r) for r in rewards])
    number = np.repeat(np.arange(4), [2, 1, 3, 2])
    seen = set()
    for seed in range(10):
        known = inverse_dynamics.labeled_rows(x, share, below, seed)
        chosen = set(number[known])
        np.testing.assert_array_equal(known, np.isin(number, list(chosen)))  # whole episodes
        assert len(chosen) == count
        seen |= chosen
    assert seen == among


@pytest.mark.slow
def test_nothing_learns_from_hidden_actions(no_training):
    config = replace(ss_orl.Config(), SETTINGS)
    labels = Labels(ss_orl, ss_orl.ss_orl, ENV, config, lambda action: jnp.full_like(action, 99))
    errors = labels.check_phases(int(STEPS), ("actor", "critic"))
    # Actions are uniform in [-1, 1], whose variance is 1/3.
    assert errors[0] > 0.4 and errors[-1] < 0.3


def test_an_environment_beside_the_data_is_refused():
    with pytest.raises(UserError, match=r"^ss_orl learns from a dataset alone"):
        ss_orl.ss_orl.agent(ENV, replace(ss_orl.Config(), SETTINGS | {"num_envs": 2}))
