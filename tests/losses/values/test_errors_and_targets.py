import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax
import scipy.stats
from hypothesis import example, given
from hypothesis import strategies as st

from jaxrl.losses import (
    clipped_squared_error,
    expectile_error,
    explained_variance,
    huber,
    squared_error,
)
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

NUMBER = st.floats(-100, 100)
SUBNORMAL = np.finfo(np.float32).tiny  # smaller numbers may be flushed to 0


def numbers(rng, *names, shape=(5, 3)):
    return {name: rng.normal(size=shape) for name in names}


HUGE = np.full((5, 3), 1e15)
CASES = [
    Case(
        losses.squared_error,
        lambda rng: numbers(rng, "value", "target"),
        gradient=("value",),
        stopped=("target",),
        extremes=lambda rng: [{"target": HUGE}, {"value": -HUGE}],
    ),
    Case(
        losses.clipped_squared_error,
        lambda rng: {**numbers(rng, "value", "old_value", "target"), "clip": 0.2},
        gradient=("value",),
        stopped=("old_value", "target"),
        extremes=lambda rng: [{"target": HUGE}, {"clip": float("inf")}, {"old_value": HUGE}],
    ),
    Case(
        losses.huber,
        lambda rng: {**numbers(rng, "value", "target"), "threshold": 0.7},
        gradient=("value",),
        stopped=("target",),
        extremes=lambda rng: [{"target": HUGE}, {"value": -HUGE}],
    ),
    Case(
        losses.expectile_error,
        lambda rng: {**numbers(rng, "value", "target"), "expectile": 0.7},
        gradient=("value",),
        stopped=("target",),
        extremes=lambda rng: [{"target": HUGE}, {"expectile": 0.0}, {"expectile": 1.0}],
    ),
    Case(
        losses.explained_variance,
        lambda rng: numbers(rng, "value", "target"),
        gradient=("value", "target"),
        extremes=lambda rng: [{"target": np.ones((5, 3))}, {"value": HUGE}],
    ),
    Case(
        losses.td_target,
        lambda rng: {
            **numbers(rng, "reward", "next_value"),
            "terminated": rng.uniform(size=(5, 3)) < 0.5,
            "discount": 0.9,
        },
        stopped=("reward", "next_value"),
        time=("reward", "next_value", "terminated"),
        extremes=lambda rng: [
            {"next_value": np.full((5, 3), np.nan), "terminated": np.ones((5, 3), bool)},
            {"reward": HUGE},
        ],
    ),
    Case(
        losses.average_reward_target,
        lambda rng: {**numbers(rng, "reward", "next_value"), "average_reward": rng.normal(size=())},
        stopped=("reward", "next_value", "average_reward"),
        extremes=lambda rng: [{"reward": HUGE}],
    ),
    Case(
        losses.reward_rate,
        lambda rng: {
            **numbers(rng, "reward", "value", "next_value"),
            "average_reward": rng.normal(size=()),
        },
        gradient=("average_reward",),
        stopped=("reward", "value", "next_value"),
        extremes=lambda rng: [{"reward": HUGE}],
    ),
    Case(
        losses.hybrid_critic,
        lambda rng: {
            **numbers(rng, "value", "returns"),
            **numbers(rng, "offline_value", "offline_target", shape=(4,)),
            "weight": 2.0,
            "mask": rng.uniform(size=(5, 3)) < 0.5,
            "offline_mask": np.array([True, False, True, True]),
        },
        gradient=("value", "offline_value"),
        stopped=("returns", "offline_target"),
        extremes=lambda rng: [
            {"mask": np.zeros((5, 3), bool), "value": np.full((5, 3), np.nan)},
            {"offline_mask": np.zeros(4, bool), "offline_target": np.full(4, np.inf)},
        ],
    ),
    *(
        Case(
            losses.prediction_error,
            lambda rng, order=order: {**numbers(rng, "prediction", "target"), "order": order},
            gradient=("prediction",),
            stopped=("target",),
            extremes=lambda rng: [
                {"target": HUGE},
                {"prediction": 0 * HUGE, "target": 0 * HUGE},
            ],
            name=f"prediction_error_{order}",
        )
        for order in (1, 2)
    ),
]
test_contract = contract(CASES)


