import jax
import jax.numpy as jnp
import numpy as np

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def ensemble(rng):
    return {"q_values": rng.normal(size=(5, 3))}


EQUAL = {"q_values": np.ones((5, 3))}
HUGE = {"q_values": 1e15 * np.arange(15.0).reshape(5, 3)}
ONE = {"q_values": np.ones((5, 1))}
CASES = [
    Case(
        losses.q_deviation,
        ensemble,
        gradient=("q_values",),
        time=("q_values",),
        extremes=lambda rng: [EQUAL, HUGE, ONE],
    ),
    Case(
        losses.lower_confidence_bound,
        lambda rng: {**ensemble(rng), "beta": 2.0},
        gradient=("q_values",),
        time=("q_values",),
        extremes=lambda rng: [EQUAL, HUGE, ONE],
    ),
    Case(
        losses.optimistic_score,
        lambda rng: {"q_value": rng.normal(size=5), "novelty": rng.uniform(size=5), "bonus": 0.5},
        gradient=("q_value", "novelty"),
        extremes=lambda rng: [{"novelty": np.full(5, 1e15)}],
    ),
    Case(
        losses.uncertainty_weight,
        lambda rng: {"uncertainty": rng.uniform(size=5), "temperature": 3.0, "least": 0.5},
        stopped=("uncertainty",),
        extremes=lambda rng: [{"uncertainty": np.full(5, 1e15)}, {"uncertainty": np.zeros(5)}],
    ),
    Case(
        losses.q_smoothness,
        lambda rng: {
            **ensemble(rng),
            "perturbed_q_values": rng.normal(size=(5, 4, 3)),
            "expectile": 0.2,
        },
        gradient=("q_values", "perturbed_q_values"),
        time=("q_values", "perturbed_q_values"),
        extremes=lambda rng: [
            {"q_values": np.ones((5, 3)), "perturbed_q_values": np.ones((5, 4, 3))},
            HUGE,
        ],
    ),
    Case(
        losses.ood_penalty,
        lambda rng: {**ensemble(rng), "beta": 2.0},
        surrogate=("q_values",),
        time=("q_values",),
        extremes=lambda rng: [EQUAL, HUGE, ONE],
    ),
]
test_contract = contract(CASES)
Q = np.random.default_rng(0).normal(size=(5, 3))


def test_bounds():
    np.testing.assert_allclose(losses.q_deviation(jnp.float32(Q)), Q.std(-1), rtol=1e-5)
    below = losses.lower_confidence_bound(jnp.float32(Q), 2.0)
    np.testing.assert_allclose(below, Q.mean(-1) - 2 * Q.std(-1), rtol=1e-4, atol=1e-6)
    assert (below < losses.lower_confidence_bound(jnp.float32(Q), -2.0)).all()


def test_weights_of_meee_and_sunrise():
    std = np.array([0.0, 0.2, 5.0])
    sigmoid = 1 / (1 + np.exp(10 * std))
    np.testing.assert_allclose(losses.uncertainty_weight(std, 10.0), 2 * sigmoid, rtol=1e-4)
    np.testing.assert_allclose(
        losses.uncertainty_weight(std, 10.0, least=0.5), sigmoid + 0.5, rtol=1e-5
    )


def test_the_bonus_favors_novelty():
    assert losses.optimistic_score(jnp.ones(2), jnp.array([0.0, 1.0]), 0.5).argmax() == 1


def test_smoothness_equals_a_loop_and_weights_overestimation():
    perturbed = np.random.default_rng(1).normal(size=(5, 4, 3))
    expected = np.zeros(5)
    for i in range(5):
        for m in range(4):
            total = 0
            for e in range(3):
                gap = perturbed[i, m, e] - Q[i, e]
                total += (0.8 if gap > 0 else 0.2) * gap**2 / 3
            expected[i] = max(expected[i], total)
    ours = losses.q_smoothness(jnp.float32(Q), jnp.float32(perturbed), 0.2)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_the_penalty_lowers_each_critic_by_the_disagreement():
    q = jnp.float32(Q)
    np.testing.assert_allclose(
        losses.ood_penalty(q, 2.0),
        np.broadcast_to(0.5 * (2 * Q.std(-1, keepdims=True)) ** 2, Q.shape),
        rtol=1e-4,
    )
    gradient = jax.grad(lambda q: losses.ood_penalty(q, 2.0).sum())(q)
    expected = np.broadcast_to(2 * Q.std(-1, keepdims=True), Q.shape)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)
