import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def two_logits(rng):
    return {"logits": rng.normal(size=(5, 4)), "other_logits": rng.normal(size=(5, 4))}


def two_log_probs(rng):
    return {"log_prob": -rng.uniform(1, 2, 6), "other_log_prob": -rng.uniform(1, 2, 6)}


def two_gaussians(rng, *names):
    return {
        name: rng.uniform(0.5, 1.5, (5, 3)) if "scale" in name else rng.normal(size=(5, 3))
        for name in names
    }


IMPOSSIBLE = np.array([0.0, -np.inf, 1.0, -np.inf])
CERTAIN = np.array([0.0, -np.inf, -np.inf, -np.inf])


def forecast(rng, rule):
    p = rng.uniform(0.2, 1, (5, 3))
    return {"prob": p / p.sum(-1, keepdims=True), "outcome": rng.integers(0, 3, 5), "rule": rule}


CASES = [
    Case(
        losses.categorical_entropy,
        lambda rng: {"logits": rng.normal(size=(5, 4))},
        gradient=("logits",),
        extremes=lambda rng: [
            {"logits": np.tile(IMPOSSIBLE, (5, 1))},
            {"logits": np.tile(CERTAIN, (5, 1))},
            {"logits": 1e4 * rng.normal(size=(5, 4))},
        ],
    ),
    Case(
        losses.categorical_kl,
        two_logits,
        gradient=("logits", "other_logits"),
        extremes=lambda rng: [
            {"logits": np.tile(IMPOSSIBLE, (5, 1))},
            {"logits": np.tile(CERTAIN, (5, 1)), "other_logits": np.tile(IMPOSSIBLE, (5, 1))},
            {"logits": 1e4 * rng.normal(size=(5, 4))},
        ],
        diverging=lambda rng: [{"other_logits": np.tile(IMPOSSIBLE, (5, 1))}],
    ),
    Case(
        losses.gaussian_log_prob,
        lambda rng: {**two_gaussians(rng, "mean", "scale"), "x": rng.normal(size=(5, 3))},
        gradient=("x", "mean", "scale"),
        extremes=lambda rng: [{"x": np.full((5, 3), 1e10)}, {"scale": np.full((5, 3), 1e-5)}],
    ),
    Case(
        losses.gaussian_entropy,
        lambda rng: two_gaussians(rng, "scale"),
        gradient=("scale",),
        extremes=lambda rng: [{"scale": np.full((5, 3), 1e-30)}],
    ),
    Case(
        losses.gaussian_kl,
        lambda rng: two_gaussians(rng, "mean", "scale", "other_mean", "other_scale"),
        gradient=("mean", "scale", "other_mean", "other_scale"),
        extremes=lambda rng: [{"mean": np.full((5, 3), 1e10)}, {"scale": np.full((5, 3), 1e-10)}],
    ),
    Case(
        losses.sparsemax,
        lambda rng: {"logits": rng.normal(size=(5, 4))},
        gradient=("logits",),
        extremes=lambda rng: [
            {"logits": np.tile(IMPOSSIBLE, (5, 1))},
            {"logits": np.tile(CERTAIN, (5, 1))},
            {"logits": np.zeros((5, 4))},
            {"logits": 1e30 * rng.normal(size=(5, 4))},
        ],
    ),
    Case(
        losses.cross_entropy,
        lambda rng: {
            "logits": rng.normal(size=(5, 4)),
            "target": np.exp(rng.normal(size=(5, 4))),
        },
        gradient=("logits",),
        stopped=("target",),
        extremes=lambda rng: [
            {"logits": np.tile(IMPOSSIBLE, (5, 1)), "target": np.tile([0.5, 0, 0.5, 0], (5, 1))},
            {"logits": 1e4 * rng.normal(size=(5, 4))},
        ],
        diverging=lambda rng: [{"logits": np.tile(IMPOSSIBLE, (5, 1))}],
    ),
    *(
        Case(
            losses.binary_cross_entropy,
            lambda rng, label=label: {
                "logits": rng.normal(size=6),
                "label": label,
                "positive_weight": np.array(2.0),
            },
            gradient=("logits", "positive_weight"),
            stopped=("label",) if label.dtype == float else (),
            extremes=lambda rng: [{"logits": np.full(6, 1e6)}, {"logits": np.full(6, -1e6)}],
            name=f"binary_cross_entropy_{label.dtype}",
        )
        for label in (np.arange(6) < 2, np.linspace(0, 1, 6))
    ),
    Case(
        losses.tanh_gaussian_log_prob,
        lambda rng: {**two_gaussians(rng, "mean", "scale"), "x": rng.normal(size=(5, 3))},
        gradient=("x", "mean", "scale"),
        extremes=lambda rng: [{"x": np.full((5, 3), 1e10)}, {"x": np.full((5, 3), -1e3)}],
    ),
    *(
        Case(
            function,
            two_log_probs,
            gradient=("log_prob", "other_log_prob"),
            extremes=lambda rng: [
                {"log_prob": np.full(6, -500.0)},
                {"other_log_prob": np.full(6, -500.0)},
            ],
        )
        for function in (losses.kl_k1, losses.kl_k2, losses.kl_k3)
    ),
    *(
        Case(
            losses.proper_score,
            lambda rng, rule=rule: forecast(rng, rule),
            gradient=("prob",),
            extremes=lambda rng, rule=rule: [] if rule == "log" else [{"prob": np.eye(3)[[0] * 5]}],
            diverging=lambda rng: [{"prob": np.eye(3)[[0] * 5]}],
            name=f"proper_score_{rule}",
        )
        for rule in ("quadratic", "log", "spherical")
    ),
    Case(
        losses.categorical_nll,
        lambda rng: {"logits": rng.normal(size=(5, 4)), "label": np.array([0, 3, 1, 2, 2])},
        gradient=("logits",),
        extremes=lambda rng: [
            {"logits": np.tile([0.0, 1.0, 2.0, -np.inf], (5, 1)), "label": np.zeros(5, int)},
            {"logits": 1e6 * rng.normal(size=(5, 4))},
        ],
        diverging=lambda rng: [{"logits": np.tile([-np.inf, 1.0, 2.0, 0.0], (5, 1))}],
    ),
]
test_contract = contract(CASES)


