import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from tests.losses import tabular
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract, example

IMPOSSIBLE = np.tile([1.0, -np.inf, 2.0, -np.inf], (5, 1))
CASES = [
    Case(
        losses.cql,
        lambda rng: {
            "q_values": rng.normal(size=(5, 4)),
            "action": rng.integers(0, 4, 5),
            "temperature": 0.5,
        },
        gradient=("q_values",),
        time=("q_values", "action"),
        extremes=lambda rng: [
            {"q_values": IMPOSSIBLE, "action": np.zeros(5, int)},
            {"q_values": 1e6 * rng.normal(size=(5, 4))},
        ],
    ),
    Case(
        losses.cql_sampled,
        lambda rng: {
            "q_value": rng.normal(size=5),
            "sampled_q_values": rng.normal(size=(5, 6)),
            "sampled_log_prob": rng.normal(size=(5, 6)),
        },
        gradient=("q_value", "sampled_q_values"),
        stopped=("sampled_log_prob",),
        time=("q_value", "sampled_q_values", "sampled_log_prob"),
        extremes=lambda rng: [
            {"sampled_log_prob": np.full((5, 6), -500.0)},
            {"sampled_q_values": np.full((5, 6), 1e6)},
        ],
    ),
    Case(
        losses.bcq_mask,
        lambda rng: {"logits": rng.normal(size=(5, 4))},
        stopped=("logits",),
        time=("logits",),
    ),
    Case(
        losses.bcq_target,
        lambda rng: {
            "reward": rng.normal(size=5),
            "terminated": np.arange(5) % 3 == 0,
            "discount": 0.9,
            "next_q_values": rng.normal(size=(5, 4, 2)),
            "minimum_weight": 0.7,
        },
        stopped=("reward", "next_q_values"),
        time=("reward", "terminated", "next_q_values"),
        extremes=lambda rng: [{"next_q_values": 1e6 * rng.normal(size=(5, 4, 2))}],
    ),
    Case(
        losses.icq_target,
        lambda rng: {
            "reward": rng.normal(size=(2, 5)),
            "terminated": np.arange(10).reshape(2, 5) % 4 == 0,
            "discount": 0.9,
            "next_q_value": rng.normal(size=(2, 5)),
            "temperature": 0.7,
            "highest": 1.5,
        },
        stopped=("reward", "next_q_value"),
        extremes=lambda rng: [
            {"next_q_value": 1e6 * rng.normal(size=(2, 5))},
            {"terminated": np.ones((2, 5), bool), "next_q_value": np.full((2, 5), np.nan)},
        ],
    ),
]
test_contract = contract(CASES)


def test_bcq_allows_actions_that_are_likely_in_the_data():
    probs = np.array([[0.5, 0.3, 0.2, 0.0], [0.25, 0.25, 0.25, 0.25]])
    logits = jnp.log(jnp.float32(probs)) + 7  # not normalized
    for threshold, first in ((0.0, [1, 1, 1, 0]), (0.5, [1, 1, 0, 0]), (0.7, [1, 0, 0, 0])):
        ours = losses.bcq_mask(logits, threshold)
        np.testing.assert_array_equal(ours, [np.array(first, bool), np.ones(4, bool)])
    each = losses.bcq_mask(logits[:1].repeat(2, 0), jnp.array([0.0, 0.7]))
    np.testing.assert_array_equal(each.sum(-1), [3, 1])


def test_bcq_bootstraps_from_the_best_action_between_the_critics():
    x = example(CASES, losses.bcq_target)
    for weight in (0.0, 0.7, 1.0):
        expected = []
        for reward, end, actions in zip(
            x["reward"], x["terminated"], x["next_q_values"], strict=True
        ):
            worth = [weight * min(q) + (1 - weight) * max(q) for q in actions]
            expected.append(reward + 0.9 * max(worth) * (not end))
        ours = losses.bcq_target(**{**x, "minimum_weight": weight})
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
    mean = losses.bcq_target(**{**x, "minimum_weight": 0.5})
    target = losses.td_target(
        *[x[k] for k in ("reward", "terminated", "discount")], x["next_q_values"].mean(-1).max(-1)
    )
    np.testing.assert_allclose(mean, target, rtol=1e-5)


