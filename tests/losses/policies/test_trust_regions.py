import distrax
import jax
import jax.numpy as jnp
import numpy as np
import rlax

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract
from tests.losses.divergences.test_entropy_and_kl import IMPOSSIBLE, two_gaussians

GAUSSIANS = ("mean", "scale", "old_mean", "old_scale")


def policies(rng, *names):
    return {name: rng.normal(size=(5, 4)) for name in names}


IMPOSSIBLE_LOGITS = np.tile(IMPOSSIBLE, (5, 1))
HUGE = np.full((5, 4), 1e6) * np.arange(4)
HALF = np.arange(20).reshape(5, 4) % 3 > 0
BATCH = {"mask": HALF}
CASES = [
    Case(
        losses.mdpo,
        lambda rng: {
            **policies(rng, "logits", "old_logits", "q_values"),
            "step_size": np.array(0.5),
        },
        gradient=("logits", "step_size"),
        stopped=("old_logits", "q_values"),
        extremes=lambda rng: [
            {"q_values": HUGE},
            {"logits": IMPOSSIBLE_LOGITS, "old_logits": IMPOSSIBLE_LOGITS},
        ],
        diverging=lambda rng: [{"old_logits": IMPOSSIBLE_LOGITS}],
    ),
    Case(
        losses.mpo_weights,
        lambda rng: {**policies(rng, "q_values"), "temperature": np.array(0.7)},
        stopped=("q_values", "temperature"),
        extremes=lambda rng: [{"q_values": HUGE}, {"q_values": np.zeros((5, 4))}],
    ),
    Case(
        losses.mpo,
        lambda rng: {**policies(rng, "log_prob", "q_values"), "temperature": np.array(0.7)},
        gradient=("log_prob",),
        stopped=("q_values", "temperature"),
        extremes=lambda rng: [{"q_values": HUGE}, {"log_prob": np.full((5, 4), -500.0)}],
    ),
    Case(
        losses.mpo_temperature,
        lambda rng: {
            **policies(rng, "q_values"),
            "temperature": rng.uniform(0.5, 1, 5),
            "bound": 0.1,
        },
        gradient=("temperature",),
        stopped=("q_values",),
        extremes=lambda rng: [{"q_values": HUGE}, {"q_values": np.zeros((5, 4))}],
    ),
    Case(
        losses.decoupled_gaussian_kl,
        lambda rng: two_gaussians(rng, *GAUSSIANS),
        gradient=("mean", "scale"),
        stopped=("old_mean", "old_scale"),
        extremes=lambda rng: [{"mean": np.full((5, 3), 1e10)}],
    ),
    Case(
        losses.vmpo_weights,
        lambda rng: {**policies(rng, "advantage"), "temperature": np.array(0.7), **BATCH},
        stopped=("advantage", "temperature"),
        extremes=lambda rng: [
            {"advantage": HUGE},
            {"advantage": np.zeros((5, 4))},
            {"advantage": np.where(HALF, 1.0, np.nan)},
            {"mask": np.zeros((5, 4), bool)},
        ],
        bfloat16=None,  # rounding changes the half's last element
    ),
    Case(
        losses.vmpo,
        lambda rng: {
            **policies(rng, "log_prob", "advantage"),
            "temperature": np.array(0.7),
            **BATCH,
        },
        gradient=("log_prob",),
        stopped=("advantage", "temperature"),
        extremes=lambda rng: [
            {"advantage": HUGE, "log_prob": np.full((5, 4), -500.0)},
            {"log_prob": np.where(HALF, 1.0, np.nan)},
            {"mask": np.zeros((5, 4), bool)},
        ],
    ),
    Case(
        losses.vmpo_temperature,
        lambda rng: {
            **policies(rng, "advantage"),
            "temperature": np.array(0.7),
            "bound": 0.1,
            **BATCH,
        },
        gradient=("temperature",),
        stopped=("advantage",),
        extremes=lambda rng: [
            {"advantage": HUGE},
            {"advantage": np.where(HALF, 1.0, np.nan)},
            {"mask": np.zeros((5, 4), bool)},
        ],
    ),
    Case(
        losses.pmpo,
        lambda rng: {
            **policies(rng, "log_prob", "advantage", "kl"),
            "alpha": np.array(0.4),
            "beta": np.array(0.3),
            **BATCH,
        },
        gradient=("log_prob", "kl", "alpha", "beta"),
        stopped=("advantage",),
        extremes=lambda rng: [
            {"advantage": HUGE, "log_prob": np.full((5, 4), -500.0)},
            {"log_prob": np.where(HALF, 1.0, np.nan)},
            {"advantage": np.where(HALF, 1.0, np.nan), "kl": np.where(HALF, 1.0, np.nan)},
            {"mask": np.zeros((5, 4), bool)},
        ],
    ),
]
test_contract = contract(CASES)


def test_mpo_equals_rlax():
    rng = np.random.default_rng(2)
    log_prob, q_values = jnp.float32(rng.normal(size=(2, 5, 4)))
    temperature, bound = jnp.float32(0.6), jnp.float32(0.1)
    constraint = rlax.LagrangePenalty(temperature, bound)
    kl, alpha = jnp.float32(rng.uniform(0, 1, 5)), jnp.float32(0.8)
    kl_constraint = rlax.LagrangePenalty(alpha, jnp.float32(0.3))
    _, theirs = rlax.mpo_loss(log_prob, q_values, constraint, [(kl, kl_constraint)], sample_axis=1)
    weights = losses.mpo_weights(q_values, temperature)
    np.testing.assert_allclose(weights, theirs.normalized_weights, rtol=1e-5)
    ours = losses.mpo(log_prob, q_values, temperature)
    np.testing.assert_allclose(ours, theirs.policy_loss, rtol=1e-4, atol=1e-6)
    ours = losses.mpo_temperature(q_values, temperature, bound)
    np.testing.assert_allclose(ours, theirs.temperature_loss, rtol=1e-5)
    np.testing.assert_allclose(
        losses.lagrangian_dual(kl - 0.3, alpha), theirs.alpha_loss, rtol=1e-5
    )
    ours = losses.lagrangian_penalty(kl - 0.3, alpha) + 0.3 * alpha
    np.testing.assert_allclose(ours, theirs.kl_loss, rtol=1e-5)


