import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses import tabular
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def identity(x):
    return x


def log(x):
    """Logarithmic mapping of van Seijen et al., 2019, kept finite."""
    return 0.5 * jnp.log1p(jnp.maximum(x, 0) / 0.02)


def log_inverse(x):
    return 0.02 * jnp.expm1(jnp.minimum(x / 0.5, 60))


def root(x):
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1) - 1)


def root_inverse(x):
    return jnp.sign(x) * (jnp.square(jnp.abs(x) + 1) - 1)


def steps(rng):
    return {
        "reward": rng.normal(size=(5, 2)),
        "terminated": np.arange(5) % 2 == 0,
        "discount": 0.9,
        "next_q_values": rng.normal(size=(5, 2, 4)),
    }


ENDED = {"next_q_values": np.full((5, 2, 4), np.nan), "terminated": np.ones(5, bool)}
TIME = ("reward", "terminated", "next_q_values")
CASES = [
    Case(
        losses.sign_channels,
        lambda rng: {"reward": rng.normal(size=5)},
        gradient=("reward",),
        time=("reward",),
        extremes=lambda rng: [{"reward": np.full(5, -1e15)}, {"reward": np.zeros(5)}],
    ),
    Case(
        losses.aggregate_q_values,
        lambda rng: {"q_values": rng.normal(size=(5, 2, 4)), "weight": rng.normal(size=2)},
        gradient=("q_values", "weight"),
        extremes=lambda rng: [{"q_values": np.full((5, 2, 4), 1e15)}],
    ),
    Case(
        losses.hybrid_reward_target,
        steps,
        stopped=("reward", "next_q_values"),
        time=TIME,
        extremes=lambda rng: [ENDED],
    ),
    Case(
        losses.hybrid_reward_target,
        lambda rng: {**steps(rng), "action_prob": rng.dirichlet(np.ones(4), 5)},
        stopped=("reward", "next_q_values", "action_prob"),
        time=(*TIME, "action_prob"),
        extremes=lambda rng: [ENDED],
        name="hybrid_reward_target-policy",
    ),
    Case(
        losses.q_decomposition_target,
        lambda rng: {**steps(rng), "weight": np.array([1.0, -1.0])},
        stopped=("reward", "next_q_values", "weight"),
        time=TIME,
        extremes=lambda rng: [ENDED],
    ),
    Case(
        losses.mapped_q_target,
        lambda rng: {
            **steps(rng),
            "reward": rng.uniform(1, 2, (5, 2)),
            "q_value": rng.normal(size=(5, 2)),
            "weight": np.array([1.0, -1.0]),
            "forward": log,
            "inverse": log_inverse,
            "step": 0.1,
        },
        stopped=("reward", "next_q_values", "weight", "q_value"),
        time=(*TIME, "q_value"),
        extremes=lambda rng: [ENDED, {"q_value": np.full((5, 2), 1e6)}],
    ),
]
test_contract = contract(CASES)


def test_channels_of_a_reward_sum_to_it():
    reward = jnp.array([-2.0, 0.0, 3.0])
    channels = losses.sign_channels(reward)
    assert (channels >= 0).all()
    np.testing.assert_array_equal(channels @ jnp.array([1.0, -1.0]), reward)


def test_one_channel_without_a_mapping_is_q_learning():
    x = steps(np.random.default_rng(0))
    one = {k: v[:, :1] if k in ("reward", "next_q_values") else v for k, v in x.items()}
    plain = losses.q_learning_target(
        x["reward"][:, 0], x["terminated"], 0.9, one["next_q_values"][:, 0]
    )
    weight = jnp.ones(1)
    mapped = losses.mapped_q_target(
        **one, q_value=jnp.zeros((5, 1)), weight=weight, forward=identity, inverse=identity
    )
    for ours in (
        losses.hybrid_reward_target(**one),
        losses.q_decomposition_target(**one, weight=weight),
        mapped,
    ):
        np.testing.assert_allclose(ours[:, 0], plain, rtol=1e-6)


