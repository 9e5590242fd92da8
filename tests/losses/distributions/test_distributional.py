import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.losses.distributions import distributional
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

ATOMS = np.linspace(-2.0, 2.0, 5)
UNEVEN = np.array([-3.0, -1.0, -0.5, 0.0, 2.0, 2.5])
IMPOSSIBLE = np.array([0.0, -np.inf, 1.0, -np.inf, 2.0])
CERTAIN = np.array([0.0, -np.inf, -np.inf, -np.inf, -np.inf])
TAU = (np.arange(4) + 0.5) / 4


def simplex(rng, *shape):
    x = np.exp(rng.normal(size=shape))
    return x / x.sum(-1, keepdims=True)


def projection(rng):
    return {
        "target_atoms": 2 * rng.normal(size=(3, 4)),
        "probs": simplex(rng, 3, 4),
        "atoms": UNEVEN,
    }


def double_q(rng):
    return {
        "reward": rng.normal(size=3),
        "terminated": np.array([False, True, False]),
        "discount": 0.9,
        "next_logits": rng.normal(size=(3, 2, 5)),
        "next_selector_logits": rng.normal(size=(3, 2, 5)),
        "atoms": ATOMS,
    }


def pairs(rng):
    return {
        "quantiles": rng.normal(size=(3, 4)),
        "tau": rng.uniform(0.1, 0.9, (3, 4)),
        "target": 2 * rng.normal(size=(3, 6)),
    }


HUGE = np.full((3, 6), 1e15)
CASES = [
    Case(
        losses.categorical_projection,
        projection,
        gradient=("target_atoms", "probs", "atoms"),
        extremes=lambda rng: [
            {"target_atoms": np.full((3, 4), 1e20)},
            {"target_atoms": np.tile(UNEVEN[:4], (3, 1))},
        ],
    ),
    Case(
        losses.categorical_cross_entropy,
        lambda rng: {"logits": rng.normal(size=(3, 5)), "target_probs": simplex(rng, 3, 5)},
        gradient=("logits",),
        stopped=("target_probs",),
        extremes=lambda rng: [
            {"logits": np.tile(CERTAIN, (3, 1)), "target_probs": np.eye(5)[[0, 0, 0]]},
            {"logits": np.tile(IMPOSSIBLE, (3, 1)), "target_probs": np.eye(5)[[0, 2, 4]]},
            {"logits": 1e4 * rng.normal(size=(3, 5)), "target_probs": np.zeros((3, 5))},
        ],
        diverging=lambda rng: [{"logits": np.tile(CERTAIN, (3, 1))}],
    ),
    Case(
        losses.two_hot_cross_entropy,
        lambda rng: {
            "logits": rng.normal(size=(3, 5)),
            "target": rng.normal(size=3),
            "atoms": ATOMS,
        },
        gradient=("logits",),
        stopped=("target", "atoms"),
        extremes=lambda rng: [{"target": np.full(3, 1e10)}],
    ),
    Case(
        losses.categorical_mean,
        lambda rng: {"logits": rng.normal(size=(3, 5)), "atoms": ATOMS},
        gradient=("logits", "atoms"),
        extremes=lambda rng: [{"logits": np.tile(IMPOSSIBLE, (3, 1))}],
    ),
    Case(
        losses.categorical_double_q_target,
        double_q,
        stopped=("reward", "next_logits", "next_selector_logits", "atoms"),
        extremes=lambda rng: [{"reward": np.full(3, 1e15)}, {"discount": 0.0}],
    ),
    Case(
        losses.quantile_error,
        lambda rng: {"value": rng.normal(size=6), "target": rng.normal(size=6), "tau": 0.3},
        gradient=("value",),
        stopped=("target",),
        extremes=lambda rng: [{"target": np.full(6, 1e30)}, {"value": np.zeros(6), "tau": 0.0}],
    ),
    Case(
        losses.quantile_huber,
        pairs,
        gradient=("quantiles",),
        stopped=("tau", "target"),
        extremes=lambda rng: [
            {"target": HUGE},
            {"target": -HUGE, "threshold": 0.0},
            {"quantiles": np.zeros((3, 4)), "target": np.zeros((3, 6)), "threshold": 0.0},
        ],
    ),
    Case(
        losses.expectile_regression,
        lambda rng: {("expectiles" if k == "quantiles" else k): v for k, v in pairs(rng).items()},
        gradient=("expectiles",),
        stopped=("tau", "target"),
        extremes=lambda rng: [{"target": HUGE}],
    ),
    Case(
        losses.quantile_wasserstein,
        lambda rng: {
            "quantiles": rng.normal(size=(3, 4)),
            "other_quantiles": rng.normal(size=(3, 4)),
        },
        gradient=("quantiles", "other_quantiles"),
        extremes=lambda rng: [
            {"quantiles": np.zeros((3, 4)), "other_quantiles": np.zeros((3, 4))},
            {"quantiles": np.full((3, 4), 1e30)},
        ],
    ),
    Case(
        losses.quantile_calibration_error,
        lambda rng: {
            "quantiles": rng.normal(size=(3, 4)),
            "tau": TAU,
            "sample": rng.normal(size=3),
            "mask": np.array([True, False, True]),
        },
        stopped=("quantiles", "tau", "sample"),
        extremes=lambda rng: [
            {"mask": np.zeros(3, bool)},
            {"sample": np.array([0.0, np.nan, 0.0]), "quantiles": np.full((3, 4), 1e30)},
        ],
        bfloat16=None,  # a fraction of three samples is equal or off by a third
    ),
    Case(
        losses.fraction_proposal,
        lambda rng: {
            "tau": np.sort(rng.uniform(0.1, 0.9, (3, 4))),
            "quantiles": np.sort(rng.normal(size=(3, 4))),
            "quantiles_at_midpoints": np.sort(rng.normal(size=(3, 5))),
        },
        gradient=("tau",),
        stopped=("quantiles", "quantiles_at_midpoints"),
        extremes=lambda rng: [{"quantiles": np.full((3, 4), 1e20)}],
        bfloat16=None,  # a difference of nearly equal numbers
    ),
    Case(
        losses.cosine_features,
        lambda rng: {"tau": rng.uniform(0.1, 0.9, (3, 4)), "number": 5},
        gradient=("tau",),
        extremes=lambda rng: [{"tau": np.zeros((3, 4))}, {"tau": np.ones((3, 4))}],
    ),
]
test_contract = contract(CASES)


