import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.losses import clipped_surrogate, policy_gradient
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract
from tests.losses.divergences.test_entropy_and_kl import IMPOSSIBLE

NUMBER = st.floats(-5, 5)


def log_probs(rng, *names, shape=(4, 3)):
    """Log-probabilities that are similar under all policies."""
    base = -rng.uniform(0.5, 2.0, shape)
    return {name: base + rng.uniform(-0.15, 0.15, shape) for name in names}


def surrogate_inputs(rng):
    return {
        **log_probs(rng, "log_prob", "old_log_prob"),
        "advantage": rng.normal(size=(4, 3)),
    }


def surrogate_extremes(rng):
    return [
        {"advantage": np.full((4, 3), 1e6)},
        {"advantage": np.zeros((4, 3))},
        {"advantage": np.full((4, 3), -1e6), "log_prob": np.full((4, 3), -500.0)},
        {"log_prob": np.full((4, 3), -500.0)},
        {"old_log_prob": np.full((4, 3), -500.0)},
        {"old_log_prob": np.full((4, 3), -500.0), "advantage": np.full((4, 3), -1e6)},
    ]


def choices(rng):
    return {"logits": rng.normal(size=(5, 4)), "q_values": rng.normal(size=(5, 4))}


CASES = [
    Case(
        losses.importance_ratio,
        lambda rng: log_probs(rng, "log_prob", "old_log_prob"),
        gradient=("log_prob", "old_log_prob"),
        extremes=lambda rng: [
            {"log_prob": np.full((4, 3), -1e4)},
            {"old_log_prob": -np.full((4, 3), 1e4)},
        ],
    ),
    Case(
        losses.policy_gradient,
        lambda rng: {**log_probs(rng, "log_prob"), "advantage": rng.normal(size=(4, 3))},
        gradient=("log_prob",),
        stopped=("advantage",),
        extremes=lambda rng: [{"advantage": np.full((4, 3), 1e30)}],
        diverging=lambda rng: [{"log_prob": np.full((4, 3), -np.inf)}],
    ),
    Case(
        losses.expected_policy_gradient,
        choices,
        surrogate=("logits",),
        stopped=("q_values",),
        extremes=lambda rng: [
            {"logits": np.tile(IMPOSSIBLE, (5, 1))},
            {"q_values": np.full((5, 4), 1e6)},
            {
                "logits": np.tile(IMPOSSIBLE, (5, 1)),
                "q_values": np.where(np.isinf(IMPOSSIBLE), np.nan, 1.0) * np.ones((5, 1)),
            },
        ],
        bfloat16=None,  # the value is 0 up to rounding
    ),
    Case(
        losses.counterfactual_advantage,
        lambda rng: {**choices(rng), "action": rng.integers(0, 4, 5)},
        stopped=("logits", "q_values"),
        extremes=lambda rng: [
            {"logits": np.tile(IMPOSSIBLE, (5, 1))},
            {"q_values": np.full((5, 4), 1e6)},
        ],
    ),
    Case(
        losses.surrogate,
        surrogate_inputs,
        gradient=("log_prob",),
        stopped=("old_log_prob", "advantage"),
        extremes=surrogate_extremes,
    ),
    Case(
        losses.kl_penalty_surrogate,
        lambda rng: {**surrogate_inputs(rng), "kl": rng.uniform(0, 1, (4, 3)), "beta": 0.7},
        gradient=("log_prob", "kl"),
        stopped=("old_log_prob", "advantage"),
        extremes=surrogate_extremes,
    ),
    Case(
        losses.adaptive_kl_coefficient,
        lambda rng: {
            "beta": rng.uniform(0.5, 1, 6),
            "kl": np.array([0.001, 0.006, 0.009, 0.011, 0.016, 0.1]),
            "target": 0.01,
        },
        stopped=("beta", "kl"),
        extremes=lambda rng: [{"kl": np.full(6, np.inf)}, {"kl": np.zeros(6)}],
    ),
    Case(
        losses.clipped_surrogate,
        lambda rng: {**surrogate_inputs(rng), "clip": 0.2},
        gradient=("log_prob",),
        stopped=("old_log_prob", "advantage"),
        extremes=lambda rng: [
            *surrogate_extremes(rng),
            {"log_prob": np.full((4, 3), -np.inf)},
        ],
    ),
    Case(
        losses.dual_clipped_surrogate,
        lambda rng: {**surrogate_inputs(rng), "clip": 0.2, "clip_high": 0.3},
        gradient=("log_prob",),
        stopped=("old_log_prob", "advantage"),
        extremes=surrogate_extremes,
    ),
    Case(
        losses.drift_surrogate,
        lambda rng: {**surrogate_inputs(rng), "drift": rng.uniform(0, 1, (4, 3))},
        gradient=("log_prob", "drift"),
        stopped=("old_log_prob", "advantage"),
        extremes=surrogate_extremes,
    ),
    Case(
        losses.clip_drift,
        lambda rng: {
            "ratio": rng.uniform(1.3, 2, (4, 3)),
            "advantage": rng.normal(size=(4, 3)),
            "clip": 0.2,
        },
        gradient=("ratio",),
        stopped=("advantage",),
        extremes=lambda rng: [
            {"ratio": np.full((4, 3), 1e26)},
            {"ratio": np.zeros((4, 3)), "advantage": np.full((4, 3), -1e6)},
            {"ratio": np.ones((4, 3))},
        ],
    ),
    Case(
        losses.discovered_drift,
        lambda rng: {
            "log_prob": -rng.uniform(0.5, 0.6, (4, 3)),
            "old_log_prob": -rng.uniform(1.5, 2.0, (4, 3)),
            "advantage": rng.uniform(1, 3, (4, 3)),
        },
        gradient=("log_prob",),
        stopped=("old_log_prob", "advantage"),
        extremes=surrogate_extremes,
    ),
    Case(
        losses.magic_box,
        lambda rng: log_probs(rng, "log_prob"),
        surrogate=("log_prob",),
        extremes=lambda rng: [{"log_prob": np.full((4, 3), -1e4)}],
    ),
    Case(
        losses.dice,
        lambda rng: {
            **log_probs(rng, "log_prob"),
            "reward": rng.normal(size=(4, 3)),
            "discount": np.array(0.9),
            "value": rng.normal(size=(4, 3)),
            "mask": np.arange(4)[:, None] < np.array([4, 2, 0]),
        },
        gradient=("reward", "discount"),
        surrogate=("log_prob",),
        stopped=("value",),
        time=("log_prob", "reward", "value", "mask"),
        extremes=lambda rng: [
            {"log_prob": np.full((4, 3), -500.0)},
            {"mask": np.zeros((4, 3), bool), "reward": np.full((4, 3), np.nan)},
            {"mask": np.zeros((4, 3), bool), "log_prob": np.full((4, 3), np.nan)},
            {"mask": np.zeros((4, 3), bool), "value": np.full((4, 3), np.nan)},
            {"discount": np.array(0.0)},
        ],
    ),
]
test_contract = contract(CASES)


