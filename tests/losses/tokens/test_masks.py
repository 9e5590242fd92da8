import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

T, G = 6, 4
MASK = np.arange(T)[:, None] < np.array([6, 4, 1, 0])


def tokens(rng):
    return {
        "log_prob": -rng.uniform(0.5, 1.5, (T, G)),
        "advantage": rng.normal(size=G),
        "mask": MASK,
    }


def garbage(rng):
    return [
        {"log_prob": np.where(MASK, -1.0, np.nan)},
        {"mask": np.zeros((T, G), bool)},
        {"log_prob": np.full((T, G), -500.0)},
        {"advantage": np.array([1e6, -1e6, 0, 1])},
    ]


CASES = [
    Case(
        losses.critical_token_weight,
        lambda rng: {"reference_logits": rng.normal(size=(T, 8)), "exponent": 2.0},
        stopped=("reference_logits",),
        time=("reference_logits",),
        extremes=lambda rng: [
            {"reference_logits": np.zeros((T, 8))},
            {"reference_logits": np.where(np.arange(8) < 1, 0.0, -np.inf) * np.ones((T, 1))},
            {"reference_logits": np.zeros((T, 1)), "exponent": 0.0},
        ],
    ),
    Case(
        losses.token_covariance,
        tokens,
        gradient=("log_prob", "advantage"),
        time=("log_prob", "mask"),
        extremes=garbage,
    ),
    Case(
        losses.covariance_clip_mask,
        lambda rng: {
            "log_prob": -rng.integers(0, 9, (T, G)),
            "advantage": rng.integers(-3, 4, G),
            "noise": rng.permutation(T * G).reshape(T, G),
            "share": 0.2,
            "low": 1.0,
            "high": 5.0,
            "mask": MASK,
            "eligible_mask": rng.random((T, G)) < 0.7,
        },
        time=("log_prob", "noise", "mask", "eligible_mask"),
    ),
    Case(
        losses.kl_cov,
        lambda rng: {
            **tokens(rng),
            "old_log_prob": -rng.uniform(0.5, 1.5, (T, G)),
            "share": 0.3,
            "beta": 0.5,
        },
        gradient=("log_prob",),
        stopped=("old_log_prob", "advantage"),
        time=("log_prob", "old_log_prob", "mask"),
        extremes=lambda rng: [*garbage(rng), {"old_log_prob": np.full((T, G), -500.0)}],
    ),
    Case(losses.nlpo_mask, lambda rng: {"logits": rng.integers(-2, 3, (T, 8)), "top_p": 0.8}),
]
test_contract = contract(CASES)


