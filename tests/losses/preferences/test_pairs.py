import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

PAIR = ("chosen_log_prob", "rejected_log_prob")
FROZEN = ("chosen_reference_log_prob", "rejected_reference_log_prob")


def pairs(rng, *more):
    x = {name: -rng.uniform(1, 3, 5) for name in (*PAIR, *FROZEN)}
    return {**x, **{name: rng.normal(size=5) for name in more}, "beta": 0.5}


def far(rng):
    low = np.full(5, -500.0)
    return [{"chosen_log_prob": low}, {"rejected_log_prob": low}, {FROZEN[0]: low}]


def candidates(rng):
    return {
        "log_prob": -rng.uniform(1, 9, (3, 4)),
        "length": rng.integers(1, 6, (3, 4)),
        "reward": np.array([[1.0, 0.2, 3.0, 2.0], [0.5, 1.5, 9.0, 9.0], [1.0, 1.0, 0.0, 2.0]]),
        "mask": np.arange(4) < np.array([[4], [2], [4]]),
    }


ORPO = {"chosen_log_prob": np.array([0.0, -500, -1e-9]), "rejected_log_prob": np.zeros(3)}
CASES = [
    Case(
        losses.implicit_reward,
        lambda rng: (
            {"log_prob": -rng.uniform(1, 2, 5), "reference_log_prob": -rng.uniform(1, 2, 5)}
            | {"beta": 0.1}
        ),
        gradient=("log_prob",),
        stopped=("reference_log_prob",),
    ),
    Case(losses.dpo, pairs, gradient=PAIR, stopped=FROZEN, extremes=far),
    Case(losses.ipo, pairs, gradient=PAIR, stopped=FROZEN, extremes=far),
    Case(
        losses.kto,
        lambda rng: {
            "log_prob": -rng.uniform(1, 2, 6),
            "reference_log_prob": -rng.uniform(1, 2, 6),
            "desirable": np.array([1, 0, 1, 0, 1, 0], bool),
            "kl": np.array(0.2),
            "beta": 0.5,
        },
        gradient=("log_prob",),
        stopped=("reference_log_prob", "kl"),
        extremes=lambda rng: [{"log_prob": np.full(6, -500.0)}, {"kl": np.array(-1e6)}],
    ),
    Case(
        losses.orpo,
        lambda rng: {name: -rng.uniform(0.2, 2, 5) for name in PAIR} | {"beta": 0.5},
        gradient=PAIR,
        extremes=lambda rng: [ORPO, {name: ORPO[PAIR[1 - i]] for i, name in enumerate(PAIR)}],
    ),
    Case(
        losses.slic,
        lambda rng: {name: -rng.uniform(1, 2, 5) for name in PAIR} | {"margin": 2.0},
        gradient=PAIR,
        extremes=lambda rng: [{"chosen_log_prob": np.full(5, -500.0)}],
    ),
    Case(
        losses.rrhf,
        candidates,
        gradient=("log_prob",),
        stopped=("reward",),
        extremes=lambda rng: [
            {"mask": np.zeros((3, 4), bool)},
            {"reward": np.ones((3, 4))},
            {"log_prob": np.full((3, 4), -500.0)},
            {"length": np.zeros((3, 4), int)},
            {"log_prob": np.where(candidates(rng)["mask"], -1.0, np.nan)},
        ],
    ),
    Case(
        losses.step_apo,
        lambda rng: pairs(rng, "chosen_value", "rejected_value"),
        gradient=PAIR,
        stopped=(*FROZEN, "chosen_value", "rejected_value"),
        extremes=lambda rng: [*far(rng), {"chosen_value": np.full(5, 1e6)}],
    ),
    Case(
        losses.aco,
        lambda rng: pairs(rng, "chosen_advantage", "rejected_advantage"),
        gradient=PAIR,
        stopped=(*FROZEN, "chosen_advantage", "rejected_advantage"),
        extremes=lambda rng: [
            *far(rng),
            {"chosen_advantage": np.full(5, 1e6)},
            {"rejected_advantage": np.full(5, 1e6)},
        ],
    ),
    Case(
        losses.seppo,
        lambda rng: {k.replace("rejected", "sample"): v for k, v in pairs(rng).items()},
        gradient=("chosen_log_prob", "sample_log_prob"),
        stopped=("chosen_reference_log_prob", "sample_reference_log_prob"),
        extremes=lambda rng: [{"chosen_log_prob": np.full(5, -500.0)}],
    ),
]
test_contract = contract(CASES)

