import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def scores(rng):
    return {"joint_score": rng.normal(size=(2, 5)), "marginal_score": rng.normal(size=(2, 7))}


def symmetric(rng):
    root = rng.normal(size=(2, 4, 3))
    return np.swapaxes(root, -1, -2) @ root


CASES = [
    Case(
        losses.barber_agakov,
        lambda rng: {"log_prob": -rng.uniform(0, 2, 5), "prior_log_prob": -rng.uniform(0, 2, 5)},
        gradient=("log_prob", "prior_log_prob"),
        extremes=lambda rng: [{"log_prob": np.full(5, -500.0)}],
    ),
    *(
        Case(
            function,
            scores,
            gradient=("joint_score", "marginal_score"),
            extremes=lambda rng: [
                {"marginal_score": np.full((2, 7), 1e3)},
                {"marginal_score": np.full((2, 7), -1e6)},
                {"joint_score": np.full((2, 5), 1e6)},
            ],
        )
        for function in (losses.donsker_varadhan, losses.nwj)
    ),
    Case(
        losses.info_nce_bound,
        lambda rng: {"similarity": rng.normal(size=(2, 4, 4)), "temperature": np.float64(0.5)},
        gradient=("similarity", "temperature"),
        extremes=lambda rng: [{"similarity": 1e6 * rng.normal(size=(2, 4, 4))}],
    ),
    Case(
        losses.standard_normal_kl,
        lambda rng: {"mean": rng.normal(size=(5, 3)), "scale": rng.uniform(0.5, 1.5, (5, 3))},
        gradient=("mean", "scale"),
        extremes=lambda rng: [
            {"mean": np.full((5, 3), 1e10)},
            {"scale": np.full((5, 3), 1e-10)},
        ],
    ),
    Case(
        losses.information_gain,
        lambda rng: {
            "scale": rng.uniform(0.5, 1.5, (5, 3)),
            "noise_scale": rng.uniform(0.5, 1.5, 3),
        },
        gradient=("scale", "noise_scale"),
        extremes=lambda rng: [{"scale": np.zeros((5, 3))}, {"scale": np.full((5, 3), 1e10)}],
    ),
    Case(
        losses.fisher_information,
        lambda rng: {"jacobian": rng.normal(size=(2, 4, 3)), "scale": rng.uniform(0.5, 1.5, 4)},
        gradient=("jacobian", "scale"),
        extremes=lambda rng: [{"jacobian": np.zeros((2, 4, 3))}],
    ),
    *(
        Case(
            losses.experimental_design,
            lambda rng, criterion=criterion: {
                "information": symmetric(rng),
                "criterion": criterion,
                "ridge": 0.01,
            },
            gradient=("information",),
            extremes=lambda rng: [
                {"information": np.zeros((2, 3, 3))},
                {"information": np.ones((2, 3, 3))},
                {"information": 1e6 * symmetric(rng)},
            ],
            name=f"experimental_design_{criterion}",
        )
        for criterion in ("trace", "log_det", "inverse_trace")
    ),
]
test_contract = contract(CASES)

# A joint distribution in twelfths, with exhaustive samples of it and of independent pairs.
COUNTS = np.array([[4, 1], [1, 2], [1, 3]])
JOINT = COUNTS / 12
RATIO = JOINT / (JOINT.sum(1, keepdims=True) * JOINT.sum(0))
INFORMATION = (JOINT * np.log(RATIO)).sum()
PAIRS = np.array([(x, z) for x in range(3) for z in range(2) for _ in range(COUNTS[x, z])])
SHUFFLED = np.array([(a[0], b[1]) for a, b in itertools.product(PAIRS, PAIRS)])


def estimate_bound(function, critic):
    critic = jnp.asarray(critic, jnp.float32)
    return function(critic[tuple(PAIRS.T)], critic[tuple(SHUFFLED.T)])


@pytest.mark.parametrize(
    "function,best",
    [(losses.donsker_varadhan, np.log(RATIO) + 3), (losses.nwj, np.log(RATIO) + 1)],
    ids=["donsker_varadhan", "nwj"],
)
def test_bounds_are_tight_for_the_best_critic_and_below_for_others(function, best):
    np.testing.assert_allclose(estimate_bound(function, best), INFORMATION, rtol=1e-4)
    value = jax.jit(lambda critic: estimate_bound(function, critic))
    gradient = jax.grad(value)(jnp.float32(best))
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    for seed in range(20):
        other = best + np.random.default_rng(seed).normal(size=(3, 2))
        assert value(jnp.float32(other)) < INFORMATION


