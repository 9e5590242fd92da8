import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from tests.losses import tabular
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def steps(rng, *names):
    every = {
        "reward": rng.normal(size=5),
        "terminated": np.arange(5) % 2 == 0,
        "discount": 0.9,
        "action": rng.integers(0, 4, 5),
        "q_values": rng.normal(size=(5, 4)),
        "next_q_values": rng.normal(size=(5, 4)),
        "selector_q_values": rng.normal(size=(5, 4)),
        "action_prob": rng.dirichlet(np.ones(4), 5),
        "scale": 0.3,
    }
    return {k: every[k] for k in ("reward", "terminated", "discount", *names)}


ENDED = {"next_q_values": np.full((5, 4), np.nan), "terminated": np.ones(5, bool)}
IMPOSSIBLE = np.tile([1.0, -np.inf, 2.0, -np.inf], (5, 1))
ONLY = np.tile([0.5, 0.0, 0.5, 0.0], (5, 1))
TIME = ("reward", "terminated", "next_q_values")
CASES = [
    Case(
        losses.q_learning_target,
        lambda rng: steps(rng, "next_q_values"),
        stopped=("reward", "next_q_values"),
        time=TIME,
        extremes=lambda rng: [ENDED, {"next_q_values": IMPOSSIBLE}],
    ),
    Case(
        losses.double_q_target,
        lambda rng: steps(rng, "next_q_values", "selector_q_values"),
        stopped=("reward", "next_q_values", "selector_q_values"),
        time=(*TIME, "selector_q_values"),
        extremes=lambda rng: [
            ENDED,
            {"next_q_values": IMPOSSIBLE, "selector_q_values": IMPOSSIBLE},
        ],
    ),
    Case(
        losses.expected_value,
        lambda rng: {k: v for k, v in steps(rng, "q_values", "action_prob").items() if "_" in k},
        gradient=("q_values", "action_prob"),
        extremes=lambda rng: [{"q_values": IMPOSSIBLE, "action_prob": ONLY}],
    ),
    Case(
        losses.expected_sarsa_target,
        lambda rng: steps(rng, "next_q_values", "action_prob"),
        stopped=("reward", "next_q_values", "action_prob"),
        time=(*TIME, "action_prob"),
        extremes=lambda rng: [ENDED, {"next_q_values": IMPOSSIBLE, "action_prob": ONLY}],
    ),
    Case(
        losses.q_advantage,
        lambda rng: {
            k: v
            for k, v in steps(rng, "q_values", "action", "action_prob").items()
            if k in ("q_values", "action", "action_prob")
        },
        gradient=("q_values", "action_prob"),
        extremes=lambda rng: [
            {"q_values": IMPOSSIBLE, "action_prob": ONLY, "action": np.zeros(5, int)}
        ],
    ),
    Case(
        losses.advantage_learning_target,
        lambda rng: steps(rng, "q_values", "action", "next_q_values", "scale"),
        stopped=("reward", "q_values", "next_q_values"),
        extremes=lambda rng: [
            ENDED,
            {"q_values": IMPOSSIBLE, "next_q_values": IMPOSSIBLE, "action": np.zeros(5, int)},
        ],
    ),
    Case(
        losses.persistent_q_target,
        lambda rng: steps(rng, "action", "next_q_values", "scale"),
        stopped=("reward", "next_q_values"),
        extremes=lambda rng: [ENDED],
    ),
    Case(
        losses.iterated_q_target,
        lambda rng: {**steps(rng), "next_q_values": rng.normal(size=(5, 3, 4))},
        stopped=("reward", "next_q_values"),
        time=TIME,
        extremes=lambda rng: [{**ENDED, "next_q_values": np.full((5, 3, 4), np.nan)}],
    ),
]
test_contract = contract(CASES)


