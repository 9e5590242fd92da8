import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract, example

B, D, K = 6, 3, 4


def normal(rng, **shapes):
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def two_policies(rng):
    return {
        "mean": rng.normal(size=(B, D)),
        "scale": rng.uniform(0.5, 1.5, (B, D)),
        "perturbed_mean": rng.normal(size=(B, K, D)),
        "perturbed_scale": rng.uniform(0.5, 1.5, (B, K, D)),
    }


HUGE = np.full(B, 1e6)
MASK = np.array([True, False, True, True, False, True])
CASES = [
    Case(
        losses.behavior_cloning,
        lambda rng: {"log_prob": -rng.uniform(1, 2, B), "weight": rng.uniform(0, 1, B)},
        gradient=("log_prob",),
        stopped=("weight",),
        extremes=lambda rng: [{"log_prob": np.full(B, -500.0)}, {"weight": HUGE}],
    ),
    Case(
        losses.percentile_weights,
        lambda rng: {"returns": rng.normal(size=(2, B)), "fraction": 0.4, "mask": MASK},
        stopped=("returns",),
        extremes=lambda rng: [
            {"returns": np.zeros((2, B))},
            {"mask": np.zeros(B, bool)},
            {"fraction": 0.0},
        ],
    ),
    Case(
        losses.td3_bc,
        lambda rng: {**normal(rng, q_value=B, action=(B, D), data_action=(B, D)), "alpha": 2.5},
        gradient=("action",),
        surrogate=("q_value",),
        stopped=("data_action",),
        extremes=lambda rng: [
            {"q_value": np.zeros(B)},
            {"q_value": HUGE},
            {"q_value": np.where(MASK, 1.0, np.nan), "mask": MASK},
            {"mask": np.zeros(B, bool)},
        ],
    ),
    Case(
        losses.gradient_diversity,
        lambda rng: normal(rng, gradient=(B, D, K)),
        gradient=("gradient",),
        extremes=lambda rng: [
            {"gradient": np.zeros((B, D, K))},
            {"gradient": np.full((B, D, K), 1e15)},
            {"gradient": np.ones((B, D, 1))},
        ],
    ),
    Case(
        losses.policy_smoothness,
        two_policies,
        gradient=("mean", "scale", "perturbed_mean", "perturbed_scale"),
        extremes=lambda rng: [{"mean": np.full((B, D), 1e10)}],
    ),
    Case(
        losses.diverse_cloning,
        lambda rng: {
            "log_prob": -rng.uniform(1, 2, B),
            "other_log_prob": -rng.uniform(1, 2, (B, K)),
            "alpha": 0.1,
        },
        gradient=("log_prob",),
        stopped=("other_log_prob",),
        extremes=lambda rng: [{"log_prob": np.full(B, -500.0)}],
    ),
    Case(
        losses.amq_estimate,
        lambda rng: {
            "q_value": rng.normal(size=(5, B)),
            "done": np.arange(5)[:, None] >= np.arange(B),
        },
        gradient=("q_value",),
        time=("q_value", "done"),
        extremes=lambda rng: [{"done": np.ones((5, B), bool)}],
    ),
    Case(
        losses.modt,
        lambda rng: {
            **normal(rng, predicted_action=(B, D), action=(B, D)),
            **normal(rng, predicted_state=(B, K), next_state=(B, K)),
            **normal(rng, predicted_return=B, return_to_go=B),
            "state_weight": 0.5,
            "return_weight": 0.1,
        },
        gradient=("predicted_action", "predicted_state", "predicted_return"),
        stopped=("action", "next_state", "return_to_go"),
        extremes=lambda rng: [{"return_to_go": HUGE}],
    ),
    Case(
        losses.normalized_score,
        lambda rng: {
            "returns": rng.uniform(0, 100, B),
            "random_return": 10.0,
            "expert_return": 110.0,
        },
        gradient=("returns",),
    ),
    Case(
        losses.safe_set,
        lambda rng: {
            "logits": rng.normal(size=B),
            "safe": MASK,
            "age": rng.uniform(0, 5, B),
            "decay": 0.9,
        },
        gradient=("logits",),
        stopped=("age",),
        extremes=lambda rng: [{"logits": HUGE}, {"logits": -HUGE}, {"age": HUGE}, {"decay": 0.0}],
    ),
]
test_contract = contract(CASES)


