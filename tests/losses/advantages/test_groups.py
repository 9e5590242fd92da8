import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def reward_and_mask(rng):
    mask = np.array([[True, True, False, True], [True] * 4, [False, True, True, False]])
    return {"reward": rng.normal(size=(3, 4)), "mask": mask}


def correct(rng):
    return {"correct": rng.random((3, 6)) < 0.5, "k": 3}


NOTHING = np.zeros((3, 4), bool)
EXTREMES = [
    {"reward": np.ones((3, 4))},
    {"mask": NOTHING},
    {"reward": 1e6 * np.arange(12.0).reshape(3, 4)},
    {"reward": np.where(reward_and_mask(np.random.default_rng(0))["mask"], 1.0, np.nan)},
]
CASES = [
    *(
        Case(
            function,
            reward_and_mask,
            gradient=("reward",),
            extremes=lambda rng: EXTREMES,
        )
        for function in (losses.group_relative, losses.leave_one_out, losses.gpg_advantage)
    ),
    Case(
        losses.group_relative,
        lambda rng: {**reward_and_mask(rng), "normalize": False},
        gradient=("reward",),
        extremes=lambda rng: EXTREMES,
        name="group_relative_without_deviation",
    ),
    Case(
        losses.group_relative,
        lambda rng: {**reward_and_mask(rng), "deviation": "sample"},
        gradient=("reward",),
        extremes=lambda rng: EXTREMES,
        name="group_relative_by_the_sample",
    ),
    Case(
        losses.optimal_baseline,
        lambda rng: {**reward_and_mask(rng), "length": rng.integers(1, 9, (3, 4))},
        gradient=("reward",),
        extremes=lambda rng: EXTREMES,
    ),
    Case(
        losses.group_regret,
        reward_and_mask,
        gradient=("reward",),
        extremes=lambda rng: EXTREMES,
    ),
    Case(losses.informative_groups, lambda rng: {"reward": rng.integers(0, 2, (5, 3))}),
    Case(losses.pass_at_k, correct),
    Case(losses.pass_at_k_advantage, correct),
    Case(
        losses.learning_gain,
        lambda rng: {"advantage": rng.normal(size=(3, 4)), "mask": reward_and_mask(rng)["mask"]},
        gradient=("advantage",),
        extremes=lambda rng: [
            {"mask": NOTHING},
            {"advantage": np.zeros((3, 4))},
            {"advantage": np.where(reward_and_mask(rng)["mask"], 1.0, np.nan)},
        ],
    ),
    Case(
        losses.role_conditioned_advantage,
        lambda rng: {
            "reward": rng.normal(size=5),
            "role": rng.integers(0, 3, 5),
            "baseline": rng.normal(size=3),
        },
        gradient=("reward",),
        stopped=("baseline",),
    ),
    Case(
        losses.role_baseline_update,
        lambda rng: {
            "baseline": rng.normal(size=3),
            "reward": rng.normal(size=5),
            "role": rng.integers(0, 3, 5),
            "decay": 0.9,
        },
        gradient=("baseline", "reward"),
        time=("reward", "role"),
    ),
]
test_contract = contract(CASES)


def test_group_relative_is_a_standard_score():
    reward = np.random.default_rng(0).normal(size=(3, 5))
    centered = reward - reward.mean(-1, keepdims=True)
    ours = losses.group_relative(jnp.float32(reward))
    np.testing.assert_allclose(ours, centered / reward.std(-1, keepdims=True), rtol=1e-5)
    ours = losses.group_relative(jnp.float32(reward), normalize=False)
    np.testing.assert_allclose(ours, centered, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [3, 7, 11])
def test_equal_rewards_give_no_advantage(size):
    """Not even rounding errors, which dividing by a deviation of 0 would amplify."""
    reward = jnp.array([[0.1], [0.7], [1000.1]]) * jnp.ones(size)
    assert (losses.group_relative(reward) == 0).all()
    np.testing.assert_allclose(losses.group_relative(reward, normalize=False), 0, atol=1e-3)


