import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def pair(rng):
    return {"chosen_reward": rng.normal(size=6), "rejected_reward": rng.normal(size=6)}


def segments(rng):
    return {
        "reward": rng.normal(size=(5, 3)),
        "other_reward": rng.normal(size=(4, 3)),
        "lapse": 0.1,
        "mask": np.arange(5)[:, None] < np.array([5, 2, 0]),
        "other_mask": np.arange(4)[:, None] < np.array([1, 4, 0]),
    }


def ensemble(rng):
    return {"nominal_reward": rng.normal(size=4), "reward": rng.normal(size=(4, 3)), "weight": 0.3}


def person(rng):
    return {
        "chosen_reward": rng.normal(size=(2, 5)),
        "rejected_reward": rng.normal(size=(2, 5)),
        "mean": rng.normal(size=(2, 3)),
        "scale": rng.uniform(0.5, 1.5, (2, 3)),
        "beta": 0.5,
        "mask": np.arange(5) < np.array([[5], [3]]),
    }


def factors(rng):
    return {
        "factors": rng.normal(size=(6, 3)),
        "other_factors": rng.normal(size=(6, 3)),
        "margin": np.array([1.0, 0.5, 0.1]),
    }


NAN_TAIL = np.array([[0.3, np.nan, np.nan, np.nan], [1.0, 2.0, 3.0, np.nan]])
CASES = [
    Case(
        losses.bradley_terry,
        lambda rng: {**pair(rng), "margin": rng.uniform(size=6), "label_smoothing": 0.1},
        gradient=("chosen_reward", "rejected_reward", "margin"),
        extremes=lambda rng: [
            {"chosen_reward": np.full(6, 1e6)},
            {"rejected_reward": np.full(6, 1e6)},
        ],
    ),
    Case(
        losses.segment_preference,
        segments,
        gradient=("reward", "other_reward"),
        time=("reward", "mask", "other_reward", "other_mask"),
        extremes=lambda rng: [{"reward": np.full((5, 3), 1e6)}],
    ),
    Case(
        losses.plackett_luce,
        lambda rng: {
            "reward": rng.normal(size=(3, 4)),
            "mask": np.arange(4) < np.array([[4], [2], [3]]),
        },
        gradient=("reward",),
        extremes=lambda rng: [
            {"reward": 1e6 * rng.normal(size=(3, 4))},
            {"mask": np.zeros((3, 4), bool)},
            {"reward": NAN_TAIL, "mask": ~np.isnan(NAN_TAIL)},
            {"reward": np.zeros((3, 1)), "mask": None},
        ],
    ),
    Case(
        losses.uncertainty_weighted_reward,
        lambda rng: {"reward": rng.normal(size=(4, 3)), "penalty": 0.5},
        gradient=("reward",),
        extremes=lambda rng: [{"reward": np.full((4, 3), 1e6)}, {"reward": np.zeros((4, 1))}],
    ),
    Case(
        losses.robust_reward,
        ensemble,
        gradient=("nominal_reward", "reward"),
        extremes=lambda rng: [{"reward": np.zeros((4, 3))}],
    ),
    Case(
        losses.reward_smoothness,
        lambda rng: {
            "reward": rng.normal(size=(6, 2)),
            "mask": np.array([[1, 1, 1, 0, 1, 1], [1, 0, 1, 0, 1, 0]]).T.astype(bool),
        },
        gradient=("reward",),
        time=("reward", "mask"),
        extremes=lambda rng: [{"mask": np.zeros((6, 2), bool)}],
    ),
    Case(
        losses.variational_preference,
        person,
        gradient=("chosen_reward", "rejected_reward", "mean", "scale"),
        extremes=lambda rng: [
            {"chosen_reward": np.full((2, 5), -1e6)},
            {"scale": np.full((2, 3), 1e-6)},
            {"chosen_reward": np.full((2, 5), np.nan), "mask": np.zeros((2, 5), bool)},
        ],
    ),
    Case(
        losses.hierarchical_preference,
        factors,
        stopped=("factors", "other_factors", "margin"),
        extremes=lambda rng: [{"other_factors": np.full((6, 3), 1e6)}],
    ),
    Case(
        losses.win_rate,
        lambda rng: {
            "preference": rng.uniform(size=(2, 4, 4)),
            "mask": np.arange(4) < np.array([[4], [2]]),
        },
        gradient=("preference",),
        extremes=lambda rng: [
            {"preference": np.full((2, 4, 4), np.nan), "mask": np.zeros((2, 4), bool)},
            {"preference": np.zeros((2, 1, 1)), "mask": None},
        ],
    ),
    Case(losses.best_of_n_kl, lambda rng: {"n": rng.uniform(1, 512, 5)}, gradient=("n",)),
]
test_contract = contract(CASES)


def test_bradley_terry_fits_the_rewards_that_made_the_labels():
    """The gradient with the true probabilities as soft labels is 0 at the true rewards."""
    reward = jnp.array([0.3, -1.0, 2.0])
    i, j = np.array(list(itertools.permutations(range(3), 2))).T
    wrong = jax.nn.sigmoid(reward[j] - reward[i])

    def loss(x):
        return losses.bradley_terry(x[i], x[j], label_smoothing=wrong).sum()

    np.testing.assert_allclose(jax.grad(loss)(reward), 0, atol=1e-6)
    assert loss(reward + jnp.array([0.1, 0, 0])) > loss(reward)


