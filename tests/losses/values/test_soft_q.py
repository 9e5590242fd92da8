import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from tests.losses import tabular
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def q_values(rng):
    return {"q_values": rng.normal(size=(5, 4)), "temperature": 0.5}


def steps(rng, *names):
    every = {
        "reward": rng.normal(size=5),
        "terminated": np.arange(5) % 2 == 0,
        "discount": 0.9,
        "q_values": rng.normal(size=(5, 4)),
        "action": rng.integers(0, 4, 5),
        "next_q_values": rng.normal(size=(5, 4)),
        "temperature": 0.5,
    }
    return {k: every[k] for k in names} if names else every


ENDED = {"next_q_values": np.full((5, 4), np.nan), "terminated": np.ones(5, bool)}
IMPOSSIBLE = np.tile([1.0, -np.inf, 2.0, -np.inf], (5, 1))
POSSIBLE = {"q_values": IMPOSSIBLE, "next_q_values": IMPOSSIBLE, "action": np.full(5, 1)}
LARGE = [{"q_values": 1e6 * np.eye(5, 4)}, {"q_values": np.zeros((5, 4))}, {"temperature": 1e-3}]
CASES = [
    Case(
        losses.soft_value,
        q_values,
        gradient=("q_values",),
        extremes=lambda rng: [{"q_values": IMPOSSIBLE}, *LARGE],
    ),
    Case(
        losses.soft_q_target,
        lambda rng: steps(rng, "reward", "terminated", "discount", "next_q_values", "temperature"),
        stopped=("reward", "next_q_values"),
        time=("reward", "terminated", "next_q_values"),
        extremes=lambda rng: [ENDED, {"next_q_values": IMPOSSIBLE}],
    ),
    Case(
        losses.munchausen_target,
        steps,
        stopped=("reward", "q_values", "next_q_values"),
        time=("reward", "terminated", "q_values", "action", "next_q_values"),
        extremes=lambda rng: [ENDED, POSSIBLE, *LARGE],
    ),
    *(
        Case(
            losses.tsallis_policy,
            lambda rng, index=index: {**q_values(rng), "index": index},
            stopped=("q_values",),
            extremes=lambda rng: [{"q_values": IMPOSSIBLE}, *LARGE],
            name=f"tsallis_policy-{index}",
        )
        for index in (1, 1.0001, 1.5, 2.0, 5.0)
    ),
    *(
        Case(
            losses.tsallis_value,
            lambda rng, index=index: {**q_values(rng), "index": index},
            stopped=("q_values",),
            extremes=lambda rng: [{"q_values": IMPOSSIBLE}, *LARGE],
            name=f"tsallis_value-{index}",
        )
        for index in (1, 2.0)
    ),
    *(
        Case(
            losses.tsallis_munchausen_target,
            lambda rng, index=index: {**steps(rng), "index": index},
            stopped=("reward", "q_values", "next_q_values"),
            time=("reward", "terminated", "q_values", "action", "next_q_values"),
            extremes=lambda rng: [ENDED, POSSIBLE, *LARGE],
            name=f"tsallis_munchausen_target-{index}",
        )
        for index in (1, 2.0)
    ),
]
test_contract = contract(CASES)


def test_soft_value_is_attained_by_the_best_policy():
    q = np.random.default_rng(0).normal(size=6)
    policy = scipy.special.softmax(q / 0.3)
    value = (policy * (q - 0.3 * np.log(policy))).sum()
    np.testing.assert_allclose(losses.soft_value(jnp.float32(q), 0.3), value, rtol=1e-5)
    other = np.random.default_rng(1).dirichlet(np.ones(6))
    assert (other * (q - 0.3 * np.log(other))).sum() < value


def test_repeated_soft_targets_converge_to_the_soft_optimum():
    environment = tabular.random_environment()
    best = tabular.solve(environment, lambda q: 0.5 * scipy.special.logsumexp(q / 0.5, axis=-1))
    ours = tabular.converge(environment, lambda q, *step: losses.soft_q_target(*step, 0.5))
    np.testing.assert_allclose(ours, best, rtol=1e-4, atol=1e-4)


def numpy_munchausen(x, scale, lowest):
    target = x["reward"].copy()
    for i in range(5):
        policy = scipy.special.softmax(x["q_values"][i] / x["temperature"])
        log_prob = np.log(policy[x["action"][i]])
        target[i] += scale * np.clip(x["temperature"] * log_prob, lowest, 0)
        if not x["terminated"][i]:
            q = x["next_q_values"][i]
            policy = scipy.special.softmax(q / x["temperature"])
            for a in range(4):
                follows = policy[a] * (q[a] - x["temperature"] * np.log(policy[a]))
                target[i] += x["discount"] * follows
    return target


@pytest.mark.parametrize("lowest", [-1.0, -0.3])
def test_munchausen_equals_a_loop(lowest):
    x = steps(np.random.default_rng(1))
    ours = losses.munchausen_target(**x, scale=0.8, lowest=lowest)
    np.testing.assert_allclose(ours, numpy_munchausen(x, 0.8, lowest), rtol=1e-4, atol=1e-5)


def here_and_there(q, shape):
    """Q-values of the current state, and the actions, for each [S, A, S]."""
    here = jnp.broadcast_to(q[:, None, None, :], (*shape, q.shape[-1]))
    return here, jnp.broadcast_to(jnp.arange(shape[1])[:, None], shape)