def test_masked_answers_are_not_in_the_group():
    reward, mask = jnp.array([1.0, jnp.nan, 0.0, 3.0]), jnp.array([True, False, True, True])
    for function in (
        losses.group_relative,
        losses.leave_one_out,
        lambda r, m=None: losses.group_relative(r, m, normalize=False),
    ):
        ours = function(reward, mask)
        np.testing.assert_allclose(ours[mask], function(reward[mask]), rtol=1e-6)
        assert ours[1] == 0
    assert losses.group_regret(reward, mask) == pytest.approx(3 - 4 / 3)
    assert losses.group_regret(-reward, mask) == pytest.approx(0 + 4 / 3)
    assert losses.group_regret(reward, jnp.zeros(4, bool)) == 0


def test_leave_one_out_is_the_reward_minus_the_others_mean():
    reward = np.random.default_rng(0).normal(size=5)
    expected = [r - np.delete(reward, i).mean() for i, r in enumerate(reward)]
    np.testing.assert_allclose(losses.leave_one_out(jnp.float32(reward)), expected, rtol=1e-5)
    assert losses.leave_one_out(jnp.array([3.0])) == 0


def test_gpg_is_reinforce_on_the_informative_groups():
    """The mean over all groups is REINFORCE's mean over the groups that have a signal."""
    reward = jnp.array([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    ours = losses.gpg_advantage(reward)
    log_prob = jnp.float32(np.random.default_rng(0).normal(size=reward.shape))
    kept = jnp.array([0, 2])
    centered = reward - reward.mean(-1, keepdims=True)
    np.testing.assert_allclose(
        losses.policy_gradient(log_prob, ours).mean(),
        losses.policy_gradient(log_prob[kept], centered[kept]).mean(),
        rtol=1e-5,
    )
    without = jnp.array([True, True, True, False])[
        :, None
    ]  # an empty group does not count as a group
    np.testing.assert_allclose(
        losses.gpg_advantage(reward, without)[0], 1.5 * centered[0], rtol=1e-6
    )
    np.testing.assert_allclose(
        losses.gpg_advantage(reward, normalize=True)[0],
        2 * losses.group_relative(reward)[0],
        rtol=1e-6,
    )


@pytest.mark.parametrize("k", [1, 2, 3, 6])
@pytest.mark.parametrize("right", range(7))
def test_pass_at_k_equals_all_subsets(k, right):
    answers = [True] * right + [False] * (6 - right)
    subsets = list(itertools.combinations(range(6), k))
    passes = np.array([any(answers[i] for i in s) for s in subsets], float)
    correct = jnp.array(answers)
    np.testing.assert_allclose(losses.pass_at_k(correct, k), passes.mean(), atol=1e-6)
    ours = losses.pass_at_k_advantage(correct, k)
    deviation = passes.std()
    for i in range(6):
        mine = [p for p, s in zip(passes, subsets, strict=True) if i in s]
        expected = (np.mean(mine) - passes.mean()) / deviation if deviation > 1e-9 else 0
        np.testing.assert_allclose(ours[i], expected, atol=1e-5)
    assert passes.mean() == pytest.approx(1 - math.comb(6 - right, k) / math.comb(6, k))


def test_pass_at_k_of_a_masked_group():
    correct = jnp.array([True, False, False, True])
    mask = jnp.array([True, True, True, False])
    for k in (1, 2, 3):
        np.testing.assert_allclose(
            losses.pass_at_k(correct, k, mask), losses.pass_at_k(correct[:3], k), rtol=1e-6
        )
        ours = losses.pass_at_k_advantage(correct, k, mask)
        np.testing.assert_allclose(ours[:3], losses.pass_at_k_advantage(correct[:3], k), rtol=1e-6)
        assert ours[3] == 0
    only_wrong = jnp.array([False, True, False, False])
    assert losses.pass_at_k(correct, 3, only_wrong) == 0  # one is drawn, and it is wrong
    assert losses.pass_at_k(correct, 3, jnp.zeros(4, bool)) == 0


@given(st.lists(st.booleans(), min_size=8, max_size=8))
def test_pass_at_1_is_grpo(answers):
    correct = jnp.array(answers)
    np.testing.assert_allclose(
        losses.pass_at_k_advantage(correct, 1),
        losses.group_relative(correct.astype(jnp.float32)),
        atol=1e-5,
    )
    np.testing.assert_allclose(losses.pass_at_k(correct, 1), np.mean(answers), atol=1e-6)


def test_informative_groups():
    reward = jnp.array([[1.0, 1.0], [0.3, 0.1], [-2.0, -2.0], [0.0, 1.0]])
    assert losses.informative_groups(reward).tolist() == [False, True, False, True]
    mask = jnp.array([[True, True], [True, False], [True, True], [False, False]])
    garbage = jnp.where(mask, reward, jnp.nan)
    assert losses.informative_groups(garbage, mask).tolist() == [False] * 4


def test_learning_gain_is_largest_at_a_success_rate_of_one_half():
    rewards = jnp.array([[0.0] * (8 - n) + [1.0] * n for n in range(9)])
    gain = losses.learning_gain(losses.group_relative(rewards), axis=-1)
    rate = np.arange(9) / 8
    np.testing.assert_allclose(gain, 2 * np.sqrt(rate * (1 - rate)), atol=1e-5)


def test_each_role_has_its_own_baseline():
    reward, role = np.array([1.0, -1.0, 0.5, 1.0]), np.array([0, 1, 0, 0])
    expected = np.array([0.2, 0.1, 7.0])
    for r, i in zip(reward, role, strict=True):
        expected[i] = 0.9 * expected[i] + 0.1 * r
    start = jnp.array([0.2, 0.1, 7.0])
    arguments = jnp.float32(reward), jnp.array(role), 0.9
    ours = losses.role_baseline_update(start, *arguments)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    np.testing.assert_allclose(
        losses.role_conditioned_advantage(jnp.float32(reward), jnp.array(role), ours),
        reward - expected[role],
        rtol=1e-5,
    )
    mask = jnp.array([True, True, True, False])
    garbage = jnp.where(mask, jnp.float32(reward), jnp.nan)
    np.testing.assert_allclose(
        losses.role_baseline_update(start, garbage, jnp.array(role), 0.9, mask),
        losses.role_baseline_update(start, *(x[:3] for x in arguments[:2]), 0.9),
        rtol=1e-6,
    )
    step = lambda r: losses.role_baseline_update(start, r, jnp.array(role), 0.9, mask).sum()
    assert jnp.isfinite(jax.grad(step)(garbage)).all()


def test_both_deviations_by_a_word():
    reward = np.random.default_rng(0).normal(size=(3, 4))
    for word, ddof in (("population", 0), ("sample", 1)):
        deviation = reward.std(-1, ddof=ddof, keepdims=True)
        expected = (reward - reward.mean(-1, keepdims=True)) / (deviation + 1e-6)
        ours = losses.group_relative(jnp.float32(reward), deviation=word)
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="biased"):
        losses.group_relative(jnp.float32(reward), deviation="biased")


def test_the_optimal_baseline_has_the_least_variance():
    """The gradient is a sum of independent token scores; other baselines are tried."""
    rng = np.random.default_rng(0)
    length, reward = rng.integers(1, 9, 200_000), rng.normal(size=200_000)
    reward += 0.5 * length  # longer answers earn more, so the plain mean is not the best
    score = rng.normal(size=200_000) * np.sqrt(length)
    ours = losses.optimal_baseline(jnp.float32(reward), jnp.array(length))
    baseline = float((reward - np.asarray(ours)).mean())
    assert np.isclose(baseline, (length * reward).sum() / length.sum(), rtol=1e-4)
    tried = np.linspace(baseline - 1, baseline + 1, 41)
    variances = [((reward - b) * score).var() for b in tried]
    assert abs(tried[int(np.argmin(variances))] - baseline) < 0.11
    assert abs(reward.mean() - baseline) > 0.3
