import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
import scipy.optimize

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def numbers(rng, *names):
    return {name: rng.normal(size=(5, 3)) for name in names}


def steps(rng):
    return {
        **numbers(rng, "value", "reward", "next_value"),
        "terminated": np.arange(15).reshape(5, 3) % 3 == 0,
        "discount": 0.9,
    }


HUGE = np.full((5, 3), 1e15)
ENDED = {"next_value": np.full((5, 3), np.nan), "terminated": np.ones((5, 3), bool)}
MASK = np.array([[1, 1], [0, 1], [1, 0], [1, 1]], bool)
CASES = [
    Case(
        losses.td_error,
        steps,
        gradient=("value", "reward", "next_value"),
        time=("value", "reward", "next_value", "terminated"),
        extremes=lambda rng: [ENDED, {"value": HUGE}],
    ),
    Case(
        losses.residual_gradient,
        steps,
        gradient=("value", "reward", "next_value"),
        extremes=lambda rng: [ENDED, {"value": HUGE}],
    ),
    Case(
        losses.robust_bellman,
        lambda rng: {**numbers(rng, "td_error", "dual"), "threshold": 0.7},
        gradient=("td_error",),
        stopped=("dual",),
        extremes=lambda rng: [{"dual": HUGE}, {"td_error": HUGE}, {"threshold": float("inf")}],
    ),
    Case(
        losses.absolute_bellman,
        lambda rng: numbers(rng, "td_error", "dual"),
        gradient=("td_error",),
        stopped=("dual",),
        extremes=lambda rng: [{"dual": HUGE}, {"td_error": HUGE}, {"dual": 0 * HUGE}],
    ),
    Case(
        losses.gradient_correction,
        lambda rng: numbers(rng, "value", "td_error", "dual"),
        gradient=("value",),
        stopped=("td_error", "dual"),
        extremes=lambda rng: [{"td_error": HUGE}],
    ),
    Case(
        losses.excess_bellman_error,
        lambda rng: {
            "value": rng.normal(size=(4, 2)),
            "target": rng.normal(size=(4, 2)),
            "candidates": rng.normal(size=(4, 2, 3)),
            "mask": MASK,
        },
        gradient=("value", "target", "candidates"),
        time=("value", "target", "candidates", "mask"),
        extremes=lambda rng: [
            {
                "value": np.where(MASK, 1.0, np.nan),
                "target": np.where(MASK, 1.0, np.nan),
                "candidates": np.where(MASK[..., None], np.ones(3), np.nan),
            },
            {"mask": np.zeros((4, 2), bool)},
        ],
    ),
]
test_contract = contract(CASES)


def test_excess_bellman_error_excludes_the_noise():
    """Targets 0 and 2 have mean 1: the error of value 1 is pure noise, that of 0 is 1 larger."""
    target = jnp.tile(jnp.array([0.0, 2.0]), 3)
    candidates = jnp.broadcast_to(jnp.array([0.0, 1.0, 3.0]), (6, 3))
    for value, expected in ((1.0, 0), (0.0, 1), (3.0, 4)):
        ours = losses.excess_bellman_error(jnp.full(6, value), target, candidates)
        np.testing.assert_allclose(ours, expected, atol=1e-6)
    rng = np.random.default_rng(0)
    value, target, candidates = rng.normal(size=8), rng.normal(size=8), rng.normal(size=(8, 3))
    mask = np.arange(8) < 6
    errors = [np.mean((candidates[:6, k] - target[:6]) ** 2) for k in range(3)]
    expected = np.mean((value[:6] - target[:6]) ** 2) - min(errors)
    ours = losses.excess_bellman_error(value, target, candidates, mask)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_td_error_equals_rlax():
    rng = np.random.default_rng(0)
    x = {k: jnp.asarray(v) for k, v in steps(rng).items() if k != "discount"}
    theirs = jax.vmap(jax.vmap(rlax.td_learning))(
        x["value"], x["reward"], 0.9 * ~x["terminated"], x["next_value"]
    )
    np.testing.assert_allclose(losses.td_error(discount=0.9, **x), theirs, rtol=1e-5, atol=1e-6)


STATES, FEATURES = 6, 3


def linear_environment():
    rng = np.random.default_rng(1)
    prob = rng.dirichlet(np.ones(STATES), size=STATES)
    weight = rng.dirichlet(np.ones(STATES))  # off-policy state frequencies
    return map(
        jnp.asarray,
        (
            prob,
            weight,
            rng.normal(size=(STATES, STATES)) + 1,
            rng.normal(size=(STATES, FEATURES)),
            rng.normal(size=FEATURES),
        ),
    )


def errors(theta, features, reward):
    """TD errors of all pairs of states, [S, S]."""
    value = features @ theta
    never = jnp.zeros((STATES, STATES), bool)
    return losses.td_error(value[:, None], reward, never, 0.9, value[None, :])


@pytest.mark.parametrize("kind", ["squared", "huber", "absolute"])
def test_gradient_is_that_of_the_robust_error_of_the_expectation(kind):
    """Sample gradients with the exact dual average to that of sum_s weight loss(E[delta])."""
    with jax.enable_x64(True):
        prob, weight, reward, features, theta = linear_environment()

        def exact(theta):
            mean = (prob * errors(theta, features, reward)).sum(-1)
            size = jnp.abs(mean)
            near = 0.5 * mean**2
            loss = {
                "squared": near,
                "huber": jnp.where(size <= 0.6, near, 0.6 * (size - 0.3)),
                "absolute": size,
            }[kind]
            return (weight * loss).sum()

        dual = (prob * errors(theta, features, reward)).sum(-1)[:, None]
        assert (jnp.abs(dual) > 0.6).any() and (jnp.abs(dual) < 0.6).any()

        def sampled_gradient(theta):
            delta = errors(theta, features, reward)
            loss = {
                "squared": lambda: losses.robust_bellman(delta, dual),
                "huber": lambda: losses.robust_bellman(delta, dual, 0.6),
                "absolute": lambda: losses.absolute_bellman(delta, dual),
            }[kind]()
            return (weight[:, None] * prob * loss).sum()

        np.testing.assert_allclose(sampled_gradient(theta), exact(theta), rtol=1e-10)
        ours, theirs = (jax.jit(jax.grad(f))(theta) for f in (sampled_gradient, exact))
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