def test_at_the_optimal_temperature_the_divergence_equals_the_bound():
    with jax.enable_x64(True):
        q_values = jnp.asarray(np.random.default_rng(3).normal(size=8))
        for loss, weights, number in (
            (losses.mpo_temperature, losses.mpo_weights, 8),
            (losses.vmpo_temperature, losses.vmpo_weights, 4),
        ):
            slope = jax.jit(jax.grad(lambda t, loss=loss: loss(q_values, t, 0.2)))
            low, high = 0.01, 100.0
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (middle, high) if slope(middle) < 0 else (low, middle)
            w = np.asarray(weights(q_values, low))
            w = w[w > 0]
            np.testing.assert_allclose((w * np.log(w * number)).sum(), 0.2, rtol=1e-6)


def test_vmpo_equals_rlax():
    rng = np.random.default_rng(4)
    log_prob, advantage = jnp.float32(rng.normal(size=(2, 5, 4)))
    temperature, bound = jnp.float32(0.6), jnp.float32(0.1)
    temperature_loss, weights, _ = rlax.vmpo_compute_weights_and_temperature_loss(
        advantage,
        jnp.ones((5, 4)),
        jnp.ones((5, 4)),
        rlax.LagrangePenalty(temperature, bound),
        lambda x: x,
        0.5,
    )
    ours = losses.vmpo_weights(advantage, temperature)
    np.testing.assert_allclose(ours, weights, rtol=1e-4, atol=1e-7)
    assert (ours > 0).sum() == 10
    ours = losses.vmpo(log_prob, advantage, temperature)
    np.testing.assert_allclose(ours, -(weights * log_prob).sum(), rtol=1e-4)
    ours = losses.vmpo_temperature(advantage, temperature, bound)
    np.testing.assert_allclose(ours, temperature_loss, rtol=1e-4)


def test_elements_masked_in_vmpo_have_no_influence():
    rng = np.random.default_rng(5)
    log_prob, advantage = rng.normal(size=(2, 12)).astype(np.float32)
    mask = np.arange(12) < 7
    advantage[7:] = 100
    for function, args in (
        (losses.vmpo, (log_prob, advantage, 0.6)),
        (losses.vmpo_temperature, (advantage, jnp.float32(0.6), 0.1)),
    ):
        masked = jax.jit(function)(*args, mask=mask)
        alone = jax.jit(function)(*(x[:7] if np.shape(x) else x for x in args))
        np.testing.assert_allclose(masked, alone, rtol=1e-5)
    one = losses.vmpo_weights(jnp.ones(1), 0.6)
    np.testing.assert_array_equal(one, [1])
    assert losses.vmpo_weights(jnp.zeros(0), 0.6).shape == (0,)
    assert losses.vmpo_temperature(jnp.zeros(0), jnp.float32(0.6), 0.1) == 0


def test_pmpo_by_hand_depends_only_on_signs():
    rng = np.random.default_rng(7)
    log_prob, advantage, kl = rng.normal(size=(3, 9))
    mask, advantage[0] = np.arange(9) < 7, 0
    good, bad = mask & (advantage >= 0), mask & (advantage < 0)
    expected = 0.6 * log_prob[bad].mean() - 0.4 * log_prob[good].mean() + 0.3 * kl[mask].mean()
    for scale in (1, 100):
        given = (jnp.float32(np.where(mask, x, np.nan)) for x in (log_prob, scale * advantage, kl))
        found = losses.pmpo(*given, 0.4, 0.3, mask)
        assert found.shape == (9,) and (found[7:] == 0).all()
        np.testing.assert_allclose(losses.masked_mean(found, mask), expected, rtol=1e-5)


def test_pmpo_with_good_actions_alone_ends_between_them_and_the_prior():
    """The minimizer with KL(prior || p) is (alpha * good + beta * prior) / (alpha + beta)."""
    with jax.enable_x64(True):
        prior, action = jnp.log(jnp.array([0.5, 0.3, 0.2])), jnp.array([2, 2, 1])

        def loss(logits):
            log_prob = jax.nn.log_softmax(logits)[action]
            kl = losses.categorical_kl(prior, logits)
            return losses.pmpo(log_prob, jnp.ones(3), jnp.broadcast_to(kl, 3), 0.5, 0.3).mean()

        best = (0.5 * jnp.array([0, 1 / 3, 2 / 3]) + 0.3 * jnp.exp(prior)) / 0.8
        np.testing.assert_allclose(jax.grad(loss)(jnp.log(best)), 0, atol=1e-12)


def test_decoupled_divergences_equal_distrax():
    x = {k: jnp.float32(v) for k, v in two_gaussians(np.random.default_rng(6), *GAUSSIANS).items()}
    old = distrax.MultivariateNormalDiag(x["old_mean"], x["old_scale"])
    of_mean, of_scale = losses.decoupled_gaussian_kl(**x)
    moved = distrax.MultivariateNormalDiag(x["mean"], x["old_scale"])
    np.testing.assert_allclose(of_mean, old.kl_divergence(moved), rtol=1e-4)
    widened = distrax.MultivariateNormalDiag(x["old_mean"], x["scale"])
    np.testing.assert_allclose(of_scale, old.kl_divergence(widened), rtol=1e-4)
