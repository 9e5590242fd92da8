import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from tests.losses.compiled import losses, solvers
from tests.losses.contract import Case, contract


def actor(rng):
    return {"logits": rng.normal(size=(5, 4)), "q_values": rng.normal(size=(5, 4))}


def extremes(rng):
    impossible = np.where(np.arange(4) < 2, 0.0, -np.inf) * np.ones((5, 1))
    return [
        {"logits": impossible},
        {"logits": impossible, "q_values": np.where(impossible < 0, np.nan, 1.0)},
        {"logits": np.array([[1e4, 0, 0, 0]] * 5)},
        {"q_values": np.full((5, 4), 1e6)},
        {"q_values": np.zeros((5, 4))},
    ]


CASES = [
    Case(
        losses.regret_policy_gradient,
        actor,
        gradient=("logits",),
        stopped=("q_values",),
        extremes=extremes,
    ),
    Case(
        losses.regret_matching_policy_gradient,
        actor,
        surrogate=("logits",),
        stopped=("q_values",),
        extremes=extremes,
    ),
    Case(
        losses.neurd,
        lambda rng: {**actor(rng), "threshold": 1.0},
        surrogate=("logits",),
        stopped=("q_values",),
        extremes=extremes,
    ),
]
test_contract = contract(CASES)
INPUTS = {k: jnp.float32(v) for k, v in actor(np.random.default_rng(0)).items()}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (losses.expected_policy_gradient, rlax.qpg_loss),
        (losses.regret_policy_gradient, rlax.rpg_loss),
        (losses.regret_matching_policy_gradient, rlax.rm_loss),
    ],
)
def test_losses_equal_rlax(ours, theirs):
    def mean(logits):
        return ours(logits, INPUTS["q_values"]).mean()

    expected = jax.value_and_grad(theirs)(INPUTS["logits"], INPUTS["q_values"])
    for a, b in zip(jax.value_and_grad(mean)(INPUTS["logits"]), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_neurd_takes_hedges_step_whatever_the_policy():
    """Unlike a policy gradient, this is not scaled by the policy: an unlikely action recovers."""
    gradient = jax.grad(lambda x: losses.neurd(x, INPUTS["q_values"]).sum())(INPUTS["logits"])
    policy = jax.nn.softmax(INPUTS["logits"])
    advantage = INPUTS["q_values"] - (policy * INPUTS["q_values"]).sum(-1, keepdims=True)
    np.testing.assert_allclose(gradient, -advantage, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        jax.nn.log_softmax(INPUTS["logits"] - 0.5 * gradient),
        solvers.mirror_descent(INPUTS["logits"], INPUTS["q_values"], 0.5),
        rtol=1e-4,
        atol=1e-5,
    )


def test_neurd_keeps_logits_beyond_the_threshold_from_moving_further():
    logits, q_values = jnp.array([3.0, -3.0, 0.0, 0.0]), jnp.array([1.0, -1.0, 0.5, -0.5])
    gradient = jax.grad(losses.neurd)(logits, q_values, 2.0)
    assert (gradient[:2] == 0).all() and (gradient[2:] != 0).all()
    back = jax.grad(losses.neurd)(logits, -q_values, 2.0)
    assert back[0] > 0 and back[1] < 0


def test_regret_policy_gradient_is_0_only_without_regret():
    values = jnp.array([1.0, 1.0, 0.0])
    assert losses.regret_policy_gradient(jnp.array([0.0, 0.0, -jnp.inf]), values) == 0
    assert losses.regret_policy_gradient(jnp.zeros(3), values) > 0