def test_icq_weights_the_next_values_of_steps_that_continue():
    reward, q = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, -1.0, np.nan, np.nan])
    terminated, mask = np.array([0, 0, 1, 0], bool), np.array([1, 1, 1, 0], bool)
    share = scipy.special.softmax(q[:2] / 0.7)
    expected = reward + 0.9 * np.array([*(2 * share * q[:2]), 0, 0])
    args = (jnp.float32(reward), terminated, 0.9, jnp.float32(q))
    ours = losses.icq_target(*args, 0.7, mask=mask)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    ours = losses.icq_target(*args, 0.7, highest=1.0, mask=mask)
    np.testing.assert_allclose(ours[0], 1 + 0.9 * 0.5, rtol=1e-5)
    sarsa = losses.td_target(*args[:3], jnp.where(mask, args[3], 0))
    np.testing.assert_allclose(losses.icq_target(*args, 1e6, mask=mask), sarsa, rtol=1e-5)


def test_cql_is_nonnegative_and_lowers_actions_missing_in_the_data():
    x = example(CASES, losses.cql)
    ours = losses.cql(**x)
    expected = 0.5 * scipy.special.logsumexp(x["q_values"] / 0.5, axis=-1)
    expected -= x["q_values"][np.arange(5), x["action"]]
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)
    assert (ours >= 0).all()
    gradient = jax.grad(lambda q: losses.cql(q, x["action"], 0.5).sum())(jnp.float32(x["q_values"]))
    softmax = scipy.special.softmax(x["q_values"] / 0.5, axis=-1)
    np.testing.assert_allclose(gradient, softmax - np.eye(4)[x["action"]], rtol=1e-4, atol=1e-6)


def test_samples_of_every_action_give_the_exact_penalty():
    """The mean over samples that are each of four actions once, at 1 / 4, is the sum."""
    x = example(CASES, losses.cql)
    data = x["q_values"][np.arange(5), x["action"]]
    ours = losses.cql_sampled(data, x["q_values"], np.full((5, 4), -np.log(4)), 0.5)
    np.testing.assert_allclose(ours, losses.cql(**x), rtol=1e-5, atol=1e-6)


def test_importance_weights_undo_the_density_of_the_samples():
    """Compare with log of the integral of exp(q) over [-1, 1], for samples denser on the right."""
    rng = np.random.default_rng(0)
    action = 2 * np.sqrt(rng.uniform(size=20_000)) - 1  # density (action + 1) / 2
    q = 2 * action + np.log(action + 1)
    exact = np.log((3 * np.exp(2) + np.exp(-2)) / 4)
    ours = losses.cql_sampled(np.zeros(()), q, np.log((action + 1) / 2))
    np.testing.assert_allclose(ours, exact, atol=0.02)


def implicit_q_learning(environment, policy, expectile):
    """Alternate the value's expectile regression with the critic's target."""
    reward, terminated = jnp.float32(environment.reward), jnp.asarray(environment.terminated)

    def fall(value, q):
        loss = policy * losses.expectile_error(value[:, None], q, expectile)
        return loss.sum()

    def step(_, state):
        q, value = state
        value = jax.lax.fori_loop(0, 3, lambda _, v: v - 0.5 * jax.grad(fall)(v, q), value)
        target = losses.td_target(reward, terminated, 0.9, value)
        return (environment.prob * target).sum(-1), value

    start = jnp.zeros(environment.prob.shape[:2]), jnp.zeros(environment.prob.shape[0])
    return jax.lax.fori_loop(0, 2000, step, start)[0]


def test_implicit_q_learning_ranges_from_sarsa_to_the_best_action_in_the_data():
    """One action of each state is not in the data and must not count, however good it is."""
    environment = tabular.random_environment(8, stochastic=False)
    rng = np.random.default_rng(0)
    policy = rng.dirichlet(np.ones(3), 5)
    policy[np.arange(5), rng.integers(0, 3, 5)] = 0
    policy /= policy.sum(-1, keepdims=True)
    learn = lambda expectile: implicit_q_learning(environment, jnp.float32(policy), expectile)
    run = jax.jit(learn, static_argnums=0)
    sarsa = tabular.solve(environment, lambda q: (policy * q).sum(-1))
    best = tabular.solve(environment, lambda q: np.where(policy > 0, q, -np.inf).max(-1))
    np.testing.assert_allclose(run(0.5), sarsa, atol=1e-3)
    middle, high = run(0.8), run(0.999)
    assert (middle >= sarsa - 1e-3).all() and (middle <= best + 1e-3).all()
    assert (high >= middle - 1e-3).all() and (high <= best + 1e-3).all()
    np.testing.assert_allclose(high, best, atol=0.05)
