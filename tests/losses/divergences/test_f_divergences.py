import itertools

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.spatial.distance
import scipy.stats

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract
from tests.losses.divergences.test_entropy_and_kl import (
    CERTAIN,
    IMPOSSIBLE,
    two_gaussians,
    two_logits,
)

KINDS = {
    "kl": lambda p, q: (p * np.log(p / q)).sum(),
    "reverse_kl": lambda p, q: (q * np.log(q / p)).sum(),
    "jensen_shannon": lambda p, q: scipy.spatial.distance.jensenshannon(p, q) ** 2,
    "squared_hellinger": lambda p, q: 1 - np.sqrt(p * q).sum(),
    "chi_square": lambda p, q: (p**2 / q).sum() - 1,
    "total_variation": lambda p, q: abs(p - q).sum() / 2,
}
EXTREMES = [
    {"logits": np.tile(IMPOSSIBLE, (5, 1)), "other_logits": np.tile(CERTAIN, (5, 1))},
    {"logits": np.tile(CERTAIN, (5, 1)), "other_logits": np.tile(IMPOSSIBLE, (5, 1))},
    {"logits": np.tile(IMPOSSIBLE, (5, 1)), "other_logits": np.tile(IMPOSSIBLE, (5, 1))},
    {"logits": np.tile([0.0, 500, 0, 0], (5, 1)), "other_logits": np.zeros((5, 4))},
    {"other_logits": np.tile([0.0, 500, 0, 0], (5, 1))},
]
SHAPE = {"mean": (5, 3), "scale": (5, 3), "other_mean": (5, 3), "other_scale": (5, 3)}
CASES = [
    *(
        Case(
            function,
            two_logits,
            gradient=("logits", "other_logits"),
            extremes=lambda rng: EXTREMES,
        )
        for function in (
            losses.total_variation,
            losses.squared_hellinger,
            losses.jensen_shannon,
            losses.chi_square,
        )
    ),
    *(
        Case(
            losses.categorical_renyi,
            lambda rng, order=order: {**two_logits(rng), "order": order},
            gradient=("logits", "other_logits"),
            extremes=lambda rng: [EXTREMES[1], EXTREMES[2], EXTREMES[3]],
            diverging=lambda rng: [EXTREMES[0]],
            name=f"categorical_renyi of order {order}",
        )
        for order in (0.5, 2.0)
    ),
    Case(
        losses.gaussian_renyi,
        lambda rng: {
            **two_gaussians(rng, "mean", "other_mean"),
            "scale": rng.uniform(0.5, 1, (5, 3)),
            "other_scale": rng.uniform(1, 1.5, (5, 3)),
            "order": 2.0,
        },
        gradient=tuple(SHAPE),
        extremes=lambda rng: [{"mean": np.full((5, 3), 1e10)}, {"scale": np.full((5, 3), 1e-10)}],
        diverging=lambda rng: [{"scale": np.full((5, 3), 3.0)}],
    ),
    Case(
        losses.gaussian_fisher_divergence,
        lambda rng: two_gaussians(rng, *SHAPE),
        gradient=tuple(SHAPE),
        extremes=lambda rng: [{"mean": np.full((5, 3), 1e10)}, {"scale": np.full((5, 3), 1e-5)}],
    ),
    *(
        Case(
            losses.f_divergence,
            lambda rng, kind=kind: {
                "log_prob": -rng.uniform(1, 2, 6),
                "other_log_prob": -rng.uniform(3, 4, 6),
                "kind": kind,
            },
            gradient=("log_prob", "other_log_prob"),
            extremes=lambda rng: [
                {"log_prob": np.full(6, -500.0)},
                {"other_log_prob": np.full(6, -500.0)},
                {"log_prob": np.ones(6), "other_log_prob": np.ones(6)},
            ],
            name=f"f_divergence {kind}",
        )
        for kind in KINDS
    ),
]
test_contract = contract(CASES)