def project_in_a_loop(target_atoms, probs, atoms):
    """Compute algorithm 1 of Bellemare et al. in float64."""
    result = np.zeros(len(atoms))
    for y, p in zip(target_atoms, probs, strict=True):
        y = np.clip(y, atoms[0], atoms[-1])
        upper = min(int(np.searchsorted(atoms, y)), len(atoms) - 1)
        if atoms[upper] == y:
            result[upper] += p
            continue
        share = (y - atoms[upper - 1]) / (atoms[upper] - atoms[upper - 1])
        result[upper - 1] += p * (1 - share)
        result[upper] += p * share
    return result


@pytest.mark.parametrize("atoms", [ATOMS, UNEVEN, np.linspace(-10, 10, 51)])
def test_projection_equals_a_loop_and_rlax(atoms):
    rng = np.random.default_rng(0)
    target_atoms, probs = 3 * rng.normal(size=(4, 9)), simplex(rng, 4, 9)
    args = [*map(jnp.float32, (target_atoms, probs, atoms))]
    ours = losses.categorical_projection(*args)
    loop = [project_in_a_loop(y, p, atoms) for y, p in zip(target_atoms, probs, strict=True)]
    np.testing.assert_allclose(ours, loop, atol=1e-6)
    theirs = jax.vmap(rlax.categorical_l2_project, in_axes=(0, 0, None))(*args)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@given(st.lists(st.floats(-2, 2), min_size=4, max_size=4), st.integers(0, 1000))
