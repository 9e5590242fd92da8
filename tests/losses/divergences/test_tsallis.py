import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract
from tests.losses.divergences.test_entropy_and_kl import CERTAIN, IMPOSSIBLE, two_logits
from tests.losses.divergences.test_f_divergences import EXTREMES

INDICES = (0.5, 1, 2.0)
CASES = [
    *(
        Case(
            losses.log_q,
            lambda rng, q=q: {"x": rng.uniform(0.2, 3, (5, 4)), "q": q},
            gradient=("x",),
            extremes=lambda rng: [{"x": np.full((5, 4), 1e30)}, {"x": np.full((5, 4), 1e-15)}],
            name=f"log_q {q}",
        )
        for q in INDICES
    ),
    *(
        Case(
            losses.exp_q,
            lambda rng, q=q: {"x": rng.uniform(-1.5, 0.5, (5, 4)), "q": q},
            gradient=("x",),
            extremes=lambda rng: [{"x": np.full((5, 4), -1e15)}, {"x": np.full((5, 4), -2.0)}],
            diverging=lambda rng: [{"x": np.full((5, 4), 100.0)}],
            name=f"exp_q {q}",
        )
        for q in INDICES
    ),
    *(
        Case(
            losses.tsallis_entropy,
            lambda rng, q=q: {"logits": rng.normal(size=(5, 4)), "q": q},
            gradient=("logits",),
            extremes=lambda rng: [
                {"logits": np.tile(IMPOSSIBLE, (5, 1))},
                {"logits": np.tile(CERTAIN, (5, 1))},
                {"logits": 1e4 * rng.normal(size=(5, 4))},
                {"logits": np.tile([0.0, -500, -80, 0], (5, 1))},
            ],
            name=f"tsallis_entropy {q}",
        )
        for q in INDICES
    ),
    *(
        Case(
            losses.tsallis_kl,
            lambda rng, q=q: {**two_logits(rng), "q": q},
            gradient=("logits", "other_logits"),
            extremes=lambda rng: EXTREMES[1:4],
            diverging=lambda rng: EXTREMES[:1],
            name=f"tsallis_kl {q}",
        )
        for q in INDICES
    ),
]
test_contract = contract(CASES)


def log_q(x, q):
    return np.log(x) if q == 1 else (x ** (1 - q) - 1) / (1 - q)


@pytest.mark.parametrize("q", [0.3, 0.5, 1, 1.5, 2.0, 3.0])
def test_definitions(q):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x = rng.uniform(0.1, 3, 20)
        np.testing.assert_allclose(losses.log_q(jnp.asarray(x), q), log_q(x, q), rtol=1e-9)
        inverse = losses.exp_q(losses.log_q(jnp.asarray(x), q), q)
        np.testing.assert_allclose(inverse, x, rtol=1e-9)
        p, r = rng.dirichlet([1.0] * 4, 2)
        entropy = losses.tsallis_entropy(jnp.log(p), q)
        np.testing.assert_allclose(entropy, (p * log_q(1 / p, q)).sum(), rtol=1e-9)
        divergence = losses.tsallis_kl(jnp.log(p), jnp.log(r), q)
        np.testing.assert_allclose(divergence, -(p * log_q(r / p, q)).sum(), rtol=1e-9)


def test_index_1_is_the_limit_and_index_2_is_known():
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        p, r = (jnp.asarray(x) for x in rng.normal(size=(2, 5, 4)))
        for f in (losses.tsallis_entropy, lambda p, q: losses.tsallis_kl(p, r, q)):
            np.testing.assert_allclose(f(p, 1 + 1e-7), f(p, 1), rtol=1e-5)
        prob = jax.nn.softmax(p)
        gini = 1 - jnp.square(prob).sum(-1)
        np.testing.assert_allclose(losses.tsallis_entropy(p, 2), gini, rtol=1e-9)
        np.testing.assert_allclose(losses.tsallis_kl(p, r, 2), losses.chi_square(p, r), rtol=1e-9)


def test_exp_q_is_0_below_its_threshold_and_infinite_from_its_pole():
    assert losses.exp_q(jnp.float32(-3), 0.5) == 0
    assert losses.exp_q(jnp.float32(1), 2.0) == jnp.inf


def test_sparsemax_has_the_most_reward_with_half_the_entropy_of_index_2():
    """The optimum has the same gradient for all positive probabilities."""
    logits = jnp.array([1.0, 0.6, -2.0])
    p = losses.sparsemax(logits)
    assert p[2] == 0
    gradient = jax.grad(lambda p: p @ logits + 0.5 * losses.tsallis_entropy(jnp.log(p), 2))
    slopes = gradient(p.at[2].set(1e-6))
    np.testing.assert_allclose(slopes[0], slopes[1], atol=1e-4)
    assert slopes[2] < slopes[0] - 1