def test_munchausen_converges_to_the_policy_of_a_lower_temperature():
    """Vieillard et al., theorem 1: without clipping, the temperature falls to (1 - scale) of it."""
    environment = tabular.random_environment(2)
    best = tabular.solve(environment, lambda q: 0.1 * scipy.special.logsumexp(q / 0.1, axis=-1))

    def target(q, reward, terminated, discount, next_q):
        here, action = here_and_there(q, reward.shape)
        return losses.munchausen_target(
            reward, terminated, discount, here, action, next_q, 0.5, 0.8, -jnp.inf
        )

    ours = tabular.converge(environment, target, 800)
    policy, expected = scipy.special.softmax(ours / 0.5, -1), scipy.special.softmax(best / 0.1, -1)
    np.testing.assert_allclose(policy, expected, atol=2e-3)
    np.testing.assert_allclose(ours - 0.8 * 0.5 * np.log(policy), best, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("index", [1, 1.0001, 1.5, 2, 3])
def test_tsallis_policy_is_optimal(index):
    """The gradient of Q-values plus scaled entropy is constant on the support, smaller off it."""
    q = np.random.default_rng(3).normal(size=(20, 6))
    with jax.enable_x64(True):
        policy = np.asarray(losses.tsallis_policy(jnp.asarray(q), 0.7, index))
    np.testing.assert_allclose(policy.sum(-1), 1, rtol=1e-9)
    if index == 1:
        np.testing.assert_allclose(policy, scipy.special.softmax(q / 0.7, -1), rtol=1e-9)
        return
    slope = q - 0.7 * policy ** (index - 1) / (index - 1)
    inside = policy > 0
    top = np.where(inside, slope, -np.inf).max(-1, keepdims=True)
    np.testing.assert_allclose(np.where(inside, slope - top, 0), 0, atol=1e-6)
    assert (slope <= top + 1e-9).all()
    assert inside.all() == (index < 1.1)


def test_index_two_is_the_sparsemax_and_near_one_the_softmax():
    q = jnp.float32(np.random.default_rng(4).normal(size=(20, 6)))
    np.testing.assert_allclose(
        losses.tsallis_policy(q, 0.7, 2), losses.sparsemax(q / 0.7), atol=1e-6
    )
    np.testing.assert_allclose(
        losses.tsallis_policy(q, 0.7, 1 + 1e-6), jax.nn.softmax(q / 0.7), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("index", [1.5, 2, 3])
def test_tsallis_value_equals_a_loop(index):
    q = np.random.default_rng(5).normal(size=(6, 4))
    with jax.enable_x64(True):
        ours = losses.tsallis_value(jnp.asarray(q), 0.7, index)
        policy = np.asarray(losses.tsallis_policy(jnp.asarray(q), 0.7, index))
    expected = [
        sum(p * x for p, x in zip(row, line, strict=True))
        + 0.7 * (1 - sum(p**index for p in row)) / (index - 1)
        for row, line in zip(policy, q, strict=True)
    ]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.parametrize("index", [1, 1 + 1e-6])
def test_generalized_munchausen_at_index_one_is_munchausen(index):
    x = steps(np.random.default_rng(6))
    ours = losses.tsallis_munchausen_target(**x, index=index)
    np.testing.assert_allclose(ours, numpy_munchausen(x, 0.9, -1.0), atol=1e-5)


def test_generalized_munchausen_at_index_two_equals_a_loop():
    x = steps(np.random.default_rng(7))
    expected = x["reward"].copy()
    for i in range(5):
        policy = np.asarray(losses.sparsemax(jnp.asarray(x["q_values"][i] / 0.5)))
        expected[i] += 0.9 * max(0.5 * (policy[x["action"][i]] - 1), -0.4)
        if not x["terminated"][i]:
            q = x["next_q_values"][i]
            policy = np.asarray(losses.sparsemax(jnp.asarray(q / 0.5)))
            expected[i] += 0.9 * ((policy * q).sum() + 0.5 * (1 - (policy**2).sum()))
    ours = losses.tsallis_munchausen_target(**x, lowest=-0.4)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("index", [1, 1.5, 2])
def test_the_gap_and_the_logarithm_differ_by_a_constant_per_state(index):
    """`tsallis_munchausen_target` states this where the policy is positive."""
    q = np.random.default_rng(8).normal(size=(6, 4))
    with jax.enable_x64(True):
        policy = losses.tsallis_policy(jnp.asarray(q), 0.7, index)
        logarithm = jnp.log(policy) if index == 1 else (policy ** (index - 1) - 1) / (index - 1)
        gap = jnp.stack(
            [losses.q_advantage(jnp.asarray(q), jnp.full(6, a), policy) for a in range(4)], -1
        )
        constant = np.where(policy > 0, gap - 0.7 * logarithm, np.nan)
    np.testing.assert_allclose(np.nanmax(constant, -1), np.nanmin(constant, -1), atol=1e-9)


def test_tsallis_policy_by_a_general_optimizer():
    q = np.array([0.3, 1.0, -0.5])

    def loss(logits):
        p = scipy.special.softmax(logits)
        return -(p @ q + 0.6 / (1.5 * 0.5) * (1 - (p**1.5).sum()))

    best = scipy.optimize.minimize(loss, np.zeros(3), tol=1e-12).x
    np.testing.assert_allclose(
        losses.tsallis_policy(jnp.float32(q), 0.6, 1.5), scipy.special.softmax(best), atol=1e-4
    )
