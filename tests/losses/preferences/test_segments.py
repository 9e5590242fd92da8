import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

CHOSEN_MASK = np.arange(5)[:, None] < np.array([5, 2, 0])
REJECTED_MASK = np.arange(4)[:, None] < np.array([1, 4, 2])
MASKS = {"chosen_mask": CHOSEN_MASK, "rejected_mask": REJECTED_MASK}
TOKENS = ("log_prob", "reference_log_prob", "token_reward")


def segments(rng, *names, sign=1.0):
    return {
        f"{side}_{name}": sign * rng.uniform(0.5, 2, (steps, 3))
        for side, steps in (("chosen", 5), ("rejected", 4))
        for name in names
    } | MASKS


def names(*ends):
    return tuple(f"{side}_{end}" for side in ("chosen", "rejected") for end in ends)


def hide(x):
    """Put NaN where the masks are false."""
    return {
        k: np.where(x[k.split("_")[0] + "_mask"], v, np.nan) if v.dtype == float else v
        for k, v in x.items()
    }


CASES = [
    Case(
        losses.cpl,
        lambda rng: (
            segments(rng, "log_prob", sign=-1) | {"temperature": 0.5, "discount": 0.9, "bias": 0.5}
        ),
        gradient=names("log_prob"),
        time=names("log_prob", "mask"),
        extremes=lambda rng: [
            {"chosen_log_prob": np.full((5, 3), -500.0)},
            {"rejected_log_prob": np.full((4, 3), -500.0)},
            {"chosen_mask": np.zeros((5, 3), bool)},
            hide(segments(rng, "log_prob")),
        ],
    ),
    Case(
        losses.direct_pref_po,
        lambda rng: segments(rng, "distance") | {"temperature": 0.5, "bias": 0.5},
        gradient=names("distance"),
        time=names("distance", "mask"),
        extremes=lambda rng: [
            {"chosen_distance": np.full((5, 3), 1e6)},
            {"chosen_mask": np.zeros((5, 3), bool)},
            hide(segments(rng, "distance")),
        ],
    ),
    Case(
        losses.t_reg,
        lambda rng: segments(rng, *TOKENS, sign=-1) | {"beta": 0.5, "weight": 0.25},
        surrogate=names("log_prob"),
        stopped=names("reference_log_prob", "token_reward"),
        time=names(*TOKENS, "mask"),
        extremes=lambda rng: [
            {"chosen_log_prob": np.full((5, 3), -500.0)},
            hide(segments(rng, *TOKENS)),
        ],
    ),
]
test_contract = contract(CASES)


def test_cpl_by_hand():
    x = segments(np.random.default_rng(0), "log_prob", sign=-1)
    for column in range(3):
        score = [
            0.5 * sum(0.9**t * x[f"{side}_log_prob"][t, column] for t in range(steps))
            for side, steps in (("chosen", (5, 2, 0)[column]), ("rejected", (1, 4, 2)[column]))
        ]
        expected = -score[0] + np.log(np.exp(score[0]) + np.exp(0.7 * score[1]))
        ours = losses.cpl(**hide(x), temperature=0.5, discount=0.9, bias=0.7)
        np.testing.assert_allclose(ours[column], expected, rtol=1e-5)


def test_cpl_of_single_steps_is_dpo_with_a_uniform_reference():
    chosen, rejected = -np.random.default_rng(0).uniform(0, 3, (2, 6))
    uniform = np.full(6, -np.log(4))
    np.testing.assert_allclose(
        losses.cpl(chosen[None], rejected[None], 0.3),
        losses.dpo(chosen, rejected, uniform, uniform, 0.3),
        rtol=1e-5,
    )


@pytest.mark.slow
def test_cpl_recovers_the_maximum_entropy_policy():
    """Labels by the optimal advantages of a bandit, which are temperature * log pi."""
    logits = jnp.array([0.5, -1.0, 1.0])
    best = jax.nn.log_softmax(logits)
    i, j = np.array(list(itertools.permutations(range(3), 2))).T
    weight = jax.nn.sigmoid(0.5 * (best[i] - best[j]))

    def loss(logits):
        policy = jax.nn.log_softmax(logits)
        return (weight * losses.cpl(policy[i][None], policy[j][None], 0.5)).sum()

    np.testing.assert_allclose(jax.grad(loss)(logits), 0, atol=1e-6)
    assert abs(jax.grad(loss)(2 * logits)).max() > 1e-2


def test_a_bias_favors_policies_that_stay_on_the_data():
    """A policy likelier by the same amount on both segments is better only with a bias below 1."""
    chosen, rejected, shift = -2 * jnp.ones(3), -3 * jnp.ones(3), 0.5
    before = losses.cpl(chosen, rejected, 1.0)
    np.testing.assert_allclose(losses.cpl(chosen + shift, rejected + shift, 1.0), before)
    nearer = losses.cpl(chosen + shift, rejected + shift, 1.0, bias=0.5)
    assert nearer < losses.cpl(chosen, rejected, 1.0, bias=0.5)


def test_direct_preferences_by_hand():
    x = segments(np.random.default_rng(0), "distance")
    distance = [
        np.array([x[f"{side}_distance"][:steps, k].mean() for k, steps in enumerate(lengths)])
        for side, lengths in (("chosen", (5, 2)), ("rejected", (1, 4)))
    ]
    near, far = np.exp(-distance[0] / 0.3), np.exp(-0.5 * distance[1] / 0.3)
    ours = losses.direct_pref_po(**hide(x), temperature=0.3, bias=0.5)
    np.testing.assert_allclose(ours[:2], -np.log(near / (near + far)), rtol=1e-5)
    closer = losses.direct_pref_po(x["chosen_distance"] * 0.9, x["rejected_distance"])
    assert (closer < losses.direct_pref_po(x["chosen_distance"], x["rejected_distance"])).all()


@pytest.mark.slow
def test_t_reg_is_dpo_plus_a_weighted_likelihood_of_tokens():
    x = segments(np.random.default_rng(0), *TOKENS, sign=-1)
    sums = [
        np.where(x[f"{side}_mask"], x[f"{side}_{name}"], 0).sum(0)
        for name in TOKENS[:2]
        for side in ("chosen", "rejected")
    ]
    plain = losses.dpo(*sums, 0.5)
    np.testing.assert_allclose(losses.t_reg(**x, beta=0.5, weight=0.0), plain, rtol=1e-5)

    def loss(log_prob, weight):
        inputs = {**x, "chosen_log_prob": log_prob}
        return losses.t_reg(**inputs, beta=0.5, weight=weight).sum()

    extra = jax.grad(loss)(x["chosen_log_prob"], 0.25) - jax.grad(loss)(x["chosen_log_prob"], 0.0)
    wrong = 1 / (1 + np.exp(0.5 * (sums[0] - sums[2] - sums[1] + sums[3])))
    expected = -0.25 * wrong * 0.5 * x["chosen_token_reward"] * CHOSEN_MASK
    np.testing.assert_allclose(extra, expected, rtol=1e-4, atol=1e-6)
    assert (extra[0, :2] > 0).all()  # token rewards are negative here, so these tokens become rarer
