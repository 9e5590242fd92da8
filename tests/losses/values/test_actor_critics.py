import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
import scipy.special

from tests.losses import tabular
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def steps(rng, *names):
    every = {
        "reward": rng.normal(size=5),
        "terminated": np.arange(5) % 2 == 0,
        "discount": 0.9,
        "next_q_values": rng.normal(size=(5, 3)),
        "next_log_prob": rng.normal(size=5),
        "next_logits": rng.normal(size=(5, 3)),
        "members": np.array([2, 0]),
        "temperature": rng.uniform(0.1, 1, size=()),
    }
    return {k: every[k] for k in ("reward", "terminated", "discount", "next_q_values", *names)}


ENDED = {"next_q_values": np.full((5, 3), np.nan), "terminated": np.ones(5, bool)}
UNLIKELY = {"next_log_prob": np.full(5, -500.0)}
IMPOSSIBLE = np.tile([0.0, -np.inf, 1.0], (5, 1))
TIME = ("reward", "terminated", "next_q_values")
CASES = [
    Case(
        losses.deterministic_policy_gradient,
        lambda rng: {
            "action": rng.normal(size=(5, 2)),
            "action_gradient": rng.normal(size=(5, 2)),
            "highest": 0.5,
        },
        gradient=("action",),
        stopped=("action_gradient",),
        time=("action", "action_gradient"),
        extremes=lambda rng: [
            {"action_gradient": np.zeros((5, 2))},
            {"action_gradient": np.full((5, 2), 1e30)},
            {"action_gradient": np.full((5, 2), 1e-30)},
            {"highest": None},
        ],
    ),
    Case(
        losses.smoothed_action,
        lambda rng: {
            "action": rng.uniform(-0.4, 0.4, (5, 2)),
            "noise": rng.normal(size=(5, 2)),
            "noise_clip": 0.5,
        },
        gradient=("action", "noise"),
        extremes=lambda rng: [{"noise": np.full((5, 2), 1e15)}],
    ),
    Case(
        losses.td3_target,
        steps,
        stopped=("reward", "next_q_values"),
        time=TIME,
        extremes=lambda rng: [ENDED],
    ),
    Case(
        losses.sampled_soft_value,
        lambda rng: {
            "q_values": rng.normal(size=(5, 3)),
            "log_prob": rng.normal(size=5),
            "temperature": rng.uniform(size=()),
        },
        gradient=("q_values", "log_prob", "temperature"),
        time=("q_values", "log_prob"),
        extremes=lambda rng: [{"log_prob": np.full(5, -500.0)}, {"q_values": np.zeros((5, 3))}],
    ),
    Case(
        losses.sac_target,
        lambda rng: steps(rng, "next_log_prob", "temperature"),
        stopped=("reward", "next_q_values", "next_log_prob", "temperature"),
        time=(*TIME, "next_log_prob"),
        extremes=lambda rng: [ENDED, UNLIKELY],
    ),
    Case(
        losses.redq_target,
        lambda rng: steps(rng, "members", "next_log_prob", "temperature"),
        stopped=("reward", "next_q_values", "next_log_prob", "temperature"),
        time=(*TIME, "next_log_prob"),
        extremes=lambda rng: [ENDED, UNLIKELY],
    ),
    Case(
        losses.sac_actor,
        lambda rng: {
            "log_prob": rng.normal(size=5),
            "q_values": rng.normal(size=(5, 3)),
            "temperature": rng.uniform(size=()),
        },
        gradient=("log_prob", "q_values"),
        stopped=("temperature",),
        time=("q_values", "log_prob"),
        extremes=lambda rng: [{"log_prob": np.full(5, -500.0)}, {"q_values": np.zeros((5, 3))}],
    ),
    Case(
        losses.sac_temperature,
        lambda rng: {
            "temperature": rng.uniform(size=()),
            "log_prob": rng.normal(size=5),
            "target_entropy": -2.0,
        },
        gradient=("temperature",),
        stopped=("log_prob",),
        time=("log_prob",),
        extremes=lambda rng: [{"log_prob": np.full(5, -500.0)}],
    ),
    Case(
        losses.policy_soft_value,
        lambda rng: {
            "q_values": rng.normal(size=(5, 3)),
            "logits": rng.normal(size=(5, 3)),
            "temperature": rng.uniform(size=()),
        },
        gradient=("q_values", "logits", "temperature"),
        time=("q_values", "logits"),
        extremes=lambda rng: [
            {"logits": IMPOSSIBLE},
            {"logits": IMPOSSIBLE, "q_values": IMPOSSIBLE},
            {"logits": 1e4 * rng.normal(size=(5, 3))},
        ],
    ),
    Case(
        losses.discrete_sac_target,
        lambda rng: steps(rng, "next_logits", "temperature"),
        stopped=("reward", "next_q_values", "next_logits", "temperature"),
        time=(*TIME, "next_logits"),
        extremes=lambda rng: [ENDED, {"next_logits": IMPOSSIBLE}],
    ),
    Case(
        losses.discrete_sac_actor,
        lambda rng: {
            "logits": rng.normal(size=(5, 3)),
            "q_values": rng.normal(size=(5, 3)),
            "temperature": rng.uniform(size=()),
        },
        gradient=("logits",),
        stopped=("q_values", "temperature"),
        time=("q_values", "logits"),
        extremes=lambda rng: [
            {"logits": IMPOSSIBLE},
            {"logits": IMPOSSIBLE, "q_values": IMPOSSIBLE},
            {"q_values": 1e6 * rng.normal(size=(5, 3))},
        ],
    ),
]
test_contract = contract(CASES)


