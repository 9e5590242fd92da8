import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def numbers(rng, *names, shape=(5, 3)):
    return {name: rng.normal(size=shape) for name in names}


def bisimulation_inputs(rng):
    vectors = ["latent", "other_latent", "next_mean", "other_next_mean"]
    scales = {k: rng.uniform(0.5, 1.5, (5, 3)) for k in ("next_scale", "other_next_scale")}
    rewards = numbers(rng, "reward", "other_reward", shape=5)
    return {**numbers(rng, *vectors), **scales, **rewards, "discount": 0.9}


MASK = np.array([True, True, False, True])
GARBAGE = np.where(MASK[:, None] & MASK, 0.5, np.nan)
DONE = np.array([[False, False], [False, True], [False, False], [True, False], [False, False]])
ZERO = np.zeros((5, 3))
CASES = [
    Case(
        losses.info_nce,
        lambda rng: {
            **numbers(rng, "similarity", shape=(2, 4, 4)),
            "temperature": np.float64(0.5),
            "mask": np.array([[True] * 4, [True, False, True, True]]),
            "symmetric": True,
        },
        gradient=("similarity", "temperature"),
        extremes=lambda rng: [
            {"mask": np.zeros((2, 4), bool)},
            {"similarity": np.tile(GARBAGE, (2, 1, 1)), "mask": np.tile(MASK, (2, 1))},
            {"similarity": 1e6 * rng.normal(size=(2, 4, 4))},
        ],
    ),
    Case(
        losses.self_prediction,
        lambda rng: {**numbers(rng, "prediction", "target", shape=(5, 2, 3)), "done": DONE},
        gradient=("prediction",),
        stopped=("target",),
        time=("prediction", "target", "done"),
        extremes=lambda rng: [
            {"prediction": np.zeros((5, 2, 3))},
            {"done": np.ones((5, 2), bool), "prediction": np.full((5, 2, 3), np.nan)},
            {"done": np.ones((5, 2), bool), "target": np.full((5, 2, 3), np.nan)},
        ],
    ),
    Case(
        losses.bisimulation,
        bisimulation_inputs,
        gradient=("latent", "other_latent"),
        stopped=(
            "reward",
            "other_reward",
            "next_mean",
            "other_next_mean",
            "next_scale",
            "other_next_scale",
        ),
        extremes=lambda rng: [
            dict.fromkeys(("latent", "other_latent", "next_mean", "other_next_mean"), ZERO),
            {"reward": np.full(5, 1e6)},
        ],
    ),
    Case(
        losses.successor_target,
        lambda rng: {
            **numbers(rng, "features", "next_successor"),
            "terminated": np.array([False, True, False, False, True]),
            "discount": rng.uniform(0.8, 1, 5),
        },
        stopped=("features", "next_successor", "discount"),
        extremes=lambda rng: [
            {"terminated": np.ones(5, bool), "next_successor": np.full((5, 3), np.nan)}
        ],
    ),
    Case(
        losses.reward_regression,
        lambda rng: {**numbers(rng, "features", "weight"), "reward": rng.normal(size=5)},
        gradient=("features", "weight"),
        stopped=("reward",),
        extremes=lambda rng: [{"reward": np.full(5, 1e6)}, {"features": ZERO}],
    ),
]
test_contract = contract(CASES)


def test_info_nce_is_the_cross_entropy_of_the_diagonal():
    s = np.random.default_rng(0).normal(size=(4, 4))
    labels = jnp.arange(4)
    cross_entropy = optax.losses.softmax_cross_entropy_with_integer_labels
    rows = cross_entropy(jnp.float32(s / 0.3), labels)
    columns = cross_entropy(jnp.float32(s.T / 0.3), labels)
    np.testing.assert_allclose(losses.info_nce(jnp.float32(s), 0.3), rows, rtol=1e-5)
    both = losses.info_nce(jnp.float32(s), 0.3, symmetric=True)
    np.testing.assert_allclose(both, (rows + columns) / 2, rtol=1e-5)


@pytest.mark.parametrize("symmetric", [False, True])
def test_info_nce_with_a_mask_is_that_of_the_smaller_batch(symmetric):
    s = np.random.default_rng(1).normal(size=(4, 4))
    ours = losses.info_nce(jnp.float32(s), 0.5, MASK, symmetric)
    small = losses.info_nce(jnp.float32(s[np.ix_(MASK, MASK)]), 0.5, symmetric=symmetric)
    np.testing.assert_allclose(ours[MASK], small, rtol=1e-5)
    assert ours[2] == 0