def test_only_certain_tokens_are_held():
    prob = np.array([[0.25] * 4, [0.7, 0.1, 0.1, 0.1], [1.0, 0, 0, 0]])
    ours = losses.critical_token_weight(jnp.log(jnp.float32(prob)), 3.0)
    certainty = 1 - scipy.stats.entropy(prob, axis=-1) / np.log(4)
    np.testing.assert_allclose(ours, certainty**3, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(losses.critical_token_weight(jnp.log(jnp.float32(prob)), 0.0), 1)


@pytest.mark.slow
def test_the_covariances_mean_is_the_covariance():
    rng = np.random.default_rng(0)
    x = tokens(rng)
    p, a = x["log_prob"][MASK], np.broadcast_to(x["advantage"], (T, G))[MASK]
    log_prob = jnp.where(MASK, jnp.float32(x["log_prob"]), jnp.nan)
    ours = losses.token_covariance(log_prob, jnp.float32(x["advantage"]), jnp.array(MASK))
    expected = (p - p.mean()) * (a - a.mean())
    np.testing.assert_allclose(ours[MASK], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        losses.masked_mean(ours, jnp.array(MASK)), np.cov(p, a, bias=True)[0, 1], rtol=1e-4
    )
    assert (ours[~MASK] == 0).all()


def test_the_covariance_is_how_the_entropy_falls():
    """A natural policy gradient step changes a softmax policy's entropy by -cov(log p, A)."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        logits, advantage = jnp.array(rng.normal(size=(2, 5)))
        step = 1e-5
        change = losses.categorical_entropy(logits + step * advantage) - (
            losses.categorical_entropy(logits)
        )
        p, log_prob = jax.nn.softmax(logits), jax.nn.log_softmax(logits)
        covariance = (p * (log_prob - p @ log_prob) * (advantage - p @ advantage)).sum()
        np.testing.assert_allclose(change / step, -covariance, rtol=1e-3)


@pytest.mark.slow
def test_some_of_the_costly_tokens_lose_their_gradient():
    rng = np.random.default_rng(0)
    x = {k: jnp.asarray(v) for k, v in tokens(rng).items()}
    noise = jnp.asarray(rng.random((T, G)))
    covariance = np.array(losses.token_covariance(**x))
    low, high = -0.13, 0.1
    eligible = MASK & (covariance > low) & (covariance < high)
    assert eligible.sum() == 4 and (MASK & (covariance >= high)).sum() == 3
    x["log_prob"] = jnp.where(MASK, x["log_prob"], jnp.nan)
    for share, number in ((0.2, 2), (0.0, 1), (1.0, eligible.sum())):  # of 11 tokens
        kept = np.array(
            losses.covariance_clip_mask(**x, noise=noise, share=share, low=low, high=high)
        )
        lost = MASK & ~kept
        assert lost.sum() == number and (lost <= eligible).all() and (kept <= MASK).all()
        assert noise[lost].max() <= min([np.inf, *noise[eligible & ~lost]])
    few = jnp.asarray(eligible & (np.cumsum(eligible).reshape(T, G) % 2 == 0))
    x |= {"noise": noise, "eligible_mask": few}  # of as many tokens, with the same covariances
    kept = np.array(losses.covariance_clip_mask(**x, share=1.0, low=low, high=high))
    np.testing.assert_array_equal(MASK & ~kept, few)
    none = losses.covariance_clip_mask(**x, share=0.5, low=1e3, high=1e4)
    assert (none == MASK).all()


@pytest.mark.parametrize("share,number", [(0.2, 2), (0.01, 1), (1.0, 11)])
def test_kl_cov(share, number):
    rng = np.random.default_rng(0)
    x = tokens(rng)
    old = -rng.uniform(0.5, 1.5, (T, G))
    p, a = x["log_prob"], np.broadcast_to(x["advantage"], (T, G))
    covariance = np.where(MASK, (p - p[MASK].mean()) * (a - a[MASK].mean()), -np.inf)
    held = np.isin(covariance, np.sort(covariance[MASK])[-number:]) & MASK
    expected = np.where(MASK, -np.exp(p - old) * a + 0.5 * held * np.abs(p - old), 0)
    ours = losses.kl_cov(
        jnp.float32(np.where(MASK, p, np.nan)),
        jnp.float32(old),
        jnp.float32(x["advantage"]),
        share,
        0.5,
        jnp.array(MASK),
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.floats(-5, 5), min_size=6, max_size=6), st.floats(0.05, 1.0))
def test_nlpo_keeps_the_smallest_set_that_is_likely_enough(logits, top_p):
    logits = jnp.float32(logits)
    kept = np.array(losses.nlpo_mask(logits, top_p))
    p = np.array(jax.nn.softmax(logits), np.float64)
    assert p[kept].sum() >= top_p - 1e-5
    assert p[kept].sum() - p[kept].min() < top_p + 1e-5
    assert kept.all() or p[kept].min() >= p[~kept].max()


def test_nlpo_never_keeps_the_impossible():
    logits = jnp.array([0.0, -jnp.inf, 1.0, -jnp.inf])
    assert losses.nlpo_mask(logits, 1.0).tolist() == [True, False, True, False]
    assert losses.nlpo_mask(logits, 0.1).tolist() == [False, False, True, False]
    many = jnp.append(jnp.zeros(12), -jnp.inf)  # their probabilities sum to slightly below 1
    assert losses.nlpo_mask(many, 1.0).tolist() == [True] * 12 + [False]
