import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def elements(rng, *names):
    return {name: rng.normal(size=(4, 3)) for name in names}


def samples(rng):
    return {
        **elements(rng, "q_value"),
        "sampled_q_values": rng.normal(size=(4, 3, 5)),
    }


HUGE = np.full((4, 3), 1e6)
CASES = [
    *(
        Case(
            losses.advantage_weight,
            lambda rng, kind=kind: {
                **elements(rng, "advantage"),
                "temperature": np.array(0.7),
                "kind": kind,
            },
            stopped=("advantage", "temperature"),
            extremes=lambda rng: [
                {"advantage": HUGE},
                {"advantage": -HUGE},
                {"advantage": HUGE, "maximum": np.inf},
                {"advantage": HUGE, "temperature": np.array(1e-35)},
            ],
            name=f"advantage_weight {kind}",
        )
        for kind in ("exp", "binary")
    ),
    Case(
        losses.awr,
        lambda rng: {**elements(rng, "log_prob", "advantage"), "temperature": np.array(0.7)},
        gradient=("log_prob",),
        stopped=("advantage", "temperature"),
        extremes=lambda rng: [
            {"advantage": HUGE},
            {"advantage": -HUGE, "log_prob": np.full((4, 3), -500.0)},
        ],
    ),
    *(
        Case(
            losses.sampled_advantage,
            lambda rng, kind=kind: {**samples(rng), "kind": kind},
            gradient=("q_value", "sampled_q_values"),
            extremes=lambda rng: [{"q_value": HUGE}],
            name=f"sampled_advantage {kind}",
        )
        for kind in ("mean", "max")
    ),
    Case(
        losses.crr,
        lambda rng: {**samples(rng), **elements(rng, "log_prob")},
        gradient=("log_prob",),
        stopped=("q_value", "sampled_q_values"),
        extremes=lambda rng: [{"q_value": HUGE}, {"log_prob": np.full((4, 3), -500.0)}],
    ),
    Case(
        losses.self_imitation,
        lambda rng: elements(rng, "log_prob", "target", "value"),
        gradient=("log_prob",),
        stopped=("target", "value"),
        extremes=lambda rng: [{"target": HUGE}, {"log_prob": np.full((4, 3), -500.0)}],
    ),
    Case(
        losses.self_imitation_value,
        lambda rng: elements(rng, "value", "target"),
        gradient=("value",),
        stopped=("target",),
        extremes=lambda rng: [{"target": HUGE}, {"target": -HUGE}],
    ),
    Case(
        losses.mixture_frequency,
        lambda rng: {
            "mixture": rng.dirichlet([1.0, 1.0, 1.0], 4),
            "q_values": rng.normal(size=(4, 3)),
        },
        gradient=("mixture",),
        stopped=("q_values",),
        extremes=lambda rng: [{"q_values": HUGE}],
    ),
]
test_contract = contract(CASES)


def test_weights_by_hand():
    advantage = jnp.array([-1.0, 0.0, 2.0, 10.0])
    ours = losses.advantage_weight(advantage, 2.0)
    np.testing.assert_allclose(ours, [np.exp(-0.5), 1, np.e, 20], rtol=1e-6)
    ours = losses.advantage_weight(advantage, 2.0, maximum=7.0)
    np.testing.assert_allclose(ours, [np.exp(-0.5), 1, np.e, 7], rtol=1e-6)
    ours = losses.advantage_weight(advantage, 0.1, maximum=jnp.inf)
    np.testing.assert_allclose(ours, np.exp([-10, 0, 20, 80]), rtol=1e-5)  # not infinite
    ours = losses.advantage_weight(advantage, 2.0, kind="binary")
    np.testing.assert_array_equal(ours, [0, 0, 1, 1])
    for function, args in (
        (losses.advantage_weight, (advantage, 1.0)),
        (losses.sampled_advantage, (advantage, advantage[:, None])),
    ):
        with pytest.raises(ValueError, match=r"kind of .*advantage .*, not"):
            function(*args, kind="none")


def test_the_minimizer_of_awr_is_the_reweighted_data():
    """The loss has gradient 0 at pi(a) proportional to mu(a) exp(A(a) / temperature)."""
    with jax.enable_x64(True):
        data = jnp.array([0.5, 0.3, 0.2])
        advantage = jnp.array([-0.3, 0.2, 0.7])
        best = jnp.log(data) + advantage / 0.4

        def loss(logits):
            return data @ losses.awr(jax.nn.log_softmax(logits), advantage, 0.4)

        np.testing.assert_allclose(jax.grad(loss)(best), 0, atol=1e-12)
        assert loss(best) < loss(jnp.log(data))


@pytest.mark.parametrize("kind", ["exp", "binary"])
@pytest.mark.parametrize("estimate", ["mean", "max"])
def test_critic_regularized_regression_by_hand(kind, estimate):
    rng = np.random.default_rng(0)
    log_prob, q_value = rng.normal(size=(2, 8))
    sampled = rng.normal(size=(8, 5))
    expected = []
    for x, q, others in zip(log_prob, q_value, sampled, strict=True):
        advantage = q - (np.mean(others) if estimate == "mean" else max(others))
        weight = float(advantage > 0) if kind == "binary" else min(np.exp(advantage / 0.5), 4)
        expected.append(-weight * x)
    ours = losses.crr(*map(jnp.float32, (log_prob, q_value, sampled)), 0.5, 4.0, kind, estimate)
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


def test_self_imitation_learns_only_from_better_returns():
    target, value = jnp.array([3.0, 1.0]), jnp.array([1.0, 3.0])
    gradient = jax.grad(lambda x: losses.self_imitation(x, target, value).sum())(-jnp.ones(2))
    np.testing.assert_array_equal(gradient, [-2, 0])
    gradient = jax.grad(lambda x: losses.self_imitation_value(x, target).sum())(value)
    np.testing.assert_array_equal(gradient, [-2, 0])
    np.testing.assert_array_equal(losses.self_imitation_value(value, target), [2, 0])


def test_the_gate_learns_how_often_each_component_is_the_best():
    q_values = jnp.float32(
        np.random.default_rng(1).normal(size=(200, 3)) + np.array([0, 0.5, -0.5])
    )
    frequency = np.bincount(q_values.argmax(-1), minlength=3) / 200
    gradient = jax.grad(lambda p: losses.mixture_frequency(p, q_values).mean())
    np.testing.assert_allclose(gradient(jnp.float32(frequency)), 0, atol=1e-6)
    assert gradient(jnp.float32(frequency) + 0.1).min() > 0.1