@pytest.mark.parametrize("kind", KINDS)
def test_exact_and_expected_equal_the_definitions(kind):
    """Compare the exact function and the mean over all actions of the nonnegative estimates."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        for p, q in rng.dirichlet([1.0] * 4, (5, 2)):
            truth = KINDS[kind](p, q)
            estimates = losses.f_divergence(jnp.log(p), jnp.log(q), kind)
            assert (estimates >= 0).all()
            np.testing.assert_allclose((p * estimates).sum(), truth, rtol=1e-9)
            exact = getattr(losses, kind, None)
            if exact is not None:
                np.testing.assert_allclose(exact(jnp.log(p), jnp.log(q)), truth, rtol=1e-9)
    with pytest.raises(ValueError, match="no f-divergence"):
        losses.f_divergence(jnp.zeros(1), jnp.zeros(1), "none")


def test_disjoint_distributions_have_the_largest_distances():
    p, q = jnp.array([0.0, -jnp.inf]), jnp.array([-jnp.inf, 0.0])
    assert losses.total_variation(p, q) == 1
    assert losses.squared_hellinger(p, q) == 1
    np.testing.assert_allclose(losses.jensen_shannon(p, q), np.log(2), rtol=1e-6)
    assert losses.chi_square(p, q) > 1e20
    assert losses.categorical_renyi(p, q, 2.0) == jnp.inf
    assert losses.categorical_renyi(p, q, 0.5) == jnp.inf


@pytest.mark.parametrize("kind", ["kl", "jensen_shannon", "chi_square"])
def test_the_reparameterized_gradient_is_that_of_the_divergence(kind):
    """Compare the mean pathwise gradient over a Gaussian's quantiles with numerical integration."""
    density = scipy.stats.norm.pdf
    integrand = {
        "kl": lambda p, q: p * np.log(p / q),
        "jensen_shannon": lambda p, q: (
            0.5 * (p * np.log(2 * p / (p + q)) + q * np.log(2 * q / (p + q)))
        ),
        "chi_square": lambda p, q: (p - q) ** 2 / q,
    }[kind]

    def exact(mean):
        return scipy.integrate.quad(
            lambda x: integrand(density(x, mean, 0.7), density(x, 0.2, 0.65)), -6, 6
        )[0]

    noise = scipy.stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    with jax.enable_x64(True):
        one = jnp.ones(1)

        def estimate(mean):
            x = mean + 0.7 * noise[:, None]
            log_prob = losses.gaussian_log_prob(x, mean * one, 0.7 * one)
            return losses.f_divergence(
                log_prob, losses.gaussian_log_prob(x, 0.2 * one, 0.65 * one), kind
            ).mean()

        gradient = jax.jit(jax.grad(estimate))(0.5)
    np.testing.assert_allclose(gradient, (exact(0.5001) - exact(0.4999)) / 2e-4, rtol=1e-2)


def test_gaussian_divergences_equal_integrals():
    p, q = scipy.stats.norm(0.3, 0.8), scipy.stats.norm(-0.2, 1.1)
    args = [jnp.array([x]) for x in (0.3, 0.8, -0.2, 1.1)]
    for order in (0.5, 2.0):
        integral = scipy.integrate.quad(
            lambda x, a=order: p.pdf(x) ** a * q.pdf(x) ** (1 - a), -8, 8
        )[0]
        np.testing.assert_allclose(
            losses.gaussian_renyi(*args, order), np.log(integral) / (order - 1), rtol=1e-4
        )

    def squared_score_difference(x):
        return p.pdf(x) * ((x - 0.3) / 0.8**2 - (x + 0.2) / 1.1**2) ** 2

    np.testing.assert_allclose(
        losses.gaussian_fisher_divergence(*args),
        scipy.integrate.quad(squared_score_difference, -8, 8)[0],
        rtol=1e-5,
    )
    assert losses.gaussian_renyi(*[jnp.array([x]) for x in (0.0, 2.0, 0.0, 1.0)], 2.0) == jnp.inf


@pytest.mark.slow
def test_renyi_approaches_kl_and_grows_with_its_order():
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        p, q = jnp.asarray(rng.normal(size=(2, 5, 4)))
        theirs = distrax.Categorical(p).kl_divergence(distrax.Categorical(q))
        np.testing.assert_allclose(losses.categorical_renyi(p, q, 1 + 1e-6), theirs, rtol=1e-4)
        orders = [losses.categorical_renyi(p, q, a) for a in (0.3, 0.9, 1.5, 3.0)]
        assert all((a < b).all() for a, b in itertools.pairwise(orders))
        gaussians = [jnp.asarray(x) for x in two_gaussians(rng, *SHAPE).values()]
        np.testing.assert_allclose(
            losses.gaussian_renyi(*gaussians, 1 - 1e-6), losses.gaussian_kl(*gaussians), rtol=1e-4
        )