def test_entropy_and_divergence_equal_distrax():
    rng = np.random.default_rng(0)
    p, q = jnp.float32(rng.normal(size=(2, 5, 4)))
    theirs = distrax.Categorical(p)
    np.testing.assert_allclose(losses.categorical_entropy(p), theirs.entropy(), rtol=1e-5)
    np.testing.assert_allclose(
        losses.categorical_kl(p, q), theirs.kl_divergence(distrax.Categorical(q)), rtol=1e-4
    )


@pytest.mark.slow
@given(st.floats(-20, 20))
def test_k3_is_never_negative(log_ratio):
    ours = losses.kl_k3(jnp.float32(0), jnp.float32(log_ratio))
    x = np.float64(np.float32(log_ratio))
    assert ours >= 0
    np.testing.assert_allclose(ours, np.expm1(x) - x, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_which_estimates_and_which_gradients_are_unbiased():
    """Enumerate three actions, with the sampling distribution p held fixed."""
    with jax.enable_x64(True):
        p, q = jnp.array([0.2, 0.5, 0.3]), jnp.array([0.4, 0.35, 0.25])
        exact = (p * jnp.log(p / q)).sum()
        for estimate in (losses.kl_k1, losses.kl_k3):
            np.testing.assert_allclose(
                (p * estimate(jnp.log(p), jnp.log(q))).sum(), exact, rtol=1e-9
            )
        assert abs((p * losses.kl_k2(jnp.log(p), jnp.log(q))).sum() - exact) > 1e-4
        logits = jnp.log(p)

        def gradient(estimate):
            return jax.grad(lambda x: (p * estimate(jax.nn.log_softmax(x), jnp.log(q))).sum())(
                logits
            )

        truth = jax.grad(lambda x: losses.categorical_kl(x, jnp.log(q)))(logits)
        np.testing.assert_allclose(gradient(losses.kl_k2), truth, atol=1e-12)
        np.testing.assert_allclose(gradient(losses.kl_k1), 0, atol=1e-12)
        assert abs(gradient(losses.kl_k3) - truth).max() > 1e-3


@pytest.mark.slow
def test_gaussians_equal_distrax():
    x = {
        k: jnp.float32(v)
        for k, v in two_gaussians(
            np.random.default_rng(1), *["mean", "scale", "other_mean", "other_scale"]
        ).items()
    }
    p = distrax.MultivariateNormalDiag(x["mean"], x["scale"])
    q = distrax.MultivariateNormalDiag(x["other_mean"], x["other_scale"])
    np.testing.assert_allclose(losses.gaussian_kl(**x), p.kl_divergence(q), rtol=1e-4)
    np.testing.assert_allclose(losses.gaussian_entropy(x["scale"]), p.entropy(), rtol=1e-5)
    np.testing.assert_allclose(
        losses.gaussian_log_prob(x["other_mean"], x["mean"], x["scale"]),
        p.log_prob(x["other_mean"]),
        rtol=1e-4,
    )


def test_cross_entropy_equals_optax():
    rng = np.random.default_rng(2)
    logits, target = jnp.float32(rng.normal(size=(5, 4))), jnp.float32(rng.dirichlet([1] * 4, 5))
    theirs = optax.losses.softmax_cross_entropy(logits, target)
    np.testing.assert_allclose(losses.cross_entropy(logits, target), theirs, rtol=1e-5)
    least = losses.cross_entropy(jnp.log(target), target)
    np.testing.assert_allclose(least, losses.categorical_entropy(jnp.log(target)), rtol=1e-4)


def test_binary_cross_entropy_equals_optax_and_weighs_positives():
    rng = np.random.default_rng(4)
    logits, label = jnp.float32(5 * rng.normal(size=20)), jnp.float32(rng.uniform(size=20))
    for y in (label, label > 0.5):
        theirs = optax.losses.sigmoid_binary_cross_entropy(logits, y)
        np.testing.assert_allclose(losses.binary_cross_entropy(logits, y), theirs, rtol=1e-4)
    ours = losses.binary_cross_entropy(jnp.zeros(3), jnp.array([1.0, 0.0, 0.5]), 3.0)
    np.testing.assert_allclose(ours, np.log(2) * np.array([3, 1, 2]), rtol=1e-6)


def test_squashed_gaussian_equals_distrax_and_stays_finite_where_tanh_is_1():
    rng = np.random.default_rng(3)
    x, mean = jnp.float32(rng.normal(size=(2, 5, 3)))
    scale = jnp.float32(rng.uniform(0.5, 1.5, (5, 3)))
    theirs = distrax.Transformed(
        distrax.MultivariateNormalDiag(mean, scale), distrax.Block(distrax.Tanh(), 1)
    )
    ours = losses.tanh_gaussian_log_prob(x, mean, scale)
    np.testing.assert_allclose(ours, theirs.log_prob(jnp.tanh(x)), rtol=1e-3)
    for far in (20.0, -20.0):  # 1 - tanh(x)^2 = 4 exp(-2 |x|), up to exp(-4 |x|)
        x = jnp.full(1, far)
        slope = losses.gaussian_log_prob(x, x, jnp.ones(1)) - losses.tanh_gaussian_log_prob(
            x, x, jnp.ones(1)
        )
        np.testing.assert_allclose(slope, np.log(4) - 40, rtol=1e-6)


def test_sparsemax_is_the_nearest_point_of_the_simplex():
    logits = jnp.float32(np.random.default_rng(0).normal(size=(50, 5)) * 2)
    ours = losses.sparsemax(logits)
    theirs = jax.jit(jax.vmap(optax.projections.projection_simplex))(logits)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert (ours == 0).any() and (ours >= 0).all()
    np.testing.assert_allclose(ours.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("rule", ["quadratic", "log", "spherical"])
def test_honest_forecasts_score_best(rule):
    truth = jnp.array([0.5, 0.2, 0.3])
    outcomes = jnp.arange(3)

    def expected_score(logits):
        prob = jnp.broadcast_to(jax.nn.softmax(logits), (3, 3))
        return (truth * losses.proper_score(prob, outcomes, rule)).sum()

    np.testing.assert_allclose(jax.grad(expected_score)(jnp.log(truth)), 0, atol=1e-6)
    assert expected_score(jnp.log(truth)) > expected_score(jnp.log(truth) + jnp.array([0.3, 0, 0]))


def test_scores_by_hand():
    prob, outcome = jnp.array([0.6, 0.8]) / 1.4, jnp.array(1)
    p = np.array([0.6, 0.8]) / 1.4
    np.testing.assert_allclose(losses.proper_score(prob, outcome), 2 * p[1] - (p**2).sum())
    np.testing.assert_allclose(losses.proper_score(prob, outcome, "log"), np.log(p[1]), rtol=1e-6)
    np.testing.assert_allclose(losses.proper_score(prob, outcome, "spherical"), 0.8, rtol=1e-6)
    with pytest.raises(ValueError, match="rule must be"):
        losses.proper_score(prob, outcome, "linear")


def test_the_loss_of_a_classifier_is_the_cross_entropy():
    logits = jnp.float32(np.random.default_rng(0).normal(size=(5, 4)))
    action = jnp.array([0, 3, 1, 2, 2])
    theirs = optax.losses.softmax_cross_entropy_with_integer_labels(logits, action)
    np.testing.assert_allclose(losses.categorical_nll(logits, action), theirs, rtol=1e-5)
