import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

MASK = np.array([[True, True, False, True], [True] * 4, [False, True, True, False]])
CASES = [
    Case(
        losses.pass_rate_mask,
        lambda rng: {"correct": rng.random((5, 8)) < 0.4, "low": 0.1, "high": 0.5},
    ),
    Case(
        losses.high_variance_groups,
        lambda rng: {"reward": rng.integers(0, 9, (6, 4)), "share": 0.5},
    ),
    Case(
        losses.filtration_weights,
        lambda rng: {"reward": rng.normal(size=(3, 4)), "kind": "best_and_random", "mask": MASK},
        stopped=("reward",),
        extremes=lambda rng: [
            {"reward": np.ones((3, 4))},
            {"mask": np.zeros((3, 4), bool)},
            {"reward": np.where(MASK, 1e6, np.nan)},
        ],
    ),
    Case(
        losses.difficulty_weights,
        lambda rng: {
            "correct": rng.random((3, 4)) < 0.5,
            "advantage": rng.normal(size=(3, 4)),
            "mask": MASK,
        },
        stopped=("advantage",),
        extremes=lambda rng: [
            {"advantage": np.full((3, 4), 1e6)},
            {"mask": np.zeros((3, 4), bool)},
        ],
    ),
    Case(losses.winner_takes_all, lambda rng: {"reward": rng.integers(0, 3, (6, 4))}),
]
test_contract = contract(CASES)


def test_pass_rate_mask():
    correct = jnp.arange(8) < jnp.arange(9)[:, None]  # 0 to 8 of 8
    assert losses.pass_rate_mask(correct, 0.0, 0.25).tolist() == [False, True, True] + [False] * 6
    mask = jnp.zeros((9, 8), bool).at[:, :4].set(True)
    assert losses.pass_rate_mask(correct, 0.0, 0.25, mask).tolist() == [False, True] + [False] * 7
    assert not losses.pass_rate_mask(correct, -1.0, 1.0, jnp.zeros((9, 8), bool)).any()


def test_high_variance_groups_are_those_with_the_largest_deviation():
    reward = np.random.default_rng(0).normal(size=(2, 10, 4)) * np.arange(1, 11)[:, None]
    ours = np.array(losses.high_variance_groups(jnp.float32(reward), 0.3))
    for kept, group in zip(ours, reward, strict=True):
        assert set(np.flatnonzero(kept)) == set(np.argsort(group.std(-1))[-3:])
    assert losses.high_variance_groups(jnp.ones((4, 3)), 0.5).tolist() == [True, True, False, False]
    assert losses.high_variance_groups(jnp.ones((4, 3)), 0.0).sum() == 1
    mask = jnp.array([[True, False], [True, True]])
    garbage = jnp.array([[1.0, jnp.nan], [0.0, 1.0]])
    assert losses.high_variance_groups(garbage, 0.5, mask).tolist() == [False, True]


@pytest.mark.parametrize(
    "kind,expected",
    [
        ("best", [0, 1, 0, 0]),
        ("best_and_random", [1 / 6, 1 / 2, 1 / 6, 1 / 6]),
        ("best_and_worst", [0, 1 / 2, 1 / 2, 0]),
    ],
)
def test_filtration_weights(kind, expected):
    reward = jnp.array([0.3, 0.9, -1.0, 0.5])
    np.testing.assert_allclose(losses.filtration_weights(reward, kind), expected, rtol=1e-6)
    mask = jnp.array([True, True, True, True, False])
    ours = losses.filtration_weights(jnp.append(reward, jnp.nan), kind, mask)
    np.testing.assert_allclose(ours, [*expected, 0], rtol=1e-6)
    for group in ([1.0, 1.0, 1.0], [2.0], [3.0, 3.0, 1.0]):
        np.testing.assert_allclose(
            losses.filtration_weights(jnp.array(group), kind).sum(), 1, rtol=1e-6
        )


def test_filtration_weights_reject_other_kinds():
    with pytest.raises(ValueError):
        losses.filtration_weights(jnp.ones(3), "random")  # type: ignore[arg-type]


def test_successes_on_hard_tasks_and_failures_on_easy_ones_count_more():
    advantage = jnp.array([1.0, -1.0, -1.0, -1.0])
    hard = losses.difficulty_weights(jnp.arange(4) < 1, advantage)
    easy = losses.difficulty_weights(jnp.arange(4) < 3, advantage)
    assert hard[0] > easy[0] and easy[1] > hard[1]
    expected = 0.4 + (1.5 - 0.4) / (1 + np.exp(10 * (np.array([0.25, 0.75]) - 0.75)))
    np.testing.assert_allclose(hard[:2], expected, rtol=1e-5)


def test_hard_groups_count_more_as_a_whole():
    correct = jnp.array([[True, False, False, False], [True, True, True, False]])
    weights = losses.difficulty_weights(correct)
    np.testing.assert_allclose(
        weights, 0.4 + 1.1 / (1 + np.exp([[-5.0] * 4, [0.0] * 4])), rtol=1e-5
    )
    mask = jnp.array([True, False, False, False])
    everything = 0.4 + 1.1 / (1 + np.exp(2.5))
    np.testing.assert_allclose(losses.difficulty_weights(correct, mask=mask), everything, rtol=1e-5)


def test_one_winner_takes_all():
    reward = jnp.array([[1.0, 3.0, 2.0], [2.0, 2.0, 1.0], [-5.0, -1.0, -2.0]])
    expected = [[False, True, False], [True, False, False], [False, True, False]]
    assert losses.winner_takes_all(reward).tolist() == expected
    mask = jnp.array([True, False, True])
    expected = [[False, False, True], [True, False, False], [False, False, True]]
    garbage = jnp.where(mask, reward, jnp.nan)
    assert losses.winner_takes_all(garbage, mask).tolist() == expected
    assert not losses.winner_takes_all(reward, jnp.zeros(3, bool)).any()