@pytest.mark.parametrize("highest", [None, 0.5, 100.0])
def test_the_actors_gradient_is_that_of_rlax(highest):
    rng = np.random.default_rng(0)
    action, slope = jnp.float32(rng.normal(size=(2, 5, 2)))
    ours = jax.grad(lambda a: losses.deterministic_policy_gradient(a, slope, highest).sum())(action)
    theirs = jax.grad(
        lambda a: jax.vmap(functools.partial(rlax.dpg_loss, dqda_clipping=highest))(a, slope).sum()
    )(action)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_actors_gradient_is_that_through_the_critic():
    critic = lambda action: -jnp.square(action - 0.3).sum(-1) * action[..., 0]
    actor = lambda theta: jnp.tanh(theta * jnp.array([[1.0, 2.0], [0.5, -1.0]]))
    action = actor(0.4)
    slope = jax.grad(lambda a: critic(a).sum())(action)
    ours = jax.grad(lambda t: losses.deterministic_policy_gradient(actor(t), slope).sum())(0.4)
    np.testing.assert_allclose(ours, jax.grad(lambda t: -critic(actor(t)).sum())(0.4), rtol=1e-5)


def test_smoothed_action():
    action, noise = jnp.array([0.0, 0.0, 0.9, -0.9]), jnp.array([0.1, -3.0, 3.0, 0.2])
    ours = losses.smoothed_action(action, noise, 0.5)
    np.testing.assert_allclose(ours, [0.1, -0.5, 1.0, -0.7], rtol=1e-5)


def test_targets_equal_loops():
    x = steps(np.random.default_rng(1), "next_log_prob", "members")
    x["next_q_values"][1, 1] = -5  # the minimum is not among the members
    plain, soft, few = (x["reward"].copy() for _ in range(3))
    for i in range(5):
        if not x["terminated"][i]:
            q = x["next_q_values"][i]
            plain[i] += 0.9 * min(q)
            soft[i] += 0.9 * (min(q) - 0.2 * x["next_log_prob"][i])
            few[i] += 0.9 * (min(q[2], q[0]) - 0.2 * x["next_log_prob"][i])
    members, log_prob = x.pop("members"), x.pop("next_log_prob")
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    close(losses.td3_target(**x), plain)
    close(losses.sac_target(**x, next_log_prob=log_prob, temperature=0.2), soft)
    close(losses.redq_target(**x, members=members, next_log_prob=log_prob, temperature=0.2), few)
    assert (few != soft).any()


