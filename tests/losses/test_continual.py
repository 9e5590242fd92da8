import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

SHAPE = (5, 3)
HUGE = np.full(SHAPE, 1e10)


def normals(*names, **constants):
    return lambda rng: {**{name: rng.normal(size=SHAPE) for name in names}, **constants}


def impossible(*names):
    row = np.array([0.0, -np.inf, 1.0])
    return lambda rng: [
        {name: np.tile(row, (5, 1)) for name in names},
        {names[0]: 1e4 * rng.normal(size=SHAPE)},
    ]


CASES = [
    Case(
        losses.l2_init,
        normals("parameter", "initial"),
        gradient=("parameter",),
        stopped=("initial",),
        extremes=lambda rng: [{"parameter": HUGE}],
    ),
    Case(
        losses.ewc,
        normals("parameter", "anchor", "fisher"),
        gradient=("parameter",),
        stopped=("anchor", "fisher"),
        extremes=lambda rng: [{"parameter": HUGE}, {"fisher": HUGE}],
    ),
    Case(
        losses.online_fisher,
        lambda rng: {
            "fisher": rng.uniform(size=5),
            "gradient": rng.normal(size=(5, 4)),
            "decay": 0.9,
        },
        stopped=("fisher", "gradient"),
    ),
    Case(
        losses.synaptic_path,
        normals("path", "gradient", "displacement"),
        stopped=("path", "gradient", "displacement"),
    ),
    Case(
        losses.synaptic_importance,
        normals("importance", "path", "displacement"),
        stopped=("importance", "path", "displacement"),
        extremes=lambda rng: [{"displacement": np.zeros(SHAPE)}],
    ),
    Case(
        losses.synaptic_intelligence,
        normals("parameter", "anchor", "importance"),
        gradient=("parameter",),
        stopped=("anchor", "importance"),
        extremes=lambda rng: [{"parameter": HUGE}],
    ),
    Case(
        losses.distillation,
        normals("logits", "teacher_logits", temperature=2.0),
        gradient=("logits",),
        stopped=("teacher_logits",),
        extremes=impossible("logits", "teacher_logits"),
    ),
    Case(
        losses.policy_distillation,
        normals("logits", "teacher_values", temperature=0.5),
        gradient=("logits",),
        stopped=("teacher_values",),
        extremes=impossible("logits", "teacher_values"),
    ),
    Case(
        losses.hypernetwork_drift,
        normals("weights", "stored_weights"),
        gradient=("weights",),
        stopped=("stored_weights",),
        extremes=lambda rng: [{"weights": HUGE}],
    ),
    Case(
        losses.dormancy,
        lambda rng: {
            "activation": rng.normal(size=SHAPE),
            "mask": np.array([True, False, True, True, True]),
        },
        gradient=("activation",),
        extremes=lambda rng: [
            {"activation": np.zeros(SHAPE)},
            {"mask": np.zeros(5, bool)},
            {"activation": np.where(np.arange(5) == 1, np.nan, 1)[:, None] * np.ones(SHAPE)},
        ],
    ),
    Case(
        losses.dormant_fraction,
        lambda rng: {"activation": rng.normal(size=SHAPE) * np.array([0, 1, 2])},
        stopped=("activation",),
        extremes=lambda rng: [{"activation": np.zeros(SHAPE)}],
    ),
    Case(
        losses.magnitude_mask,
        lambda rng: {
            "weights": rng.normal(size=(2, 6)),
            "free": rng.uniform(size=(2, 6)) < 0.7,
            "keep": 0.5,
        },
        stopped=("weights",),
        extremes=lambda rng: [
            {"free": np.zeros((2, 6), bool)},
            {"weights": np.zeros((2, 6))},
            {"keep": 0.0},
        ],
    ),
]
test_contract = contract(CASES)


def test_penalties_of_trees():
    """Elementwise functions can be mapped over trees of parameters, leaf by leaf."""
    parameter = {"w": jnp.float32([1, 2]), "b": jnp.float32(3)}
    anchor, fisher = {"w": jnp.zeros(2), "b": jnp.float32(1)}, {"w": jnp.float32([1, 2]), "b": 4.0}
    total = lambda tree: sum(x.sum() for x in jax.tree.leaves(tree))
    assert total(jax.tree.map(losses.ewc, parameter, anchor, fisher)) == (1 + 8 + 16) / 2
    ours = total(jax.tree.map(losses.synaptic_intelligence, parameter, anchor, fisher))
    assert ours == 1 + 8 + 16
    assert total(jax.tree.map(losses.l2_init, parameter, anchor)) == 1 + 4 + 4