REFERENCE = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1]))
REWARD = jnp.array([0.5, -0.2, 1.0, 0.0])
FIRST, SECOND = np.array(list(itertools.permutations(range(4), 2))).T


def of_pairs(logits):
    """Return the four log-probabilities of all ordered pairs, the first answer chosen."""
    policy = jax.nn.log_softmax(logits)
    return policy[FIRST], policy[SECOND], REFERENCE[FIRST], REFERENCE[SECOND]


def optimum(beta):
    return jax.nn.log_softmax(REFERENCE + REWARD / beta)


def test_dpo_recovers_the_optimal_policy_of_the_reward_behind_the_labels():
    """Infinitely many Bradley-Terry labels: both orders of a pair, weighted by probability."""
    weight = jax.nn.sigmoid(REWARD[FIRST] - REWARD[SECOND])

    @jax.jit
    @jax.grad
    def gradient(logits):
        return (weight * losses.dpo(*of_pairs(logits), 0.5)).sum()

    logits = jnp.zeros(4)
    for _ in range(300):
        logits = logits - 4 * gradient(logits)
    np.testing.assert_allclose(jax.nn.log_softmax(logits), optimum(0.5), atol=1e-3)


def test_the_gradient_of_dpo_weighs_pairs_by_how_wrong_the_implicit_reward_is():
    x = pairs(np.random.default_rng(0))
    reward = [0.5 * (x[a] - x[b]) for a, b in zip(PAIR, FROZEN, strict=True)]
    wrong = 1 / (1 + np.exp(reward[0] - reward[1]))

    def loss(*log_probs):
        return losses.dpo(*log_probs, x[FROZEN[0]], x[FROZEN[1]], 0.5).sum()

    chosen, rejected = jax.grad(loss, (0, 1))(x[PAIR[0]], x[PAIR[1]])
    np.testing.assert_allclose(chosen, -0.5 * wrong, rtol=1e-5)
    np.testing.assert_allclose(rejected, 0.5 * wrong, rtol=1e-5)


def test_ipo_reaches_its_closed_form_even_with_certain_labels():
    """One pair, always labeled the same: the log-ratio difference is 1 / (2 beta), not infinite."""
    beta, reference = 0.3, jnp.log(jnp.array([0.5, 0.5]))

    @jax.jit
    @jax.grad
    def gradient(logits):
        p = jax.nn.log_softmax(logits)
        return losses.ipo(p[0], p[1], reference[0], reference[1], beta)

    logits = jnp.zeros(2)
    for _ in range(50):
        logits = logits - 0.1 * gradient(logits)
    np.testing.assert_allclose(logits[0] - logits[1], 1 / (2 * beta), rtol=1e-4)


def test_ipo_maximizes_the_win_rate_minus_the_divergence():
    """The optimum over uniformly sampled pairs is pi_ref exp(E_y'[P(y > y')] / beta) / Z."""
    wins = jax.nn.sigmoid(REWARD[:, None] - REWARD[None, :])
    best = jax.nn.log_softmax(REFERENCE + wins.mean(1) / 0.4)

    def loss(logits):
        return (wins[FIRST, SECOND] * losses.ipo(*of_pairs(logits), 0.4)).sum()

    np.testing.assert_allclose(jax.grad(loss)(best), 0, atol=1e-5)


