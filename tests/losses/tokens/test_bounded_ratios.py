import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract
from tests.losses.tokens.test_policies import LENGTHS, MASK, G, T, far, two

CASES = [
    Case(
        losses.cispo,
        lambda rng: {**two(rng), "clip_low": 1.0, "clip_high": 0.3},
        surrogate=("log_prob",),
        stopped=("old_log_prob", "advantage"),
        time=("log_prob", "old_log_prob"),
        extremes=far,
    ),
    Case(
        losses.gmpo,
        lambda rng: {**two(rng), "clip_low": 0.4, "clip_high": 0.3, "mask": MASK},
        gradient=("log_prob",),
        stopped=("old_log_prob", "advantage"),
        time=("log_prob", "old_log_prob", "mask"),
        extremes=lambda rng: [
            *far(rng),
            {"log_prob": np.where(MASK, -1.0, np.nan)},
            {"old_log_prob": np.where(MASK, -1.0, -np.inf)},
        ],
    ),
    Case(
        losses.sapo,
        lambda rng: {**two(rng), "temperature": 1.0, "negative_temperature": 1.05},
        gradient=("log_prob",),
        stopped=("old_log_prob", "advantage"),
        time=("log_prob", "old_log_prob"),
        extremes=far,
    ),
]
test_contract = contract(CASES)


def draw():
    rng = np.random.default_rng(0)
    p, old = -rng.uniform(0.2, 1.8, (2, T, G))
    return p, old, np.array([1.0, -0.5, 2.0, -3.0])


def test_cispo_weighs_all_tokens_by_the_clipped_ratio():
    p, old, advantage = draw()
    given = tuple(map(jnp.float32, (p, old, advantage)))
    weight = np.clip(np.exp(p - old), 0.6, 1.3)
    assert (weight == 1.3).any() and (weight == 0.6).any()
    np.testing.assert_allclose(losses.cispo(*given, 0.4, 0.3), -weight * advantage * p, rtol=1e-5)
    slope = jax.grad(lambda p: losses.cispo(p, *given[1:], 0.4, 0.3).sum())(given[0])
    np.testing.assert_allclose(slope, -weight * advantage, rtol=1e-5)


def test_gmpo_is_the_geometric_mean_of_clipped_ratios():
    p, old, advantage = draw()
    expected, slopes = [], np.zeros((T, G))
    for g, (n, a) in enumerate(zip(LENGTHS, advantage, strict=True)):
        ratios = [np.exp(x) for x in (p - old)[:n, g]]
        bound = min if a > 0 else max
        clipped = [bound(r, np.clip(r, np.exp(-0.4), np.exp(0.3))) for r in ratios]
        expected.append(-a * np.prod(clipped) ** (1 / max(n, 1)))
        slopes[:n, g] = [expected[-1] / n * (c == r) for c, r in zip(clipped, ratios, strict=True)]
    given = [jnp.float32(x) for x in (np.where(MASK, p, np.nan), old, advantage)]
    rest = 0.4, 0.3, jnp.array(MASK)
    np.testing.assert_allclose(losses.gmpo(*given, *rest), expected, rtol=1e-5)
    ours = jax.grad(lambda p: losses.gmpo(p, *given[1:], *rest).sum())(given[0])
    np.testing.assert_allclose(ours, slopes, rtol=1e-4, atol=1e-7)
    assert (slopes[MASK] == 0).any()  # some tokens are clipped


def test_sapo_is_a_sigmoid_of_the_ratio():
    p, old, advantage = draw()
    tau = np.where(advantage > 0, 1.0, 1.5)
    gate = 4 / tau / (1 + np.exp(-tau * (np.exp(p - old) - 1)))
    ours = losses.sapo(*map(jnp.float32, (p, old, advantage)), 1.0, 1.5)
    np.testing.assert_allclose(ours, -gate * advantage, rtol=1e-5)


@pytest.mark.parametrize("name", ["cispo", "sapo", "gmpo"])
def test_on_policy_they_have_the_policy_gradient(name):
    _, old, advantage = draw()
    loss = {
        "cispo": lambda p: losses.cispo(p, p, advantage, 1.0, 0.3),
        "sapo": lambda p: losses.sapo(p, jax.lax.stop_gradient(p), advantage),
        "gmpo": lambda p: T * losses.gmpo(p, jax.lax.stop_gradient(p), advantage, 0.4, 0.4),
    }[name]
    slope = jax.grad(lambda p: loss(p).sum())(jnp.float32(old))
    np.testing.assert_allclose(slope, np.broadcast_to(-advantage, (T, G)), rtol=1e-5)