def test_ewc_after_a_quadratic_task_is_joint_training():
    """Old loss 3 (x - 1)^2 / 2, new loss (x + 1)^2 / 2: with its curvature as the Fisher
    information, the penalty's minimum is that of both losses."""
    loss = lambda x: 0.5 * (x + 1) ** 2 + losses.ewc(x, jnp.float32(1), jnp.float32(3))
    np.testing.assert_allclose(jax.grad(loss)(0.5), 0, atol=1e-6)


def test_online_fisher_of_a_gaussian():
    """The gradient of log N(y; m, s^2) for m is (y - m) / s^2, with mean square 1 / s^2."""
    y = np.random.default_rng(0).normal(2, 0.5, 4000)
    gradient = jnp.float32((y - 2) / 0.25)
    ours = losses.online_fisher(jnp.float32(10), gradient, 0.5)
    np.testing.assert_allclose(ours, 5 + 1 / 0.25, rtol=0.05)


def test_the_path_integral_is_the_decrease_of_the_loss():
    """Small gradient-descent steps on sum a_k (x_k - c_k)^2; the importance is then a."""
    curvature, goal = jnp.float32([1.0, 4.0, 0.0]), jnp.float32([3.0, 0.5, 1.0])
    loss = lambda x: (curvature * (x - goal) ** 2).sum()

    def step(state, _):
        x, path = state
        gradient = jax.grad(loss)(x)
        move = -0.01 * gradient
        return (x + move, losses.synaptic_path(path, gradient, move)), None

    start = jnp.zeros(3)
    (x, path), _ = jax.lax.scan(step, (start, jnp.zeros(3)), length=400)
    np.testing.assert_allclose(path.sum(), loss(start) - loss(x), rtol=0.05)
    importance = losses.synaptic_importance(jnp.ones(3), path, x - start, 1e-3)
    np.testing.assert_allclose(importance, 1 + curvature, rtol=0.06)
    ours = losses.synaptic_importance(jnp.float32(1), jnp.float32(6), jnp.float32(2), 0.5)
    np.testing.assert_allclose(ours, 1 + 6 / 4.5, rtol=1e-6)


@pytest.mark.slow
def test_distillation():
    rng = np.random.default_rng(0)
    logits, teacher = jnp.float32(rng.normal(size=(2, 4, 3)))
    soft = lambda x, t: jax.nn.softmax(x / t)
    p, q = np.float64(soft(teacher, 2.0)), np.float64(soft(logits, 2.0))
    expected = 4 * (p * np.log(p / q)).sum(-1)
    np.testing.assert_allclose(losses.distillation(logits, teacher, 2.0), expected, rtol=1e-4)
    # Hinton et al., eq. 2: the gradient is T (q - p).
    ours = jax.grad(lambda x: losses.distillation(x, teacher, 2.0).sum())(logits)
    np.testing.assert_allclose(ours, 2 * (q - p), rtol=1e-3, atol=1e-6)
    p, q = np.float64(soft(teacher, 0.5)), np.float64(soft(logits, 1.0))
    expected = (p * np.log(p / q)).sum(-1)
    ours = losses.policy_distillation(logits, teacher, 0.5)
    np.testing.assert_allclose(ours, expected, rtol=1e-4)
    np.testing.assert_allclose(
        losses.policy_distillation(teacher / 0.5, teacher, 0.5), 0, atol=1e-6
    )


def test_hypernetwork_drift_sums_over_weights():
    ours = losses.hypernetwork_drift(jnp.float32([[1, 2], [0, 0]]), jnp.float32([[0, 0], [0, 3]]))
    np.testing.assert_allclose(ours, [5, 9])


def test_dormancy():
    activation = jnp.float32([[0, 1, -3], [0, -1, 5], [jnp.nan] * 3])
    score = losses.dormancy(activation, jnp.array([True, True, False]))
    np.testing.assert_allclose(score, [0, 0.6, 2.4], rtol=1e-6)
    assert losses.dormant_fraction(activation[:2]) == np.float32(1 / 3)
    assert losses.dormant_fraction(activation[:2], 0.6001) == np.float32(2 / 3)
    assert losses.dormant_fraction(jnp.zeros((2, 3))) == 1


def test_magnitude_mask_keeps_the_largest_free_weights():
    weights = jnp.float32([5, -4, 3, -2, 1, 0.5])
    free = jnp.array([False, True, True, True, True, False])
    np.testing.assert_array_equal(losses.magnitude_mask(weights, free, 0.5), [0, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(losses.magnitude_mask(weights, free, 1.0), free)
    np.testing.assert_array_equal(losses.magnitude_mask(weights, free, 0.0), np.zeros(6))
    equal = losses.magnitude_mask(jnp.ones(4), jnp.ones(4, bool), 0.5)
    np.testing.assert_array_equal(equal, [1, 1, 0, 0])