def test_a_tie_pulls_together_and_a_margin_apart():
    grad = jax.grad(losses.bradley_terry)
    assert grad(2.0, 0.0, 0.0, 0.5) > 0 and grad(-2.0, 0.0, 0.0, 0.5) < 0
    np.testing.assert_allclose(grad(1.0, 1.0, 0.0, 0.5), 0, atol=1e-7)
    np.testing.assert_allclose(losses.bradley_terry(3.0, 1.0, 2.0), np.log(2), rtol=1e-6)


def test_segments_are_compared_by_the_sums_of_their_steps():
    x = segments(np.random.default_rng(0))
    a = np.where(x["mask"], x["reward"], 0).sum(0)
    b = np.where(x["other_mask"], x["other_reward"], 0).sum(0)
    expected = 0.9 * np.exp(a) / (np.exp(a) + np.exp(b)) + 0.05
    hidden = {**x, "reward": np.where(x["mask"], x["reward"], np.nan)}
    np.testing.assert_allclose(losses.segment_preference(**hidden), expected, rtol=1e-5)


def test_plackett_luce_is_a_distribution_over_orders():
    reward = np.array([0.5, -1.0, 2.0])
    orders = [list(order) for order in itertools.permutations(range(3))]
    nll = losses.plackett_luce(jnp.float32(reward[orders]))
    np.testing.assert_allclose(np.exp(-nll).sum(), 1, rtol=1e-5)
    weights = np.exp(reward[orders])
    by_hand = (weights[:, 0] / weights.sum(1)) * (weights[:, 1] / weights[:, 1:].sum(1))
    np.testing.assert_allclose(np.exp(-nll), by_hand, rtol=1e-5)


def test_two_items_or_two_that_count_are_bradley_terry():
    reward = jnp.array([0.7, -0.4, 9.0])
    pair = losses.bradley_terry(reward[0], reward[1])
    np.testing.assert_allclose(losses.plackett_luce(reward[:2]), pair, rtol=1e-6)
    mask = jnp.array([True, True, False])
    np.testing.assert_allclose(losses.plackett_luce(reward, mask), pair, rtol=1e-6)
    gap = losses.plackett_luce(jnp.array([0.7, 9.0, -0.4]), jnp.array([True, False, True]))
    np.testing.assert_allclose(gap, pair, rtol=1e-6)


def test_ensembles_are_conservative():
    reward = jnp.array([1.0, 3.0, 5.0])
    np.testing.assert_allclose(losses.uncertainty_weighted_reward(reward, 0.5), 3 - 0.5 * 8 / 3)
    np.testing.assert_allclose(losses.robust_reward(jnp.array(4.0), reward, 0.25), 1 + 0.75)
    assert losses.robust_reward(jnp.array(4.0), reward, 0.0) == 1


def test_smoothness_counts_neighbors_only():
    reward = jnp.array([1.0, 3.0, np.nan, 4.0, 4.5])
    mask = jnp.array([True, True, False, True, True])
    np.testing.assert_allclose(losses.reward_smoothness(reward, mask), (4 + 0.25) / 2)
    np.testing.assert_allclose(jax.grad(losses.reward_smoothness)(reward, mask)[2], 0)


def test_variational_preference_is_the_negative_elbo():
    x = person(np.random.default_rng(0))
    nll = -np.log(1 / (1 + np.exp(x["rejected_reward"] - x["chosen_reward"])))
    s, m = x["scale"], x["mean"]
    divergence = (0.5 * (s**2 + m**2 - 1) - np.log(s)).sum(-1)
    expected = np.where(x["mask"], nll, 0).sum(-1) + 0.5 * divergence
    np.testing.assert_allclose(losses.variational_preference(**x), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "label"),
    [
        ([0, 0, 9], [0.5, 0, 0], 1),
        ([2, 0, 0], [0, 9, 9], 1),
        ([0, 0, 0], [0.9, 0.6, 0], 0),
        ([0.5, 0.1, 0], [0, 0, 0], 0.5),
    ],
)
def test_the_first_factor_that_differs_decides(a, b, label):
    margin = jnp.array([1.0, 0.5, 0.1])
    a, b = jnp.float32(a), jnp.float32(b)
    assert losses.hierarchical_preference(a, b, margin) == label
    assert losses.hierarchical_preference(b, a, margin) == 1 - label


def test_win_rate_is_the_share_of_the_others_beaten():
    preference = jnp.array([[0.9, 1.0, 0.5], [0.0, 0.9, 1.0], [0.5, 0.0, 0.9]])
    np.testing.assert_allclose(losses.win_rate(preference), [0.75, 0.5, 0.25])
    mask = jnp.array([True, False, True])
    np.testing.assert_allclose(losses.win_rate(preference, mask), [0.5, 0, 0.5])


def test_best_of_n_divergence_is_that_of_the_density_of_the_best():
    """The best of n has density n u^(n-1) in the rank u of the policy's samples."""
    u = (np.arange(200_000) + 0.5) / 200_000
    for n in (1, 2, 8):
        density = n * u ** (n - 1)
        np.testing.assert_allclose(
            losses.best_of_n_kl(n), (density * np.log(density)).mean(), atol=1e-4
        )
