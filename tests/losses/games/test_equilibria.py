import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses, solvers
from tests.losses.contract import Case, contract

BIASED = np.array([[0.0, -1, 2], [1, 0, -1], [-2, 1, 0]])  # equilibrium (1, 2, 1) / 4


def simplex(rng, *shape):
    p = rng.uniform(0.2, 1, shape)
    return p / p.sum(-1, keepdims=True)


def game(rng):
    return {"payoff": rng.normal(size=(3, 2, 2, 2)), "policy": simplex(rng, 3, 2)}


PURE = np.array([[1.0, 0], [0, 1], [1, 0]])
HUGE = {"payoff": np.full((3, 2, 2, 2), 1e6)}
CASES = [
    Case(
        losses.deviation_payoff,
        game,
        gradient=("payoff", "policy"),
        extremes=lambda rng: [{"policy": PURE}, HUGE],
    ),
    Case(
        losses.nash_loss_estimate,
        lambda rng: {
            **{k: rng.normal(size=(3, 2)) for k in ("gradient", "other_gradient")},
            "weight": rng.uniform(size=3),
        },
        gradient=("gradient", "other_gradient", "weight"),
    ),
    Case(
        losses.nash_loss,
        lambda rng: {**game(rng), "temperature": 0.5},
        gradient=("payoff", "policy"),
        extremes=lambda rng: [{"policy": PURE}, {**HUGE, "weight": 2.0}],
    ),
]
test_contract = contract(CASES)


def zero_sum(matrix):
    return jnp.asarray(np.stack([matrix, -matrix]), jnp.float32)


def test_deviation_payoffs_are_expectations_over_the_others():
    x = game(np.random.default_rng(0))
    expected_payoff = np.zeros((3, 2))
    for k in range(3):
        others = [j for j in range(3) if j != k]
        for actions in itertools.product(range(2), repeat=3):
            chance = np.prod([x["policy"][j, actions[j]] for j in others])
            expected_payoff[k, actions[k]] += chance * x["payoff"][(k, *actions)]
    np.testing.assert_allclose(losses.deviation_payoff(**x), expected_payoff, rtol=1e-5)


def test_deviation_payoffs_are_gradients_of_expected_payoffs():
    x = {k: jnp.float32(v) for k, v in game(np.random.default_rng(0)).items()}

    def expected_payoff(policy, player):
        return jnp.einsum("abc,a,b,c->", x["payoff"][player], *policy)

    values = losses.deviation_payoff(**x)
    for player in range(3):
        gradient = jax.grad(expected_payoff)(x["policy"], player)[player]
        np.testing.assert_allclose(values[player], gradient, rtol=1e-5)


def logit_equilibrium(matrix, temperature):
    """Logit equilibrium by damped iteration in float64 NumPy."""
    policy = np.array([[0.5, 0.3, 0.2]] * 2)
    for _ in range(3000):
        values = np.stack([matrix @ policy[1], -policy[0] @ matrix]) / temperature
        response = np.exp(values - values.max(-1, keepdims=True))
        policy += 0.05 * (response / response.sum(-1, keepdims=True) - policy)
    return jnp.float32(policy)


@pytest.mark.slow
def test_the_nash_loss_is_at_rest_at_the_logit_equilibrium():
    """Biased rock-paper-scissors with a bonus for rock, at temperature 0.7."""
    matrix = BIASED + np.array([[0.5], [0], [0]])
    policy, payoff = logit_equilibrium(matrix, 0.7), zero_sum(matrix)
    residual = solvers.quantal_response_residual(payoff, policy, 0.7)
    np.testing.assert_allclose(residual, 0, atol=1e-5)
    np.testing.assert_allclose(losses.nash_loss(payoff, policy, 0.7), 0, atol=1e-9)

    def loss(logits):
        return losses.nash_loss(payoff, jax.nn.softmax(logits), 0.7)

    np.testing.assert_allclose(jax.grad(loss)(jnp.log(policy)), 0, atol=1e-4)
    assert loss(jnp.zeros((2, 3))) > 1e-2


def test_the_nash_loss_weighs_players():
    x = {k: jnp.float32(v) for k, v in game(np.random.default_rng(0)).items()}
    each = [losses.nash_loss(**x, temperature=0.5, weight=jnp.eye(3)[k]) for k in range(3)]
    weight = jnp.array([0.5, 1.0, 3.0])
    ours = losses.nash_loss(**x, temperature=0.5, weight=weight)
    np.testing.assert_allclose(ours, (weight * jnp.stack(each)).sum(), rtol=1e-5)
    u = np.asarray(losses.deviation_payoff(**x) - 0.5 * jnp.log(x["policy"]))
    np.testing.assert_allclose(each[1], np.square(u[1] - u[1].mean()).sum(), rtol=1e-5)


def test_descent_on_the_nash_loss_finds_an_approximate_equilibrium():
    payoff = zero_sum(BIASED)

    @jax.jit
    @jax.grad
    def gradient(logits):
        return losses.nash_loss(payoff, jax.nn.softmax(logits), 0.01)

    logits = jnp.array([[0.3, -0.5, 0.1], [0.0, 0.4, -0.6]])
    for _ in range(400):
        logits = logits - 0.2 * gradient(logits)
    assert solvers.nash_conv(payoff, jax.nn.softmax(logits)) < 0.02


def test_two_samples_estimate_the_nash_loss_without_bias():
    """Enumerate pairs of joint actions, one for each of the two gradient estimates."""
    rng = np.random.default_rng(0)
    payoff = rng.normal(size=(2, 3, 3))
    policy = simplex(rng, 2, 3)
    entropy = 0.3 * np.log(policy)
    chances, gradients = [], []
    for a, b in itertools.product(range(3), repeat=2):
        chances.append(policy[0, a] * policy[1, b])
        gradients.append(np.stack([payoff[0][:, b], payoff[1][a, :]]) - entropy)
    chances, gradients = np.array(chances), jnp.float32(np.array(gradients))
    estimates = losses.nash_loss_estimate(gradients[:, None], gradients[None])
    mean = (chances[:, None] * chances[None] * estimates).sum()
    exact = losses.nash_loss(jnp.float32(payoff), jnp.float32(policy), 0.3)
    np.testing.assert_allclose(mean, exact, rtol=1e-4)
    reused = (chances * jnp.diagonal(estimates)).sum()  # using the same sample twice is biased
    assert reused > exact + 0.1