def test_a_reparameterized_actor_converges_to_the_softmax_of_a_quadratic_critic():
    """Q = -(a - 1)^2 makes exp(Q / 0.5) a Gaussian with mean 1 and standard deviation 0.5."""
    noise = jnp.float32(scipy.special.ndtri((np.arange(200) + 0.5) / 200))

    def loss(theta):
        mean, log_scale = theta
        action = mean + jnp.exp(log_scale) * noise
        log_prob = losses.gaussian_log_prob(
            action[:, None], mean[None, None], jnp.exp(log_scale)[None, None]
        )
        q_values = -jnp.square(action - 1)[:, None] + jnp.array([0.0, 0.5])
        return losses.sac_actor(log_prob, q_values, 0.5).mean()

    fall = jax.jit(lambda theta: theta - 0.1 * jax.grad(loss)(theta))
    theta = jax.lax.fori_loop(0, 300, lambda _, theta: fall(theta), jnp.zeros(2))
    np.testing.assert_allclose(theta, [1, np.log(0.5)], atol=0.02)


def test_a_discrete_actor_converges_to_the_softmax_and_its_value_to_the_soft_value():
    q_values = jnp.array([0.3, -0.2, 1.0])
    loss = lambda logits: losses.discrete_sac_actor(logits, q_values, 0.5)
    logits = jax.lax.fori_loop(0, 1000, lambda _, x: x - jax.grad(loss)(x), jnp.zeros(3))
    np.testing.assert_allclose(jax.nn.softmax(logits), jax.nn.softmax(q_values / 0.5), atol=1e-4)
    value = losses.policy_soft_value(q_values, logits, 0.5)
    np.testing.assert_allclose(value, losses.soft_value(q_values, 0.5), rtol=1e-5)
    np.testing.assert_allclose(-loss(logits), value, rtol=1e-6)


def test_discrete_targets_converge_to_the_values_of_the_policy_with_its_entropy():
    environment = tabular.random_environment(10)
    logits = np.random.default_rng(0).normal(size=(5, 3))
    policy = scipy.special.softmax(logits, -1)
    best = tabular.solve(environment, lambda q: (policy * (q - 0.4 * np.log(policy))).sum(-1))
    ours = tabular.converge(
        environment, lambda q, *step: losses.discrete_sac_target(*step, jnp.float32(logits), 0.4)
    )
    np.testing.assert_allclose(ours, best, rtol=1e-4, atol=1e-4)


def test_samples_of_the_soft_value_average_to_the_exact_one():
    q_values, logits = jnp.float32(np.random.default_rng(2).normal(size=(2, 4)))
    log_prob = jax.nn.log_softmax(logits)
    each = losses.sampled_soft_value(q_values[:, None], log_prob, 0.4)
    np.testing.assert_allclose(
        (jnp.exp(log_prob) * each).sum(),
        losses.policy_soft_value(q_values, logits, 0.4),
        rtol=1e-5,
    )


@pytest.mark.parametrize("log_prob,rises", [(3.0, True), (1.0, False)])
def test_the_temperature_rises_while_the_entropy_is_too_low(log_prob, rises):
    """Entropy is about -log_prob, here -3 or -1; the target is -2; both forms agree in sign."""
    for form in (lambda x: x, jnp.exp):
        loss = lambda x, form=form: losses.sac_temperature(form(x), log_prob, -2.0)
        slope = jax.grad(loss)(0.7)
        assert (slope < 0) == rises
        np.testing.assert_allclose(slope, -jax.grad(form)(0.7) * (log_prob - 2), rtol=1e-6)