def test_projection_preserves_mass_and_mean(target_atoms, seed):
    probs = jnp.float32(simplex(np.random.default_rng(seed), 4))
    target_atoms, atoms = jnp.float32(target_atoms), jnp.float32(UNEVEN)
    ours = losses.categorical_projection(target_atoms, probs, atoms)
    np.testing.assert_allclose(ours.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose((ours * atoms).sum(), (probs * target_atoms).sum(), atol=1e-5)
    assert (ours >= 0).all()


def test_both_ways_to_sum_over_pairs_agree(monkeypatch):
    """Compare values and gradients of the loop (on CPUs) and the fused sum (elsewhere)."""
    rng = np.random.default_rng(1)
    inputs = [jnp.float32(x) for x in projection(rng).values()]
    other = [jnp.float32(x) for x in pairs(rng).values()]

    def everything():
        def project(x):
            return jnp.square(losses.categorical_projection(*x)).sum()

        def quantile(q):
            return losses.quantile_huber(q, *other[1:], 0.7).sum()

        return jax.jit(
            lambda: (jax.value_and_grad(project)(inputs), jax.value_and_grad(quantile)(other[0]))
        )()

    looped = everything()
    monkeypatch.setattr(distributional.jax, "default_backend", lambda: "gpu")
    fused = everything()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), looped, fused)


def test_cross_entropy_equals_rlax_and_is_smallest_at_the_target():
    rng = np.random.default_rng(0)
    logits, target = jnp.float32(rng.normal(size=(3, 5))), jnp.float32(simplex(rng, 3, 5))
    ours = losses.categorical_cross_entropy(logits, target)
    theirs = jax.vmap(rlax.categorical_cross_entropy)(target, logits)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    gradient = jax.grad(lambda x: losses.categorical_cross_entropy(x, target).sum())
    np.testing.assert_allclose(gradient(jnp.log(target)), 0, atol=1e-6)
    np.testing.assert_allclose(gradient(logits), jax.nn.softmax(logits) - target, atol=1e-6)


@pytest.mark.slow
def test_two_hot_cross_entropy_learns_the_mean():
    """The minimizer's mean is the mean of varying targets."""
    target = jnp.array([-1.3, 0.4, 1.9, 0.2])
    atoms = jnp.float32(ATOMS)
    best = losses.two_hot(target, atoms).mean(0)
    every = lambda x: jnp.broadcast_to(x, (4, len(x)))
    gradient = jax.grad(lambda x: losses.two_hot_cross_entropy(every(x), target, atoms).mean())
    np.testing.assert_allclose(gradient(jnp.log(best)), 0, atol=1e-6)
    np.testing.assert_allclose(
        losses.categorical_mean(jnp.log(best), atoms), target.mean(), rtol=1e-5
    )