def brute_force_surrogate(log_prob, old_log_prob, advantage, low, high):
    ratio = np.exp(np.float64(log_prob) - old_log_prob)
    if advantage >= 0:
        return -min(ratio, 1 + high) * advantage
    return -max(ratio, 1 - low) * advantage


@pytest.mark.slow
@given(NUMBER, NUMBER, NUMBER, st.floats(0, 0.9), st.floats(0, 0.9))
def test_clipped_surrogate(log_prob, old, advantage, low, high):
    args = [*map(jnp.float32, (log_prob, old, advantage))]
    expected = brute_force_surrogate(log_prob, old, advantage, low, high)
    np.testing.assert_allclose(clipped_surrogate(*args, low, high), expected, rtol=1e-4, atol=1e-5)
    expected = min(expected, -3 * advantage) if advantage < 0 else expected
    ours = losses.dual_clipped_surrogate(*args, low, 3.0, high)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


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
        (0.3, 1.0, 0.0),  # already beyond the clip, in the right direction
        (0.3, -1.0, np.exp(0.3)),
        (-0.3, 1.0, -np.exp(-0.3)),
        (-0.3, -1.0, 0.0),
        (2.0, -1.0, np.exp(2.0)),
    ],
)
def test_where_the_surrogate_has_a_gradient(log_ratio, advantage, gradient):
    ours = jax.grad(clipped_surrogate)(log_ratio, 0.0, advantage, 0.2)
    np.testing.assert_allclose(ours, gradient, rtol=1e-5)
    bounded = jax.grad(losses.dual_clipped_surrogate)(log_ratio, 0.0, advantage, 0.2, 3.0)
    np.testing.assert_allclose(bounded, 0 if log_ratio == 2 else gradient, rtol=1e-5)