def test_targets_equal_rlax():
    rng = np.random.default_rng(0)
    every = steps(
        rng, "q_values", "action", "next_q_values", "selector_q_values", "action_prob", "scale"
    )
    x = {
        k: jnp.asarray(v, None if k in ("terminated", "action") else jnp.float32)
        for k, v in every.items()
    }
    q, a, r, n = x["q_values"], x["action"], x["reward"], x["next_q_values"]
    selector, p = x["selector_q_values"], x["action_prob"]
    d = 0.9 * ~x["terminated"]
    now = losses.at_action(q, a)
    step = (r, x["terminated"], 0.9)
    pairs = [
        (losses.q_learning_target(*step, n), rlax.q_learning, (q, a, r, d, n)),
        (losses.double_q_target(*step, n, selector), rlax.double_q_learning,
         (q, a, r, d, n, selector)),
        (losses.expected_sarsa_target(*step, n, p), rlax.expected_sarsa, (q, a, r, d, n, p)),
    ]  # fmt: skip
    for ours, theirs, args in pairs:
        np.testing.assert_allclose(ours - now, jax.vmap(theirs)(*args), rtol=1e-5, atol=1e-6)
    theirs = jax.vmap(lambda *args: rlax.persistent_q_learning(*args, 0.3))(q, a, r, d, n)
    ours = losses.persistent_q_target(*step, a, n, 0.3) - now
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_repeated_targets_converge_to_the_optimal_values():
    environment = tabular.random_environment()
    best = tabular.solve(environment, lambda q: q.max(-1))
    ours = tabular.converge(environment, lambda q, *step: losses.q_learning_target(*step))
    np.testing.assert_allclose(ours, best, rtol=1e-4, atol=1e-4)
    twice = tabular.converge(environment, lambda q, *step: losses.double_q_target(*step, step[-1]))
    np.testing.assert_allclose(twice, best, rtol=1e-4, atol=1e-4)
    policy = np.random.default_rng(1).dirichlet(np.ones(3), 5)
    mean = tabular.solve(environment, lambda q: (policy * q).sum(-1))
    ours = tabular.converge(
        environment, lambda q, *step: losses.expected_sarsa_target(*step, jnp.float32(policy))
    )
    np.testing.assert_allclose(ours, mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [0.5, 0.9])
def test_advantage_learning_preserves_the_best_value_and_widens_the_gap(scale):
    environment = tabular.random_environment(3)
    best = tabular.solve(environment, lambda q: q.max(-1))
    actions = np.indices((5, 3))[1]

    def target(q, reward, terminated, discount, next_q):
        here = jnp.broadcast_to(q[:, None, None, :], next_q.shape)
        action = jnp.broadcast_to(actions[:, :, None], reward.shape)
        return losses.advantage_learning_target(
            reward, terminated, discount, here, action, next_q, scale
        )

    ours = tabular.converge(environment, target, 1500)
    np.testing.assert_allclose(ours.max(-1), best.max(-1), rtol=1e-3, atol=1e-3)
    gap = best.max(-1, keepdims=True) - best
    np.testing.assert_allclose(
        ours.max(-1, keepdims=True) - ours, gap / (1 - scale), rtol=1e-2, atol=1e-2
    )


def test_a_chain_of_three_is_three_steps_of_value_iteration():
    """Function k converges to the backup of function k - 1, within as many rounds as functions."""
    environment = tabular.random_environment(4)
    q = np.random.default_rng(0).normal(size=(5, 3))
    expected = [q]
    for _ in range(3):
        expected.append(tabular.backup(environment, expected[-1].max(-1)))
    chain = jnp.float32(np.stack([q, *np.zeros((3, 5, 3))]))  # [K + 1, S, A]
    for _ in range(3):
        next_q = jnp.broadcast_to(jnp.moveaxis(chain[:-1], 0, 1), (5, 3, 5, 3, 3))
        target = losses.iterated_q_target(
            jnp.float32(environment.reward), jnp.asarray(environment.terminated), 0.9, next_q
        )
        new = (environment.prob[..., None] * target).sum(-2)
        chain = chain.at[1:].set(jnp.moveaxis(new, -1, 0))
    np.testing.assert_allclose(chain, np.stack(expected), rtol=1e-4, atol=1e-5)


def test_a_chain_of_one_is_q_learning():
    x = steps(np.random.default_rng(1), "next_q_values")
    ours = losses.iterated_q_target(
        x["reward"], x["terminated"], 0.9, x["next_q_values"][:, None, :]
    )
    np.testing.assert_array_equal(ours[:, 0], losses.q_learning_target(**x))


def test_advantages_from_q_values():
    x = steps(np.random.default_rng(2), "q_values", "action_prob")
    advantages = np.stack(
        [losses.q_advantage(x["q_values"], np.full(5, a), x["action_prob"]) for a in range(4)], -1
    )
    np.testing.assert_allclose((x["action_prob"] * advantages).sum(-1), 0, atol=1e-6)
    ours, expected = (np.diff(v, axis=-1) for v in (advantages, x["q_values"]))
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