def test_nwj_is_the_looser_of_the_two():
    for seed in range(20):
        critic = np.random.default_rng(seed).normal(size=(3, 2))
        assert (
            estimate_bound(losses.nwj, critic)
            <= estimate_bound(losses.donsker_varadhan, critic) + 1e-5
        )


def test_barber_agakov_is_tight_for_the_posterior():
    x, z = PAIRS.T
    posterior = JOINT / JOINT.sum(1, keepdims=True)
    prior = np.log(JOINT.sum(0))[z]
    ours = losses.barber_agakov(jnp.float32(np.log(posterior[x, z])), jnp.float32(prior)).mean()
    np.testing.assert_allclose(ours, INFORMATION, rtol=1e-4)
    flatter = 0.5 * posterior + 0.25
    ours = losses.barber_agakov(jnp.float32(np.log(flatter[x, z])), jnp.float32(prior)).mean()
    assert ours < INFORMATION


def test_the_contrastive_bound_over_all_batches_of_three():
    """The expectation over all batches stays below the information and below log B."""
    batches = np.array(list(itertools.product(range(6), repeat=3)))
    cells = np.array(list(itertools.product(range(3), range(2))))
    weight = JOINT.reshape(-1)[batches].prod(1)
    x, z = cells[batches, 0], cells[batches, 1]
    critic = np.log(RATIO)
    similarity = jnp.float32(critic[x[:, :, None], z[:, None, :]])
    ours = (jnp.float32(weight) * losses.info_nce_bound(similarity)).sum()
    assert 0.3 * INFORMATION < ours < INFORMATION
    assert losses.info_nce_bound(50 * jnp.eye(3)) <= np.log(3) + 1e-6
    np.testing.assert_allclose(losses.info_nce_bound(50 * jnp.eye(3)), np.log(3), rtol=1e-5)


def test_the_bottleneck_costs_nothing_at_the_prior():
    assert losses.standard_normal_kl(jnp.zeros(3), jnp.ones(3)) == 0
    ours = losses.standard_normal_kl(jnp.array([1.0, 2.0]), jnp.array([1.0, 0.5]))
    np.testing.assert_allclose(ours, 0.5 * (5 + 0.25 - 1 - np.log(0.25)), rtol=1e-5)


def test_information_gain_is_the_entropy_lost_by_the_belief():
    scale, noise = jnp.array([0.5, 2.0]), jnp.array([1.0, 0.3])
    posterior = 1 / jnp.sqrt(scale**-2 + noise**-2)
    lost = losses.gaussian_entropy(scale) - losses.gaussian_entropy(posterior)
    np.testing.assert_allclose(losses.information_gain(scale, noise), lost, rtol=1e-5)


def test_fisher_information_is_the_curvature_of_the_divergence():
    """Compare with the Hessian of KL(theta || theta') for a noisy pendulum-like step."""
    scale = jnp.array([0.5, 2.0])
    step = lambda p: jnp.stack([jnp.sin(p[0]) * p[1], p[1] ** 2 - p[0]])
    theta = jnp.array([0.7, 1.3])
    ours = jax.jit(lambda p: losses.fisher_information(jax.jacfwd(step)(p), scale))(theta)
    divergence = lambda p: losses.gaussian_kl(step(theta), scale, step(p), scale)
    np.testing.assert_allclose(ours, jax.jit(jax.hessian(divergence))(theta), rtol=1e-4)


def test_designs():
    eigenvalues = np.array([0.5, 2.0, 4.0])
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    matrix = jnp.float32(basis @ np.diag(eigenvalues) @ basis.T)
    expected = {
        "trace": eigenvalues.sum(),
        "log_det": np.log(eigenvalues + 0.1).sum(),
        "inverse_trace": -(1 / (eigenvalues + 0.1)).sum(),
    }
    for criterion, value in expected.items():
        ours = losses.experimental_design(matrix, criterion, ridge=0.1)
        np.testing.assert_allclose(ours, value, rtol=1e-4)
        more = losses.experimental_design(matrix + jnp.eye(3), criterion, ridge=0.1)
        assert more > ours
    with pytest.raises(ValueError, match="criterion"):
        losses.experimental_design(matrix, "det")