def test_at_ratio_1_every_surrogate_is_the_policy_gradient():
    def drifting(drift):
        def loss(x, old, a):
            return losses.drift_surrogate(x, old, a, drift(x, old, a))

        return loss

    for loss in (
        losses.surrogate,
        lambda *args: clipped_surrogate(*args, 0.2),
        lambda *args: losses.dual_clipped_surrogate(*args, 0.2),
        drifting(lambda x, old, a: losses.clip_drift(losses.importance_ratio(x, old), a, 0.2)),
        drifting(losses.discovered_drift),
    ):
        for advantage in (-2.0, 0.0, 3.0):
            ours = jax.grad(loss)(-1.3, -1.3, advantage)
            np.testing.assert_allclose(ours, -advantage, rtol=1e-6)
            assert jax.grad(policy_gradient)(-1.3, advantage) == -advantage


@pytest.mark.slow
def test_the_clip_is_a_drift():
    rng = np.random.default_rng(1)
    log_prob, old, advantage = jnp.float32(rng.normal(size=(3, 200)))

    def with_drift(log_prob):
        drift = losses.clip_drift(losses.importance_ratio(log_prob, old), advantage, 0.2)
        assert (drift >= 0).all()
        return losses.drift_surrogate(log_prob, old, advantage, drift)

    clipped = clipped_surrogate(log_prob, old, advantage, 0.2)
    np.testing.assert_allclose(with_drift(log_prob), clipped, rtol=1e-5, atol=1e-6)
    ours = jax.grad(lambda x: with_drift(x).sum())(log_prob)
    theirs = jax.grad(lambda x: clipped_surrogate(x, old, advantage, 0.2).sum())(log_prob)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_discovered_drift_is_its_definition():
    rng = np.random.default_rng(2)
    log_ratio, advantage = rng.normal(size=(2, 100))
    gain = (np.exp(log_ratio) - 1) * advantage
    loss = log_ratio * advantage
    expected = np.where(
        advantage >= 0,
        np.maximum(gain - 2 * np.tanh(gain / 2), 0),
        np.maximum(loss - 0.6 * np.tanh(loss / 0.6), 0),
    )
    ours = losses.discovered_drift(jnp.float32(log_ratio), jnp.zeros(100), jnp.float32(advantage))
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-6)


def test_penalty_and_its_coefficient():
    args = [jnp.float32(x) for x in (-1.0, -1.2, 2.0, 0.3)]
    np.testing.assert_allclose(
        losses.kl_penalty_surrogate(*args, 0.5), -2 * np.exp(0.2) + 0.15, rtol=1e-6
    )
    kl = jnp.array([0.006, 0.007, 0.0149, 0.0151])
    ours = losses.adaptive_kl_coefficient(jnp.ones(4), kl, 0.01)
    np.testing.assert_array_equal(ours, [0.5, 1, 1, 2])


def test_policy_gradients_are_those_of_the_expected_reward():
    """REINFORCE's on average, the all-action gradient at once; both negated."""
    logits, reward = jnp.array([0.3, -0.2, 1.0]), jnp.array([1.0, 5.0, -2.0])
    policy = jax.nn.softmax(logits)

    def expected_loss(logits):
        return (policy * policy_gradient(jax.nn.log_softmax(logits), reward)).sum()

    exact = jax.grad(lambda logits: jax.nn.softmax(logits) @ reward)(logits)
    np.testing.assert_allclose(jax.grad(expected_loss)(logits), -exact, rtol=1e-5, atol=1e-6)
    ours = jax.grad(losses.expected_policy_gradient)(logits, reward)
    np.testing.assert_allclose(ours, -exact, rtol=1e-5, atol=1e-6)
    batch = jnp.stack([logits, reward]), jnp.stack([reward, logits])
    theirs = rlax.qpg_loss(*batch)
    np.testing.assert_allclose(losses.expected_policy_gradient(*batch).mean(), theirs, atol=1e-6)


def test_counterfactual_advantages_average_to_0():
    rng = np.random.default_rng(3)
    logits, q_values = jnp.float32(rng.normal(size=(2, 4)))
    ours = losses.counterfactual_advantage(
        jnp.tile(logits, (4, 1)), jnp.tile(q_values, (4, 1)), jnp.arange(4)
    )
    policy = jax.nn.softmax(logits)
    np.testing.assert_allclose(policy @ ours, 0, atol=1e-6)
    np.testing.assert_allclose(ours[1] - ours[0], q_values[1] - q_values[0], rtol=1e-5)


def test_magic_box_is_1_and_its_derivatives_are_those_of_the_ratio():
    with jax.enable_x64(True):
        logits = jnp.array([0.3, -0.2, 1.0])
        probs = jax.nn.softmax(logits)
        box = lambda x: losses.magic_box(jax.nn.log_softmax(x))
        ratio = lambda x: jax.nn.softmax(x) / probs
        assert (box(logits) == 1).all()
        for derivative in (jax.jacrev, jax.hessian):
            ours, theirs = (jax.jit(derivative(f))(logits) for f in (box, ratio))
            np.testing.assert_allclose(ours, theirs, atol=1e-12)