@pytest.mark.slow
@given(NUMBER, NUMBER, st.floats(0.1, 10))
def test_huber_equals_optax(value, target, threshold):
    args = [*map(jnp.float32, (value, target, threshold))]
    np.testing.assert_allclose(
        huber(*args), optax.losses.huber_loss(*args[:2], delta=args[2]), rtol=1e-4, atol=1e-4
    )


def test_expectile_half_is_least_squares_and_its_minimizer_is_the_expectile():
    value, target = jnp.array([0.3, -2.0]), jnp.array([1.5, -4.0])
    np.testing.assert_allclose(
        expectile_error(value, target, 0.5), squared_error(value, target), rtol=1e-6
    )
    samples = np.random.default_rng(0).normal(size=401)
    best = scipy.stats.expectile(samples, 0.8)
    gradient = jax.grad(lambda v: expectile_error(v, jnp.float32(samples), 0.8).mean())
    np.testing.assert_allclose(gradient(jnp.float32(best)), 0, atol=1e-5)
    assert gradient(jnp.float32(best + 0.1)) > 0.01


def test_squared_error():
    assert squared_error(jnp.float32(5), jnp.float32(2)) == 4.5
    assert jax.grad(squared_error)(5.0, 2.0) == 3
    assert jax.grad(squared_error, argnums=1)(5.0, 2.0) == 0
    np.testing.assert_allclose(
        squared_error(jnp.arange(3.0), 1.0), rlax.l2_loss(jnp.arange(3.0), 1.0)
    )


@given(NUMBER, NUMBER, NUMBER, st.floats(0, 10))
def test_clipped_squared_error(value, old, target, clip):
    near = old + np.clip(value - old, -clip, clip)
    expected = max(0.5 * (value - target) ** 2, 0.5 * (near - target) ** 2)
    ours = clipped_squared_error(*map(jnp.float32, (value, old, target, clip)))
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-2)


@given(NUMBER, st.floats(-1e12, 1e12), NUMBER)
@example(10.0, 1e9, 20.0)
def test_without_a_limit_it_is_the_squared_error(value, old, target):
    """Exact equality, however far away the old value is."""
    value, old, target = map(jnp.float32, (value, old, target))
    for f in (lambda f: f, jax.grad):
        ours = f(lambda v: clipped_squared_error(v, old, target, jnp.inf))(value)
        theirs = f(lambda v: squared_error(v, target))(value)
        assert ours == theirs or abs(ours - theirs) <= SUBNORMAL


@pytest.mark.parametrize(
    "value,target,gradient",
    [
        (0.1, 5.0, 0.1 - 5.0),  # within the clip
        (0.5, 5.0, 0.0),  # moved enough toward the target
        (0.5, -5.0, 0.5 + 5.0),  # moved away from it: pulled back
    ],
)
def test_where_the_clipped_error_has_a_gradient(value, target, gradient):
    ours = jax.grad(clipped_squared_error)(value, 0.0, target, 0.2)
    np.testing.assert_allclose(ours, gradient, rtol=1e-5)


def test_no_gradient_into_old_values_and_targets():
    for value in (0.1, 0.5, -0.5):
        gradients = jax.grad(clipped_squared_error, argnums=(1, 2))(value, 0.0, 1.0, 0.2)
        assert gradients == (0, 0)