def x64(inputs):
    return {
        k: jnp.asarray(v) if isinstance(v, (np.ndarray, np.generic)) else v
        for k, v in inputs.items()
    }


def descend(loss, x, steps=400, rate=1.0):
    return jax.lax.fori_loop(0, steps, lambda _, x: x - rate * jax.grad(loss)(x), x)


def test_weights_of_the_best_trajectories():
    returns = jnp.float32([3.0, 1.0, 5.0, 4.0, 2.0])
    weights = losses.percentile_weights
    np.testing.assert_array_equal(weights(returns, 0.4), [0, 0, 1, 1, 0])
    np.testing.assert_array_equal(weights(returns, 0.41), [1, 0, 1, 1, 0])
    np.testing.assert_array_equal(weights(returns, 1.0), np.ones(5))
    mask = jnp.array([True, True, False, True, True])
    np.testing.assert_array_equal(weights(returns.at[2].set(jnp.nan), 0.5, mask), [1, 0, 0, 1, 0])
    np.testing.assert_array_equal(weights(returns, 0.5, jnp.zeros(5, bool)), np.zeros(5))
    tied = jnp.float32([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(weights(tied, 0.1), [[1, 1, 0], [1, 1, 1]])


def test_the_optimum_of_weighted_regression_is_the_tilted_data():
    """pi(a) is proportional to data(a) exp(A(a) / temperature)."""
    data = jnp.float32([0.5, 0.3, 0.2])
    advantage = jnp.float32([-0.5, 0.2, 0.7])

    def loss(logits):
        log_prob = jax.nn.log_softmax(logits)
        return (data * losses.awr(log_prob, advantage, 0.5)).sum()

    best = data * jnp.exp(advantage / 0.5)
    ours = jax.nn.softmax(descend(loss, jnp.zeros(3)))
    np.testing.assert_allclose(ours, best / best.sum(), atol=1e-4)
    cloned = jax.nn.softmax(
        descend(
            lambda x: (data * losses.behavior_cloning(jax.nn.log_softmax(x))).sum(), jnp.zeros(3)
        )
    )
    np.testing.assert_allclose(cloned, data, atol=1e-4)


@pytest.mark.slow
def test_td3_bc():
    """Value and gradients by hand; masked elements have no influence."""
    with jax.enable_x64(True):
        x = x64(example(CASES, losses.td3_bc))
        scale = 2.5 / np.abs(x["q_value"]).mean()
        expected = [
            -scale * q + ((a - b) ** 2).mean()
            for q, a, b in zip(x["q_value"], x["action"], x["data_action"], strict=True)
        ]
        np.testing.assert_allclose(losses.td3_bc(**x), np.array(expected), rtol=1e-9)
        gradient = jax.grad(lambda q: losses.td3_bc(**{**x, "q_value": q}).sum())(x["q_value"])
        np.testing.assert_allclose(gradient, -scale, rtol=1e-9)  # lambda is stopped

        def masked_loss(q_value, action):
            return losses.td3_bc(q_value, action, x["data_action"], mask=jnp.asarray(MASK)).sum()

        kept = {k: v[MASK] for k, v in x.items() if k != "alpha"}
        q_value = jnp.where(MASK, x["q_value"], jnp.nan)
        action = jnp.where(MASK[:, None], x["action"], jnp.nan)
        np.testing.assert_allclose(
            masked_loss(q_value, action), losses.td3_bc(**kept).sum(), rtol=1e-9
        )
        for gradient in jax.grad(masked_loss, argnums=(0, 1))(q_value, action):
            assert jnp.isfinite(gradient).all() and (gradient[~MASK] == 0).all()


def test_gradient_diversity():
    with jax.enable_x64(True):
        gradient = np.random.default_rng(0).normal(size=(B, D, K))

        def brute(g):
            g = g / np.linalg.norm(g, axis=0)
            return sum(g[:, i] @ g[:, j] for i in range(K) for j in range(K) if i != j) / (K - 1)

        ours = losses.gradient_diversity(jnp.asarray(gradient))
        np.testing.assert_allclose(ours, [brute(g) for g in gradient], rtol=1e-9)
    same = jnp.ones((1, D, K))
    np.testing.assert_allclose(losses.gradient_diversity(same), K, rtol=1e-5)
    opposite = same * jnp.array([1.0, -1.0, 1.0, -1.0])
    np.testing.assert_allclose(losses.gradient_diversity(opposite), -K / (K - 1), rtol=1e-5)


def test_smoothness_is_the_worst_symmetric_divergence():
    with jax.enable_x64(True):
        x = x64(two_policies(np.random.default_rng(0)))

        def kl(m, s, n, t):
            return (np.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5).sum()

        expected = []
        for i in range(B):
            here = np.array(x["mean"][i]), np.array(x["scale"][i])
            there = [
                (np.array(x["perturbed_mean"][i, k]), np.array(x["perturbed_scale"][i, k]))
                for k in range(K)
            ]
            expected.append(max(kl(*here, *q) + kl(*q, *here) for q in there))
        np.testing.assert_allclose(losses.policy_smoothness(**x), expected, rtol=1e-9)


def test_diverse_cloning():
    log_prob, others = jnp.float32([-1.0]), jnp.float32([[-2.0, -0.5]])
    np.testing.assert_allclose(losses.diverse_cloning(log_prob, others, 0.1), [1 + 0.1 * 0.5])
    gradient = jax.grad(lambda x: losses.diverse_cloning(x, others, 0.1).sum())(log_prob)
    np.testing.assert_allclose(gradient, [-1.1])


def test_a_rollouts_estimate_counts_steps_up_to_its_end():
    q_value = jnp.float32([[1.0, 2.0], [3.0, jnp.nan], [5.0, jnp.nan]])
    done = jnp.array([[False, True], [False, False], [False, True]])
    np.testing.assert_allclose(losses.amq_estimate(q_value, done), (1 + 3 + 5 + 2) / 4)
    gradient = jax.grad(losses.amq_estimate)(q_value, done)
    np.testing.assert_allclose(gradient, [[0.25, 0.25], [0.25, 0], [0.25, 0]])


def test_multi_objective_sequence_loss():
    x = example(CASES, losses.modt)
    expected = (
        ((x["predicted_action"] - x["action"]) ** 2).mean(-1)
        + 0.5 * ((x["predicted_state"] - x["next_state"]) ** 2).mean(-1)
        + 0.1 * (x["predicted_return"] - x["return_to_go"]) ** 2
    )
    ours = losses.modt(**{k: np.float32(v) for k, v in x.items()})
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_normalized_score():
    ours = losses.normalized_score(jnp.float32([10, 110, 60]), 10.0, 110.0)
    np.testing.assert_allclose(ours, [0, 100, 50])


def test_old_safety_labels_count_less():
    logits, safe = jnp.float32([0.7, 0.7, -1.0]), jnp.array([True, False, True])
    p = 1 / (1 + np.exp(-np.float64(logits)))
    fresh = -np.log(np.where(safe, p, 1 - p))
    age = jnp.array([0, 1, 2])
    np.testing.assert_allclose(losses.safe_set(logits, safe, age), fresh, rtol=1e-5)
    np.testing.assert_allclose(
        losses.safe_set(logits, safe, age, 0.5), fresh * [1, 0.5, 0.25], rtol=1e-5
    )