def test_self_prediction_is_the_normalized_square_and_ends_with_the_episode():
    """Check |p/|p| - t/|t||^2 = 2 - 2 cos, as in Grill et al., eq. 2."""
    rng = np.random.default_rng(0)
    p, t = rng.normal(size=(2, 5, 2, 3))
    ours = losses.self_prediction(jnp.float32(p), jnp.float32(t), DONE)
    for k in range(5):
        for b in range(2):
            u, v = p[k, b] / np.linalg.norm(p[k, b]), t[k, b] / np.linalg.norm(t[k, b])
            expected = 0 if DONE[: k + 1, b].any() else (np.square(u - v).sum() - 2) / 2
            np.testing.assert_allclose(ours[k, b], expected, rtol=1e-4, atol=1e-6)


def test_self_prediction_is_least_where_it_points_at_the_target():
    target = jnp.array([[1.0, 2.0, -1.0]])
    loss = jax.jit(lambda p: losses.self_prediction(p, target, jnp.zeros(1, bool)).sum())
    np.testing.assert_allclose(loss(5 * target), -1, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(loss)(5 * target), 0, atol=1e-7)
    p = jnp.array([[1.0, 0.0, 0.0]])
    step = losses.cosine_similarity(p - 0.1 * jax.grad(loss)(p), target)
    assert step[0] > losses.cosine_similarity(p, target)[0]


def test_bisimulation_by_hand():
    ours = losses.bisimulation(
        latent=jnp.array([1.0, 2.0]),
        other_latent=jnp.array([0.0, -1.0]),
        reward=jnp.array(3.0),
        other_reward=jnp.array(1.0),
        next_mean=jnp.array([1.0, 0.0]),
        other_next_mean=jnp.array([-1.0, 0.0]),
        next_scale=jnp.array([1.0, 2.0]),
        other_next_scale=jnp.array([1.0, 0.5]),
        discount=0.8,
    )
    np.testing.assert_allclose(ours, (4 - 2 - 0.8 * 2.5) ** 2, atol=1e-6)


def test_bisimulation_finds_the_metric_of_a_deterministic_chain():
    """States with equal reward and successor coincide; a reward that differs by 1 is 1 away."""
    reward = np.array([0.0, 0.0, 1.0])
    latent = jnp.array([[0.1], [0.4], [0.6]])
    successor = np.array([2, 2, 2])  # all lead to the third state
    i, j = np.array([0, 0, 1]), np.array([1, 2, 2])

    def loss(z):
        still = jnp.zeros((3, 1))
        return losses.bisimulation(
            z[i], z[j], jnp.float32(reward[i]), jnp.float32(reward[j]), z[successor[i]],
            z[successor[j]], still, still, 0.9,
        ).sum()  # fmt: skip

    step = jax.jit(lambda z: z - 0.05 * jax.grad(loss)(z))
    for _ in range(200):
        latent = step(latent)
    distance = abs(latent - latent.T)
    np.testing.assert_allclose(distance[0, 1], 0, atol=1e-3)  # the same reward and successor
    np.testing.assert_allclose(distance[0, 2], 1, atol=1e-3)


def test_successor_features_learn_discounted_occupancies():
    """Check psi = (I - discount P)^-1 for one-hot features; values are linear in it."""
    P = np.array([[0.1, 0.9, 0.0], [0.0, 0.5, 0.5], [0.3, 0.3, 0.4]])
    exact = np.linalg.inv(np.eye(3) - 0.8 * P)
    psi = jnp.zeros((3, 3))
    going = jnp.zeros((3, 3), bool)

    @jax.jit
    def step(psi):
        def loss(psi_now):
            features = jnp.broadcast_to(jnp.eye(3)[:, None], (3, 3, 3))
            target = losses.successor_target(features, psi[None], going, 0.8)
            error = losses.squared_error(psi_now[:, None], target)
            return (jnp.float32(P)[..., None] * error).sum()

        return psi - jax.grad(loss)(psi)

    for _ in range(100):
        psi = step(psi)
    np.testing.assert_allclose(psi, exact, atol=1e-4)


def test_successor_target_of_one_feature_is_the_td_target():
    rng = np.random.default_rng(0)
    reward, later = jnp.float32(rng.normal(size=(2, 4)))
    terminated = jnp.array([False, True, False, True])
    ours = losses.successor_target(reward[:, None], later[:, None], terminated, 0.9)[:, 0]
    discount = 0.9 * (1 - terminated)
    theirs = jax.vmap(rlax.td_learning)(jnp.zeros(4), reward, discount, later)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_reward_regression():
    features, weight = jnp.array([1.0, 2.0]), jnp.array([3.0, -1.0])
    assert losses.reward_regression(features, weight, jnp.array(4.0)) == 4.5
    gradient = jax.grad(losses.reward_regression, argnums=1)(features, weight, jnp.array(4.0))
    np.testing.assert_allclose(gradient, -3 * features)