@pytest.mark.parametrize("same", [True, False])
def test_double_q_target_equals_rlax(same):
    """Compared through rlax's loss, the cross-entropy against the target."""
    x = {
        k: jnp.float32(v) if k != "terminated" else jnp.asarray(v)
        for k, v in double_q(np.random.default_rng(5)).items()
    }
    if same:
        x["next_selector_logits"] = x["next_logits"]
    logits = jnp.float32(np.random.default_rng(6).normal(size=(3, 2, 5)))
    action = jnp.array([0, 1, 1])
    ours = losses.categorical_cross_entropy(
        jnp.stack([logits[i, a] for i, a in enumerate(action)]),
        losses.categorical_double_q_target(**x),
    )
    theirs = jax.jit(
        jax.vmap(rlax.categorical_double_q_learning, in_axes=(None, 0, 0, 0, 0, None, 0, 0))
    )(
        x["atoms"],
        logits,
        action,
        x["reward"],
        jnp.where(x["terminated"], 0.0, 0.9),
        x["atoms"],
        x["next_logits"],
        (jax.nn.softmax(x["next_selector_logits"]) * x["atoms"]).sum(-1),
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_c51_learns_the_return_of_a_chain():
    """Two coins in sequence, each paying 0 or 1, undiscounted: 0, 1, 2 with 1/4, 1/2, 1/4."""
    atoms = jnp.linspace(-1.0, 3.0, 9)
    reward, terminated = jnp.array([0.0, 1.0, 0.0, 1.0]), jnp.array([0, 0, 1, 1], bool)
    state, next_state = jnp.array([0, 0, 1, 1]), jnp.array([1, 1, 0, 0])

    @jax.jit
    def step(logits):
        target = losses.categorical_double_q_target(
            reward, terminated, 1.0, logits[next_state], logits[next_state], atoms
        )

        def loss(x):
            return losses.categorical_cross_entropy(x[state, 0], target).sum()

        return logits - jax.grad(loss)(logits)

    logits = jax.lax.fori_loop(0, 2000, lambda _, x: step(x), jnp.zeros((2, 1, 9)))
    probs = jax.nn.softmax(logits[0, 0])
    np.testing.assert_allclose(probs[jnp.array([2, 4, 6])], [0.25, 0.5, 0.25], atol=0.01)


def test_quantile_error_is_smallest_at_the_quantile():
    sample = jnp.float32(np.random.default_rng(0).normal(size=1000))
    gradient = jax.grad(lambda v: losses.quantile_error(v, sample, 0.8).mean())
    best = jnp.quantile(sample, 0.8)
    np.testing.assert_allclose(gradient(best), 0, atol=2e-3)
    assert gradient(best + 0.3) > 0.03 and gradient(best - 0.3) < -0.03
    np.testing.assert_allclose(losses.quantile_error(jnp.float32(1), jnp.float32(3), 0.8), 1.6)
    np.testing.assert_allclose(
        losses.quantile_error(jnp.float32(3), jnp.float32(1), 0.8), 0.4, rtol=1e-5
    )


def test_quantile_huber_equals_a_loop_and_rlax():
    x = pairs(np.random.default_rng(2))
    args = [jnp.float32(v) for v in x.values()]
    for threshold in (1.0, 0.3, 0.0):
        ours = losses.quantile_huber(*args, threshold)
        theirs = jax.vmap(lambda *x, k=threshold: rlax.quantile_regression_loss(*x, huber_param=k))
        scale = threshold or 1  # rlax follows QR-DQN: not divided by the threshold
        np.testing.assert_allclose(ours, theirs(*args) / scale, rtol=1e-5)
    total = 0.0
    for q, tau in zip(x["quantiles"][0], x["tau"][0], strict=True):
        for z in x["target"][0]:
            u = z - q
            loss = 0.5 * u * u if abs(u) <= 0.3 else 0.3 * (abs(u) - 0.15)
            total += abs(tau - (u < 0)) * loss / 0.3 / 6
    np.testing.assert_allclose(losses.quantile_huber(*args, 0.3)[0], total, rtol=1e-5)


@pytest.mark.slow
def test_quantile_huber_has_higher_derivatives():
    """Meta-gradients need them, and the loss has a custom derivative rule."""
    with jax.enable_x64(True):
        q, tau, target = (jnp.float64(v[:1]) for v in pairs(np.random.default_rng(3)).values())

        def plain(q):
            u = target[..., None, :] - q[..., None]
            share = jnp.minimum(jnp.abs(u) / 0.7, 1)
            size = share * (jnp.abs(u) - 0.35 * share)
            return (jnp.where(u < 0, 1 - tau[..., None], tau[..., None]) * size).mean(-1).sum()

        def ours(q):
            return losses.quantile_huber(q, tau, target, 0.7).sum()

        def derivatives(f):
            return jax.jit(lambda q: (jax.grad(f)(q), jax.jacfwd(f)(q), jax.hessian(f)(q)))(q)

        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9),
            derivatives(ours),
            derivatives(plain),
        )


def test_quantile_huber_learns_a_return_distribution():
    """Learn a two-armed bandit's returns, a mixture of two Gaussians, up to a small distance."""
    rng = np.random.default_rng(0)
    sample = np.where(rng.random(512) < 0.3, rng.normal(-2, 0.3, 512), rng.normal(1, 0.5, 512))
    tau = jnp.float32((np.arange(64) + 0.5) / 64)
    target = jnp.float32(sample)
    gradient = jax.grad(lambda q: losses.quantile_huber(q, tau, target, 0.01))
    quantiles = jax.jit(
        lambda q: jax.lax.fori_loop(0, 2000, lambda i, q: q - 2 / (1 + i / 50) * gradient(q), q)
    )(jnp.zeros(64))
    assert scipy.stats.wasserstein_distance(quantiles, sample) < 0.05


