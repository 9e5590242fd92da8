import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.losses.compiled import gradients, losses, solvers
from tests.losses.contract import Case, contract

SHAPE = (4, 5)
ZERO, TINY, HUGE = np.zeros(SHAPE), np.full(SHAPE, 1e-30), np.full(SHAPE, 1e30)
FISHER = np.array([[2.0, 0.3, 0], [0.3, 1.0, 0.2], [0, 0.2, 0.5]])


def fisher_vector_product(v):
    return jnp.asarray(FISHER, v.dtype) @ v


CASES = [
    Case(
        gradients.clip_norm,
        lambda rng: {"gradient": rng.normal(size=SHAPE), "largest": 1.5},
        gradient=("gradient",),
        extremes=lambda rng: [
            *({"gradient": x} for x in (ZERO, TINY, HUGE)),
            {"largest": float("inf")},
        ],
    ),
    Case(
        gradients.parameter_soup,
        lambda rng: {"parameters": rng.normal(size=SHAPE), "weight": rng.uniform(size=5)},
        gradient=("parameters", "weight"),
    ),
    Case(
        gradients.natural_gradient_step,
        lambda rng: {
            "fisher_vector_product": fisher_vector_product,
            "gradient": rng.normal(size=3),
            "max_kl": 0.01,
            "damping": 0.1,
        },
        stopped=("gradient",),
        extremes=lambda rng: [{"gradient": np.zeros(3)}, {"gradient": np.full(3, 1e6)}],
    ),
    Case(
        gradients.polyak_step_size,
        lambda rng: {
            "value": rng.normal(size=4),
            "best_value": rng.normal(size=4) + 2,
            "squared_norm": rng.uniform(1, 2, 4),
            "maximum": 1.0,
        },
        stopped=("value", "best_value", "squared_norm"),
        extremes=lambda rng: [
            {"squared_norm": np.zeros(4)},
            {"squared_norm": np.full(4, 1e-30)},
            {"value": np.full(4, 1e6)},
        ],
    ),
]
test_contract = contract(CASES)


def test_clip_norm_equals_optax():
    rng = np.random.default_rng(0)
    for size in (1e-20, 0.1, 1.0, 10.0):
        x = jnp.float32(size * rng.normal(size=5))
        clip = optax.clip_by_global_norm(1.5)
        theirs = clip.update(x, clip.init(x))[0]
        np.testing.assert_allclose(gradients.clip_norm(x, 1.5), theirs, rtol=1e-5)
    np.testing.assert_allclose(gradients.clip_norm(jnp.full(4, 1e30), 1.0), 0.5, rtol=1e-6)
    long, short = jnp.full(4, 1.2), jnp.full(4, 0.7)  # lengths 2.4 and 1.4
    np.testing.assert_allclose(gradients.clip_norm(long, 1.5), 0.75, rtol=1e-6)
    np.testing.assert_allclose(gradients.clip_norm(short, 1.5), short)


@pytest.fixture(scope="module")
def softmax_policy():
    """Logits of two states, advantages, and the exact Fisher matrix of the mean divergence."""
    rng = np.random.default_rng(0)
    logits, advantage = rng.normal(size=(2, 2, 3))
    policy = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    advantage -= (policy * advantage).sum(-1, keepdims=True)
    fisher = np.zeros((6, 6))
    for state in range(2):
        part = slice(3 * state, 3 * state + 3)
        fisher[part, part] = (np.diag(policy[state]) - np.outer(policy[state], policy[state])) / 2
    return logits, policy, advantage, fisher


@pytest.mark.slow
def test_natural_gradient_step_is_the_explicit_one(softmax_policy):
    logits, policy, advantage, fisher = softmax_policy
    with jax.enable_x64(True):
        logits = jnp.asarray(logits)

        def divergence(x):
            return losses.categorical_kl(logits, x).mean()

        def loss(x):
            log_prob = jax.nn.log_softmax(x)
            taken = losses.surrogate(log_prob, jax.nn.log_softmax(logits), advantage)
            return (policy * taken).sum(-1).mean()

        def product(v):
            return jax.jvp(jax.grad(divergence), (logits,), (v,))[1]

        gradient = jax.jit(jax.grad(loss))(logits)
        step = jax.jit(lambda g: gradients.natural_gradient_step(product, g, 1e-4))(gradient)
        direction = np.linalg.pinv(fisher) @ gradient.ravel()
        size = np.sqrt(2e-4 / (direction @ fisher @ direction))
        np.testing.assert_allclose(step.ravel(), -size * direction, rtol=1e-6)
        np.testing.assert_allclose(divergence(logits + step), 1e-4, rtol=0.02)
        assert loss(logits + step) < loss(logits)
        # For a tabular softmax policy this is mirror descent: logits change by the advantages.
        moved = solvers.mirror_descent(logits, jnp.asarray(advantage), size)
        np.testing.assert_allclose(moved, jax.nn.log_softmax(logits + step), atol=1e-9)
        tree = jax.jit(
            lambda g: gradients.natural_gradient_step(lambda v: {"a": product(v["a"])}, g, 1e-4)
        )({"a": gradient})
        np.testing.assert_allclose(tree["a"], step)


def test_natural_gradient_step_applies_damping():
    gradient = np.array([1.0, -2.0, 0.5])
    step = gradients.natural_gradient_step(
        fisher_vector_product, jnp.float32(gradient), 0.01, damping=0.5
    )
    direction = np.linalg.solve(FISHER + 0.5 * np.eye(3), gradient)
    expected = -np.sqrt(0.02 / (direction @ gradient)) * direction
    np.testing.assert_allclose(step, expected, rtol=1e-4)
    assert (gradients.natural_gradient_step(fisher_vector_product, jnp.zeros(3), 0.01) == 0).all()


def test_polyak_steps_reach_the_optimum_of_a_cone_and_are_bounded():
    """One step on f = -|x| reaches the optimum from anywhere."""
    x = jnp.array([3.0, -4.0])
    gradient = -x / jnp.linalg.norm(x)
    step = gradients.polyak_step_size(-jnp.linalg.norm(x), 0.0, gradient @ gradient, 100.0)
    np.testing.assert_allclose(x + step * gradient, 0, atol=1e-5)
    args = jnp.float32(1.0), jnp.float32(3.0), jnp.float32(0.5)
    assert gradients.polyak_step_size(*args, 10.0) == 4
    assert gradients.polyak_step_size(*args, 10.0, scale=2.0) == 2
    assert gradients.polyak_step_size(*args, 3.0) == 3
    assert gradients.polyak_step_size(args[1], args[0], args[2], 3.0) == 0
    assert gradients.polyak_step_size(args[0], args[1], jnp.float32(0), 3.0) == 3