# Two steps, two actions: the second reward depends on the first action.
REWARD = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 2.0]])  # first step; second step after 0, 1
PATHS = np.array([*itertools.product(range(2), range(2))])
PATH_REWARD = np.stack([REWARD[0][PATHS[:, 0]], REWARD[1 + PATHS[:, 0], PATHS[:, 1]]])


def path_log_probs(theta):
    """Log-probabilities [T, paths] of a policy with logits [state, action]."""
    log_policy = jax.nn.log_softmax(theta.reshape(3, 2))
    return jnp.stack([log_policy[0][PATHS[:, 0]], log_policy[1 + PATHS[:, 0], PATHS[:, 1]]])


@pytest.mark.slow
@pytest.mark.parametrize("baseline", [False, True])
def test_dice_has_the_exact_derivatives_of_first_and_second_order(baseline):
    """Averages over all paths; a good baseline changes neither, but lowers the variance."""
    with jax.enable_x64(True):
        theta = jnp.asarray(np.random.default_rng(4).normal(size=6))

        def expected_return(theta):
            total = jnp.exp(path_log_probs(theta).sum(0))
            return total @ (PATH_REWARD[0] + 0.9 * PATH_REWARD[1])

        policy = jax.nn.softmax(theta.reshape(3, 2))
        second = (policy[1:] * REWARD[1:]).sum(-1)
        first = policy[0] @ (REWARD[0] + 0.9 * second)
        value = jnp.stack([jnp.full(4, first), second[PATHS[:, 0]]])

        def loss(theta, value):
            return losses.dice(path_log_probs(theta), PATH_REWARD, 0.9, value).sum(0)

        probs = jnp.exp(path_log_probs(theta).sum(0))
        value = value if baseline else None
        np.testing.assert_allclose(
            loss(theta, value), -(PATH_REWARD[0] + 0.9 * PATH_REWARD[1]), rtol=1e-9
        )
        for derivative in (jax.jacobian, lambda f: jax.jacobian(jax.jacobian(f))):
            each = jax.jit(derivative(lambda theta: loss(theta, value)))(theta)
            exact = jax.jit(derivative(expected_return))(theta)
            mean = jnp.tensordot(probs, each, 1)
            np.testing.assert_allclose(mean, -exact, atol=1e-9)
            if baseline:
                plain = jax.jit(derivative(lambda theta: loss(theta, None)))(theta)
                spread = [
                    jnp.tensordot(probs, jnp.square(x - mean), 1).sum() for x in (each, plain)
                ]
                assert spread[0] < 0.9 * spread[1]


def test_dice_treats_its_baseline_as_a_constant_in_second_derivatives():
    log_prob, reward, value = jnp.float32(np.random.default_rng(6).normal(size=(3, 4)))
    first = jax.grad(lambda x, value: losses.dice(x, reward, 0.9, value).sum())
    assert (jax.jacobian(first, argnums=1)(log_prob, value) == 0).all()


def test_elements_masked_in_dice_have_no_influence():
    rng = np.random.default_rng(5)
    log_prob, reward, value = rng.normal(size=(3, 4, 2))
    mask = np.array([[1, 1], [1, 1], [0, 1], [0, 1]], bool)
    full = losses.dice(*map(jnp.float32, (log_prob, reward)), 0.9, jnp.float32(value), mask)
    short = losses.dice(
        *(jnp.float32(x[:2, :1]) for x in (log_prob, reward)), 0.9, jnp.float32(value[:2, :1])
    )
    np.testing.assert_allclose(full[:2, :1], short, rtol=1e-6)
    assert (full[2:, 0] == 0).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("log_ratio", [50.0, 500.0])
def test_where_an_overflowing_ratio_is_clipped_its_gradient_is_0(dtype, log_ratio):
    args = [jnp.asarray(x, dtype) for x in (log_ratio, 0.0, 1e4, 0.2)]
    value, gradient = jax.value_and_grad(clipped_surrogate)(*args)
    assert gradient == 0
    np.testing.assert_allclose(np.float32(value), -1.2e4, rtol=1e-2)


def test_shapes_broadcast_and_one_value_per_element():
    x = jnp.zeros((4, 3))
    assert clipped_surrogate(x, x, jnp.ones(3), 0.2).shape == (4, 3)
    assert policy_gradient(x, jnp.ones(3)).shape == (4, 3)
