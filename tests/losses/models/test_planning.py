import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

ATOMS = np.arange(-3.0, 4.0)
IMPOSSIBLE = np.array([0.0, -np.inf, 1.0, 0.5])


def unroll(rng):
    return {
        "policy_logits": rng.normal(size=(4, 2, 3)),
        "value_logits": rng.normal(size=(4, 2, 7)),
        "reward_logits": rng.normal(size=(4, 2, 7)),
        "target_policy": rng.dirichlet(np.ones(3), (4, 2)),
        "target_value": rng.normal(size=(4, 2)),
        "target_reward": rng.normal(size=(4, 2)),
        "atoms": ATOMS,
        "value_weight": 0.25,
    }


def search(rng):
    return {
        "q_values": rng.uniform(0, 1, (3, 4)),
        "visits": np.array([[3, 0, 2, 1], [0, 0, 0, 0], [0, 0, 0, 5]]),
        "logits": rng.normal(size=(3, 4)),
        "value": rng.uniform(0, 1, 3),
    }


CASES = [
    Case(
        losses.muzero,
        unroll,
        surrogate=("policy_logits", "value_logits", "reward_logits"),
        stopped=("target_policy", "target_value", "target_reward", "atoms"),
        time=(
            "policy_logits",
            "value_logits",
            "reward_logits",
            "target_policy",
            "target_value",
            "target_reward",
        ),
        extremes=lambda rng: [
            {"target_value": np.full((4, 2), 1e10)},
            {"target_policy": np.zeros((4, 2, 3))},
        ],
    ),
    Case(
        losses.completed_q_values,
        search,
        gradient=("q_values", "logits", "value"),
        extremes=lambda rng: [
            {"logits": np.tile(IMPOSSIBLE, (3, 1))},
            {"logits": np.tile([0.0, 0.0, 0.0, -500.0], (3, 1))},
        ],
    ),
    Case(
        losses.gumbel_improved_logits,
        lambda rng: {
            "logits": rng.normal(size=(3, 4)),
            "completed_q_values": rng.uniform(0, 1, (3, 4)),
            "visits": search(rng)["visits"],
        },
        gradient=("logits", "completed_q_values"),
        extremes=lambda rng: [{"logits": np.full((3, 4), -500.0)}],
    ),
    Case(
        losses.process_value_target,
        lambda rng: {
            "step_error": rng.uniform(0, 0.4, (5, 2)),
            "remaining": rng.integers(0, 5, (5, 2)),
        },
        gradient=("step_error",),
        time=("step_error", "remaining"),
        extremes=lambda rng: [{"step_error": np.ones((5, 2))}],
    ),
    Case(
        losses.surprisal_bump,
        lambda rng: {"surprisal": rng.uniform(1, 5, 4), "center": 2.5, "width": 1.0},
        gradient=("surprisal",),
        extremes=lambda rng: [{"surprisal": np.full(4, 500.0)}],
    ),
]
test_contract = contract(CASES)


def arrays(inputs):
    return {
        k: jnp.asarray(v, jnp.float32 if np.asarray(v).dtype.kind == "f" else None)
        for k, v in inputs.items()
    }


def test_muzero_by_its_parts():
    """Compare with float64 parts, from the papers' definitions."""
    x = unroll(np.random.default_rng(0))
    ours = jax.jit(losses.muzero)(**arrays(x))

    def squash(v):
        return np.sign(v) * (np.sqrt(abs(v) + 1) - 1) + 1e-3 * v

    def cross_entropy(logits, target):
        return -(target * (logits - np.log(np.exp(logits).sum()))).sum()

    def encode(v):
        return np.array([np.interp(squash(v), ATOMS, row) for row in np.eye(7)])

    for k in range(4):
        for b in range(2):
            loss = cross_entropy(x["policy_logits"][k, b], x["target_policy"][k, b])
            loss += 0.25 * cross_entropy(x["value_logits"][k, b], encode(x["target_value"][k, b]))
            if k > 0:
                loss += cross_entropy(x["reward_logits"][k, b], encode(x["target_reward"][k, b]))
            np.testing.assert_allclose(ours[k, b], loss, rtol=1e-4)


@pytest.mark.slow
def test_muzero_scales_the_gradients_of_the_unroll():
    x = arrays(unroll(np.random.default_rng(0)))
    all_gradients = jax.jit(jax.grad(lambda x: losses.muzero(**x).sum()))(x)
    gradient, rewards = all_gradients["policy_logits"], all_gradients["reward_logits"]
    plain = jax.grad(lambda logits: optax.softmax_cross_entropy(logits, x["target_policy"]).sum())(
        x["policy_logits"]
    )
    np.testing.assert_allclose(gradient[0], plain[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient[1:], plain[1:] / 3, rtol=1e-4, atol=1e-6)
    assert (rewards[0] == 0).all() and (rewards[1:] != 0).any()


def test_completed_q_values_in_a_loop():
    x = search(np.random.default_rng(0))
    ours = losses.completed_q_values(**arrays(x))
    for i in range(3):
        prior = np.exp(x["logits"][i]) / np.exp(x["logits"][i]).sum()
        seen, total = x["visits"][i] > 0, x["visits"][i].sum()
        mixed = x["value"][i]
        if total:
            mean = (prior * x["q_values"][i])[seen].sum() / prior[seen].sum()
            mixed = (x["value"][i] + total * mean) / (1 + total)
        expected = np.where(seen, x["q_values"][i], mixed)
        np.testing.assert_allclose(ours[i], expected, rtol=1e-5)


@pytest.mark.slow
def test_gumbel_improved_policy_improves():
    """The expected Q-value does not fall, for any logits and values."""
    rng = np.random.default_rng(0)
    logits, q = jnp.float32(rng.normal(size=(200, 5))), jnp.float32(rng.uniform(size=(200, 5)))
    visits = jnp.asarray(rng.integers(0, 9, (200, 5)))
    improved = losses.gumbel_improved_logits(logits, q, visits, scale=0.1)
    before, after = ((jax.nn.softmax(x) * q).sum(-1) for x in (logits, improved))
    assert (after > before).all()
    np.testing.assert_allclose(
        improved[0] - logits[0], (50 + visits[0].max()) * 0.1 * q[0], rtol=1e-3
    )


def test_process_values():
    """Values are k / K for an error-free trace, and never below 0."""
    faultless = losses.process_value_target(jnp.zeros(5), jnp.arange(4, -1, -1))
    np.testing.assert_allclose(faultless, np.arange(1, 6) / 5, rtol=1e-6)
    ours = losses.process_value_target(jnp.array([0.0, 0.25, 1.0, 1.0]), jnp.array([3, 1, 2, 0]))
    value, expected = 0.0, []
    for error, remaining in [(0.0, 3), (0.25, 1), (1.0, 2), (1.0, 0)]:
        value = max(value + (1 - value) / (remaining + 1) * (1 - 2 * error), 0)
        expected.append(value)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    assert ours[-1] == 0


def test_surprisal_bump():
    ours = losses.surprisal_bump(jnp.array([1.0, 2.0, 3.0, 4.0]), 3.0, 1.0)
    np.testing.assert_allclose(ours, np.exp([-2, -0.5, 0, -0.5]), rtol=1e-5)