def test_explained_variance():
    target = jnp.array([1.0, 2.0, 4.0])
    assert explained_variance(target, target) == 1
    np.testing.assert_allclose(explained_variance(target + 7, target), 1, atol=1e-6)
    np.testing.assert_allclose(explained_variance(jnp.zeros(3), target), 0, atol=1e-6)
    np.testing.assert_allclose(explained_variance(-target, target), -3, rtol=1e-5)
    assert explained_variance(target, jnp.ones(3)) == 0
    assert explained_variance(target * 1e-4, target * 1e-4) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_extremes_without_nan(dtype):
    big = jnp.asarray([1e18, -1e18, 0.0], dtype)
    for old in (big, -big, jnp.zeros(3, dtype)):
        for clip in (0.0, 0.2, jnp.inf):
            loss, gradient = jax.vmap(
                jax.value_and_grad(clipped_squared_error), in_axes=(0, 0, 0, None)
            )(big, old, jnp.ones(3, dtype), clip)
            assert not jnp.isnan(loss).any() and not jnp.isnan(gradient).any()
            assert loss.dtype == dtype
    assert not jnp.isnan(explained_variance(big, big))


def test_td_target_equals_rlax_and_ends_where_terminated():
    rng = np.random.default_rng(0)
    value, reward, next_value = jnp.float32(rng.normal(size=(3, 6)))
    terminated = jnp.array([0, 1, 0, 0, 1, 1], bool)
    theirs = jax.vmap(rlax.td_learning)(value, reward, 0.9 * ~terminated, next_value)
    ours = losses.td_target(reward, terminated, 0.9, next_value) - value
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_reward_rate_of_a_loop_of_two_states():
    """Alternating rewards 1 and 3 average 2, and the state before the 3 is better by 1."""
    reward = jnp.array([1.0, 3.0])

    @jax.jit
    def step(_, state):
        value, rate = state
        target = losses.average_reward_target(reward, rate, value[::-1])
        fall = jax.grad(lambda v: losses.squared_error(v, target).sum())(value)
        sink = jax.grad(lambda r: losses.reward_rate(r, reward, value, value[::-1]).mean())(rate)
        return value - 0.1 * fall, rate - 0.1 * sink

    value, rate = jax.lax.fori_loop(0, 500, step, (jnp.zeros(2), jnp.zeros(())))
    np.testing.assert_allclose(rate, 2, atol=1e-3)
    np.testing.assert_allclose(value[1] - value[0], 1, atol=1e-3)
    assert (
        abs(value.mean()) < 30
    )  # it settles; with the rate's sign flipped it would grow with each step


def test_differential_errors():
    """Reward 2, rate 5 and values 3 and then 7 give an error of 2 - 5 + 7 - 3."""
    target = losses.average_reward_target(jnp.float32(2), jnp.float32(5), jnp.float32(7))
    assert target == 4
    assert jax.grad(losses.reward_rate)(5.0, 2.0, 3.0, 7.0) == -1


def test_hybrid_critic_weighs_the_on_policy_part():
    ours = losses.hybrid_critic(
        jnp.array([1.0, jnp.nan]),
        jnp.array([4.0, 0.0]),
        jnp.array([1.0, 2.0]),
        jnp.array([3.0, 2.0]),
        weight=10.0,
        mask=jnp.array([True, False]),
    )
    np.testing.assert_allclose(ours, 10 * 4.5 + 1.0)


def test_prediction_error_by_hand():
    prediction, target = jnp.array([1.0, -2.0, 0.0]), jnp.array([3.0, -1.0, 0.0])
    np.testing.assert_allclose(losses.prediction_error(prediction, target, 1), 1, rtol=1e-6)
    np.testing.assert_allclose(losses.prediction_error(prediction, target, 2), 5 / 3, rtol=1e-6)
    with pytest.raises(ValueError, match="order"):
        losses.prediction_error(prediction, target, 3)


@pytest.mark.parametrize("threshold", [0.5, 1.0, 1e3, 1e9])
def test_the_gradient_of_huber_is_the_clipped_error(threshold):
    value = jnp.array([-30.0, -1.0, -0.3, 0.5, 2.0])
    gradient = jax.grad(lambda v: losses.huber(v, jnp.zeros(5), threshold).sum())(value)
    np.testing.assert_allclose(gradient, jnp.clip(value, -threshold, threshold), rtol=1e-6)