def converge(environment, target, number=250, channels=2):
    """Fixed point [K, S, A] of a target with channels, from rewards [S, A, S, K]."""
    reward = losses.sign_channels(jnp.float32(environment.reward))
    shape = environment.reward.shape

    @jax.jit
    def run():
        def step(_, q):
            next_q = jnp.broadcast_to(q.swapaxes(0, 1), (*shape, channels, shape[1]))
            here = jnp.broadcast_to(jnp.moveaxis(q, 0, -1)[:, :, None], (*shape, channels))
            new = target(reward, jnp.asarray(environment.terminated), 0.9, next_q, here)
            return jnp.moveaxis((environment.prob[..., None] * new).sum(-2), -1, 0)

        return jax.lax.fori_loop(0, number, step, jnp.zeros((channels, *shape[:2])))

    return run()


WEIGHT = jnp.array([1.0, -1.0])


def test_channels_under_one_policy_sum_to_the_values_of_the_whole():
    environment = tabular.random_environment(5)
    uniform = jnp.full((5, 3, 5, 3), 1 / 3)
    ours = converge(
        environment,
        lambda r, t, d, n, _: losses.hybrid_reward_target(r, t, d, n, action_prob=uniform),
    )
    whole = tabular.solve(environment, lambda q: q.mean(-1))
    np.testing.assert_allclose(ours[0] - ours[1], whole, rtol=1e-4, atol=1e-4)


def test_channels_that_follow_the_best_sum_are_optimal_and_own_maxima_are_optimistic():
    environment = tabular.random_environment(6)
    best = tabular.solve(environment, lambda q: q.max(-1))
    ours = converge(
        environment, lambda r, t, d, n, _: losses.q_decomposition_target(r, t, d, n, WEIGHT)
    )
    np.testing.assert_allclose(ours[0] - ours[1], best, rtol=1e-4, atol=1e-4)
    gains = converge(environment, lambda r, t, d, n, _: losses.hybrid_reward_target(r, t, d, n))[0]
    assert (gains >= ours[0] - 1e-5).all() and (gains > ours[0] + 1e-3).any()


@pytest.mark.parametrize("name", ["log", "root", "identity"])
def test_mapped_values_converge_to_the_optimal_ones(name):
    """Use a deterministic environment, a full step, and two channels: gains and losses."""
    environment = tabular.random_environment(7, stochastic=False)
    forward, inverse = {
        "log": (log, log_inverse),
        "root": (root, root_inverse),
        "identity": (identity, identity),
    }[name]
    target = functools.partial(losses.mapped_q_target, forward=forward, inverse=inverse)
    ours = converge(environment, lambda r, t, d, n, q: target(r, t, d, q, n, WEIGHT))
    values = inverse(ours)
    best = tabular.solve(environment, lambda q: q.max(-1))
    np.testing.assert_allclose(values[0] - values[1], best, rtol=1e-3, atol=2e-3)


def test_a_small_step_before_the_mapping_averages_outside_of_it():
    """A coin of 0 or 1 has mean 0.5, but averaging only logarithms would give far less."""
    reward = jnp.float32(np.random.default_rng(0).integers(0, 2, 20_000))

    def run(step):
        def update(q, reward):
            target = losses.mapped_q_target(
                reward[None], jnp.bool_(True), 0.9, q[None], jnp.zeros((1, 2)), jnp.ones(1),
                log, log_inverse, step,
            )[0]  # fmt: skip
            return q + 0.01 / step * (target - q), q

        _, path = jax.lax.scan(update, jnp.float32(0.5), reward)
        return log_inverse(path[5000:]).mean()

    run = jax.jit(run)
    np.testing.assert_allclose(run(0.02), 0.5, atol=0.03)
    assert run(1.0) < 0.25