@pytest.mark.parametrize("threshold", [np.inf, 1.0])
def test_alternating_updates_converge_to_the_minimizer_of_the_robust_error(threshold):
    """Learn a dual per state and a value with few features, by plain gradient descent."""
    prob, weight, reward, features, _ = (jnp.asarray(x, jnp.float32) for x in linear_environment())
    reward = reward.at[0].add(5)  # an outlier, which the Huber error may leave unfitted

    def objective(theta):
        value = np.asarray(features, np.float64) @ theta
        mean = (np.asarray(prob) * (np.asarray(reward) + 0.9 * value)).sum(-1) - value
        near = np.minimum(np.abs(mean), threshold)
        far = np.where(np.isinf(threshold), 0, np.abs(mean) - near)
        return (np.asarray(weight) * (0.5 * near**2 + near * far)).sum()

    def loss(theta, dual):
        delta = errors(theta, features, reward)
        value_loss = losses.robust_bellman(delta, dual[:, None], threshold)
        dual_loss = losses.squared_error(dual[:, None], delta)
        return (weight[:, None] * prob * value_loss).sum(), (prob * dual_loss).sum()

    def step(_, state):
        theta, dual = state
        fall = jax.grad(lambda theta: loss(theta, dual)[0])(theta)
        rise = jax.grad(lambda dual: loss(theta, dual)[1])(dual)
        return theta - 0.2 * fall, dual - 0.9 * rise

    start = jnp.zeros(FEATURES), jnp.zeros(STATES)
    theta, _ = jax.jit(lambda: jax.lax.fori_loop(0, 30_000, step, start))()
    best = scipy.optimize.minimize(objective, np.zeros(FEATURES), method="BFGS")
    np.testing.assert_allclose(theta, best.x, atol=5e-3)


def test_residual_gradient_descends_both_values():
    with jax.enable_x64(True):
        _, _, reward, features, theta = linear_environment()
        value = features @ theta
        ours = jax.grad(
            lambda theta: losses.residual_gradient(
                (features @ theta)[0], reward[0, 1], jnp.bool_(False), 0.9, (features @ theta)[1]
            )
        )(theta)
        delta = reward[0, 1] + 0.9 * value[1] - value[0]
        np.testing.assert_allclose(ours, delta * (0.9 * features[1] - features[0]), rtol=1e-10)


def tdc(theta, dual, features, next_features, reward):
    value, next_value = features @ theta, next_features @ theta
    delta = losses.td_error(value, reward, jnp.zeros(value.shape, bool), 0.99, next_value)
    loss = losses.robust_bellman(delta, dual) + losses.gradient_correction(value, delta, dual)
    return loss, delta


@pytest.mark.slow
def test_both_terms_are_the_update_of_tdc():
    rng = np.random.default_rng(2)
    features, next_features = rng.normal(size=(2, 8, FEATURES))
    reward, dual, theta = rng.normal(size=8), rng.normal(size=8), rng.normal(size=FEATURES)
    delta = reward + 0.99 * next_features @ theta - features @ theta
    expected = sum(
        d * x - 0.99 * h * y
        for d, h, x, y in zip(delta, dual, features, next_features, strict=True)
    )
    with jax.enable_x64(True):
        ours = jax.grad(lambda t: tdc(t, dual, features, next_features, reward)[0].sum())(theta)
    np.testing.assert_allclose(-ours, expected, rtol=1e-10)


def test_on_bairds_counterexample_it_does_not_diverge_as_the_semi_gradient_does():
    """Sutton and Barto, 2018, figure 11.2: states are equally frequent; all lead to the last."""
    features = 2 * np.eye(7, 8)
    features[:6, 7] = 1
    features[6, 6:] = 1, 2
    features = jnp.asarray(features, jnp.float32)
    start = jnp.array([1.0, 1, 1, 1, 1, 1, 10, 1])
    after = jnp.broadcast_to(features[6], features.shape)

    @jax.jit
    def semi_gradient_step(_, theta):
        target = losses.td_target(jnp.zeros(7), jnp.zeros(7, bool), 0.99, after @ theta)
        loss = lambda theta: losses.squared_error(features @ theta, target).mean()
        return theta - 0.1 * jax.grad(loss)(theta)

    @jax.jit
    def corrected_step(_, state):
        theta, phi = state

        def loss(theta, phi):
            dual = features @ phi
            value_loss, delta = tdc(theta, dual, features, after, jnp.zeros(7))
            return (value_loss + losses.squared_error(dual, delta)).mean()

        fall = jax.grad(loss, (0, 1))(theta, phi)
        return theta - 0.05 * fall[0], phi - 0.5 * fall[1]

    diverged = jax.lax.fori_loop(0, 1000, semi_gradient_step, start)
    assert jnp.abs(features @ diverged).max() > 100
    theta, _ = jax.lax.fori_loop(0, 3000, corrected_step, (start, jnp.zeros(8)))
    value = features @ theta
    assert jnp.abs(value).max() < 3
    assert jnp.abs(0.99 * value[6] - value).max() < 0.3  # the projected Bellman error shrinks
