import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.losses import approximate_kl, clipped_surrogate, policy_gradient

NUMBER = st.floats(-5, 5)


def brute_force_surrogate(log_prob, old_log_prob, advantage, clip):
    ratio = np.exp(np.float64(log_prob) - old_log_prob)
    if advantage >= 0:
        return -min(ratio, 1 + clip) * advantage
    return -max(ratio, 1 - clip) * advantage


@given(NUMBER, NUMBER, NUMBER, st.floats(0, 0.9))
def test_clipped_surrogate(log_prob, old, advantage, clip):
    ours = clipped_surrogate(*map(jnp.float32, (log_prob, old, advantage)), clip)
    theirs = brute_force_surrogate(log_prob, old, advantage, clip)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_clipped_surrogate_equals_rlax():
    rng = np.random.default_rng(0)
    log_prob, old, advantage = rng.normal(size=(3, 64)).astype(np.float32)
    theirs = rlax.clipped_surrogate_pg_loss(jnp.exp(log_prob - old), advantage, 0.2)
    ours = clipped_surrogate(log_prob, old, advantage, 0.2)
    assert ours.shape == (64,)
    np.testing.assert_allclose(ours.mean(), theirs, rtol=1e-5)


@pytest.mark.parametrize(
    "log_ratio,advantage,gradient",
    [
        (0.1, 1.0, -np.exp(0.1)),
        (0.3, 1.0, 0.0),  # already further than the clip, in the right direction
        (0.3, -1.0, np.exp(0.3)),
        (-0.3, 1.0, -np.exp(-0.3)),
        (-0.3, -1.0, 0.0),
    ],
)
def test_where_the_surrogate_has_a_gradient(log_ratio, advantage, gradient):
    ours = jax.grad(clipped_surrogate)(log_ratio, 0.0, advantage, 0.2)
    np.testing.assert_allclose(ours, gradient, rtol=1e-5)


def test_at_ratio_1_the_surrogate_is_the_policy_gradient():
    for advantage in (-2.0, 0.0, 3.0):
        ours = jax.grad(clipped_surrogate)(-1.3, -1.3, advantage, 0.2)
        theirs = jax.grad(policy_gradient)(-1.3, advantage)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert theirs == -advantage


def test_policy_gradient_is_reinforce():
    """Its mean gradient over a policy is minus the exact gradient of the expected reward."""
    logits, reward = jnp.array([0.3, -0.2, 1.0]), jnp.array([1.0, 5.0, -2.0])
    policy = jax.nn.softmax(logits)

    def expected_loss(logits):
        return (policy * policy_gradient(jax.nn.log_softmax(logits), reward)).sum()

    exact = jax.grad(lambda logits: jax.nn.softmax(logits) @ reward)(logits)
    np.testing.assert_allclose(jax.grad(expected_loss)(logits), -exact, rtol=1e-5, atol=1e-6)


def test_no_gradient_where_none_is_meant():
    assert jax.grad(policy_gradient, argnums=1)(-1.0, 2.0) == 0
    gradients = jax.grad(clipped_surrogate, argnums=(1, 2))(-1.0, -1.1, 2.0, 0.2)
    assert gradients == (0, 0)


@given(st.floats(-20, 20))
def test_kl_estimate_is_never_negative(log_ratio):
    ours = approximate_kl(jnp.float32(log_ratio), jnp.float32(0))
    x = np.float64(np.float32(log_ratio))
    assert ours >= 0
    np.testing.assert_allclose(ours, np.expm1(x) - x, rtol=1e-4, atol=1e-6)


def test_kl_estimate_is_unbiased():
    """Its mean under the old policy is KL(old || new)."""
    old, new = jnp.array([0.2, 0.5, 0.3]), jnp.array([0.4, 0.35, 0.25])
    exact = (old * jnp.log(old / new)).sum()
    np.testing.assert_allclose(
        (old * approximate_kl(jnp.log(new), jnp.log(old))).sum(), exact, rtol=1e-4
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("log_ratio", [0.0, 50.0, -50.0, 500.0, -500.0])
@pytest.mark.parametrize("advantage", [0.0, 1.0, 1e4, -1e-6])
def test_extremes_without_nan(dtype, log_ratio, advantage):
    """A ratio that overflows is no NaN, and where it is clipped the gradient is zero."""
    log_ratio, advantage = jnp.asarray(log_ratio, dtype), jnp.asarray(advantage, dtype)
    args = (log_ratio, jnp.zeros((), dtype), advantage, jnp.asarray(0.2, dtype))
    value, gradient = jax.value_and_grad(clipped_surrogate)(*args)
    assert value.dtype == dtype
    assert not jnp.isnan(value) and not jnp.isnan(gradient)
    if log_ratio > 1 and advantage > 0:
        assert gradient == 0
        np.testing.assert_allclose(np.float32(value), -1.2 * np.float32(advantage), rtol=1e-2)
    assert not jnp.isnan(policy_gradient(-jnp.abs(log_ratio), advantage))
    assert not jnp.isnan(approximate_kl(*args[:2]))


def test_shapes_broadcast_and_one_value_per_element():
    x = jnp.zeros((4, 3))
    assert clipped_surrogate(x, x, jnp.ones(3), 0.2).shape == (4, 3)
    assert policy_gradient(x, jnp.ones(3)).shape == (4, 3)
    assert approximate_kl(x, x).shape == (4, 3)