def test_kto_by_hand():
    log_ratio, kl, beta = np.array([0.7, 0.7]), 0.2, 0.5
    expected = [2 * (1 - 1 / (1 + np.exp(-0.25))), 3 * (1 - 1 / (1 + np.exp(0.25)))]
    ours = losses.kto(
        jnp.float32(log_ratio) - 1, -jnp.ones(2), jnp.array([True, False]), kl, beta, 2.0, 3.0
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    unanchored = losses.kto(jnp.float32(0.7), jnp.float32(0), jnp.array(True), -5.0, beta)
    np.testing.assert_allclose(unanchored, 1 / (1 + np.exp(0.35)), rtol=1e-5)


def test_odds_ratio_by_hand():
    p, q = 0.6, 0.2
    ratio = (p / (1 - p)) / (q / (1 - q))
    expected = -np.log(p) - 0.3 * np.log(ratio / (1 + ratio))
    ours = losses.orpo(jnp.log(p), jnp.log(q), 0.3)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_slic_is_a_hinge():
    chosen, rejected = jnp.array([-1.0, -3.0]), jnp.array([-3.0, -1.0])
    np.testing.assert_allclose(losses.slic(chosen, rejected, 1.0), [0, 3])


def test_rrhf_by_hand():
    x = candidates(np.random.default_rng(0))
    expected = []
    for log_prob, length, reward, mask in zip(*x.values(), strict=True):
        there = [k for k in range(4) if mask[k]]
        p = log_prob / length
        rank = sum(max(0, p[i] - p[j]) for i in there for j in there if reward[i] < reward[j])
        expected.append(rank - log_prob[max(there, key=lambda k: reward[k])])
    np.testing.assert_allclose(losses.rrhf(**x), expected, rtol=1e-5)


def test_step_apo_is_at_rest_where_the_implicit_reward_is_the_advantage():
    """Labels by rewards, with values such that r + V(next) - V = beta log ratio."""
    value = jnp.array([0.3, 1.0, -0.5, 0.1])
    best = jax.nn.log_softmax(REFERENCE + (REWARD + value) / 0.5)
    weight = jax.nn.sigmoid(REWARD[FIRST] - REWARD[SECOND])

    def loss(logits):
        return (weight * losses.step_apo(*of_pairs(logits), value[FIRST], value[SECOND], 0.5)).sum()

    np.testing.assert_allclose(jax.grad(loss)(best), 0, atol=1e-6)


def test_aco_is_dpo_unless_the_rejected_one_has_the_higher_advantage():
    x = pairs(np.random.default_rng(0))
    low, high = np.zeros(5), np.full(5, 2.0)
    same = losses.aco(**x, chosen_advantage=high, rejected_advantage=low)
    np.testing.assert_allclose(same, losses.dpo(**x), rtol=1e-6)
    relaxed = losses.aco(**x, chosen_advantage=low, rejected_advantage=high, temperature=4.0)
    chosen, rejected = (0.5 * (x[a] - x[b]) for a, b in zip(PAIR, FROZEN, strict=True))
    expected = np.log1p(np.exp(np.exp(-0.5) * rejected - chosen))
    np.testing.assert_allclose(relaxed, expected, rtol=1e-5)


@pytest.mark.parametrize("nearer", [True, False])
def test_seppo_counts_the_sample_as_good_while_the_reference_is_nearer(nearer):
    """The sample's likelihood also rises if the policy is behind on the good sequence."""
    good = jnp.array(-1.0 if nearer else -3.0)
    grad = jax.grad(losses.seppo, (0, 1))(good, jnp.array(-2.0), jnp.array(-2.0), -2.5, 0.5)
    assert grad[0] < 0
    assert (grad[1] > 0) == nearer
    if nearer:
        ours = losses.seppo(good, -2.0, -2.0, -2.5, 0.5)
        np.testing.assert_allclose(ours, losses.dpo(good, -2.0, -2.0, -2.5, 0.5), rtol=1e-6)