def test_expectile_regression_is_smallest_at_the_expectiles():
    sample = np.random.default_rng(0).normal(size=201)
    tau = np.array([0.1, 0.5, 0.8])
    best = jnp.float32([scipy.stats.expectile(sample, t) for t in tau])
    gradient = jax.grad(losses.expectile_regression)(best, jnp.float32(tau), jnp.float32(sample))
    np.testing.assert_allclose(gradient, 0, atol=1e-5)
    value = losses.expectile_regression(jnp.zeros(1), jnp.array([0.3]), jnp.array([2.0, -1.0]))
    np.testing.assert_allclose(value, (0.3 * 4 + 0.7 * 1) / 2, rtol=1e-6)


def test_wasserstein_equals_scipy():
    x, y = np.random.default_rng(0).normal(size=(2, 9))
    np.testing.assert_allclose(
        losses.quantile_wasserstein(jnp.float32(x), jnp.float32(y)),
        scipy.stats.wasserstein_distance(x, y),
        rtol=1e-5,
    )


def test_calibration_error():
    sample = jnp.linspace(0.0, 1.0, 100)
    tau = jnp.float32(TAU)
    quantiles = jnp.broadcast_to(tau, (100, 4))
    assert losses.quantile_calibration_error(quantiles, tau, sample) < 0.011
    shifted = losses.quantile_calibration_error(quantiles + 0.1, tau, sample)
    np.testing.assert_allclose(shifted, 0.1, atol=0.011)
    masked = losses.quantile_calibration_error(quantiles, tau, sample, sample < 0.5)
    np.testing.assert_allclose(masked, np.abs(np.minimum(2 * TAU, 1) - TAU).mean(), atol=0.011)


def test_fraction_proposal_has_the_gradient_of_the_wasserstein_distance():
    """Finite differences of the integral, for F^-1(w) = w^2 and its steps at the midpoints."""
    tau = np.array([0.3, 0.45, 0.8])

    def distance(tau):
        grid = (np.arange(200_000) + 0.5) / 200_000
        edges = np.concatenate([[0], tau, [1]])
        steps = ((edges[1:] + edges[:-1]) / 2) ** 2
        return np.abs(grid**2 - steps[np.searchsorted(tau, grid)]).mean()

    edges = np.concatenate([[0], tau, [1]])
    middle = (edges[1:] + edges[:-1]) / 2
    ours = jax.grad(losses.fraction_proposal)(*map(jnp.float32, (tau, tau**2, middle**2)))
    for i in range(3):
        step = np.eye(3)[i] * 1e-3
        expected = (distance(tau + step) - distance(tau - step)) / 2e-3
        np.testing.assert_allclose(ours[i], expected, atol=1e-4)


def test_cosine_features():
    ours = losses.cosine_features(jnp.array([0.0, 0.5, 1.0]), 4)
    np.testing.assert_allclose(ours, [[1, 1, 1, 1], [0, -1, 0, 1], [-1, 1, -1, 1]], atol=1e-6)


@pytest.mark.parametrize("platform,loops", [("cpu", True), ("gpu", False)])
def test_only_cpus_use_the_loop_over_pairs(monkeypatch, platform, loops):
    x = [jnp.float32(v) for v in projection(np.random.default_rng(0)).values()]
    monkeypatch.setattr(distributional.jax, "default_backend", lambda: platform)
    text = str(jax.jit(lambda *x: losses.categorical_projection(*x)).trace(*x).jaxpr)
    assert ("scan" in text or "while" in text) == loops


def test_at_one_quantile_of_one_half_it_is_half_of_huber():
    value, target = jnp.array([0.3, -2.0, 4.0]), jnp.array([1.5, -1.9, -3.0])
    ours = losses.quantile_huber(value[:, None], jnp.float32(0.5), target[:, None], 0.7)
    np.testing.assert_allclose(ours, losses.huber(value, target, 0.7) / 2 / 0.7, rtol=1e-5)
