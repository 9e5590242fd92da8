import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

MASK = np.array([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]], bool)


def samples(rng):
    return {"cost": rng.normal(size=(3, 5)), "tail": 0.3, "mask": MASK}


def numbers(rng, *names, shape=(3, 4)):
    return {name: rng.normal(size=shape) for name in names}


def masked_nan(rng):
    cost = rng.normal(size=(3, 5))
    return np.where(MASK, cost, np.nan)


SAMPLE_EXTREMES = [
    lambda rng: {"cost": masked_nan(rng)},
    lambda rng: {"cost": np.ones((3, 5))},
    lambda rng: {"cost": 1e15 * rng.normal(size=(3, 5))},
]


def sample_extremes(rng):
    return [change(rng) for change in SAMPLE_EXTREMES]


def ecrm(rng):
    return {
        **numbers(rng, "cost", "threshold", "next_threshold", shape=6),
        "first": np.array([1, 0, 0, 1, 0, 0], bool),
        "done": np.array([0, 0, 1, 0, 0, 1], bool),
        "discount": 0.9,
        "tail": 0.2,
        "weight": 0.6,
    }


def game(rng):
    return {
        "strategy": rng.dirichlet(np.ones(3), 2),
        "opponent": rng.dirichlet(np.ones(4), 2),
        "payoff": rng.normal(size=(2, 3, 4)),
        "aversion": 0.5,
    }


def portfolio(rng):
    return {
        "log_return": 0.1 * rng.normal(size=(6, 2)),
        "weights": rng.dirichlet(np.ones(3), (6, 2)),
        "held_weights": rng.dirichlet(np.ones(3), (6, 2)),
        "risk_aversion": 0.5,
        "cost_aversion": 0.1,
        "mask": np.array([[1, 1], [1, 1], [0, 1], [1, 1], [1, 0], [1, 1]], bool),
    }


HUGE = np.full((3, 4), 1e15)
CASES = [
    Case(losses.value_at_risk, samples, gradient=("cost",), extremes=sample_extremes),
    Case(losses.cvar, samples, gradient=("cost",), extremes=sample_extremes),
    Case(losses.cvar_advantage, samples, stopped=("cost",), extremes=sample_extremes),
    Case(
        losses.variance_score,
        lambda rng: numbers(rng, "threshold", "cost"),
        gradient=("threshold", "cost"),
        extremes=lambda rng: [{"cost": HUGE}],
    ),
    Case(
        losses.expected_shortfall_score,
        lambda rng: {**numbers(rng, "threshold", "cost"), "tail": 0.2, "weight": 0.7},
        gradient=("threshold", "cost"),
        extremes=lambda rng: [
            {"cost": HUGE},
            {"cost": np.zeros((3, 4)), "threshold": np.zeros((3, 4))},
        ],
    ),
    Case(
        losses.evar_score,
        lambda rng: {
            **numbers(rng, "threshold", "cost"),
            "scale": rng.uniform(0.5, 2, (3, 4)),
            "tail": 0.2,
        },
        gradient=("threshold", "scale", "cost"),
        extremes=lambda rng: [
            {"cost": 1e5 * np.ones((3, 4))},
            {"cost": -HUGE},
            {"scale": np.full((3, 4), 1e-3)},
        ],
    ),
    Case(
        losses.entropic_risk,
        lambda rng: {"cost": rng.normal(size=(3, 5)), "aversion": 0.7, "mask": MASK},
        gradient=("cost",),
        extremes=lambda rng: [*sample_extremes(rng), {"aversion": -0.7}],
    ),
    Case(
        losses.itakura_saito,
        lambda rng: {**numbers(rng, "value", "target"), "aversion": 0.7},
        gradient=("value",),
        stopped=("target",),
        extremes=lambda rng: [
            {"value": HUGE},
            {"value": -HUGE},
            {"target": -HUGE, "aversion": -0.7},
        ],
        bfloat16=None,  # a difference of nearly equal numbers
    ),
    Case(
        losses.ecrm_cost,
        ecrm,
        gradient=("cost", "threshold", "next_threshold"),
        extremes=lambda rng: [{"cost": np.full(6, 1e15)}],
    ),
    Case(
        losses.risk_averse_utility,
        game,
        gradient=("strategy", "opponent", "payoff"),
        extremes=lambda rng: [
            {"strategy": np.eye(3)[:2], "opponent": np.eye(4)[:2]},
            {"payoff": 1e10 * rng.normal(size=(2, 3, 4))},
        ],
        bfloat16=0.2,
    ),
    Case(
        losses.cost_sensitive_reward,
        portfolio,
        gradient=("log_return", "weights", "held_weights"),
        time=("log_return", "weights", "held_weights", "mask"),
        extremes=lambda rng: [
            {"mask": np.zeros((6, 2), bool)},
            {"held_weights": np.ones((6, 2, 3)), "weights": np.ones((6, 2, 3))},
            {"log_return": np.where(portfolio(rng)["mask"], 0.1, np.nan)},
        ],
        bfloat16=0.3,  # three terms that cancel
    ),
]
test_contract = contract(CASES)


def worst_mean(cost, tail):
    """Mean of the worst share in float64, with a fractional weight for its last element."""
    left, total = tail * len(cost), 0.0
    for x in sorted(cost, reverse=True):
        share = min(left, 1.0)
        total, left = total + share * x, left - share
    return total / (tail * len(cost))


@pytest.mark.parametrize("tail", [0.05, 0.1, 0.25, 0.3, 0.37, 1.0])
def test_cvar_is_the_mean_of_the_worst_share(tail):
    cost = np.random.default_rng(0).normal(size=10)
    mask = np.random.default_rng(1).random(10) < 0.6
    x = jnp.float32(cost)
    np.testing.assert_allclose(losses.cvar(x, tail), worst_mean(cost, tail), rtol=1e-4)
    masked = losses.cvar(jnp.where(mask, x, jnp.nan), tail, mask)
    np.testing.assert_allclose(masked, worst_mean(cost[mask], tail), rtol=1e-4)
    threshold = float(losses.value_at_risk(x, tail))
    assert (cost > threshold + 1e-6).mean() <= tail + 1e-6
    assert tail == 1 or (cost > threshold - 1e-3).mean() > tail
    if tail == 1:
        np.testing.assert_allclose(losses.cvar(x, tail), cost.mean(), rtol=1e-4)


def test_cvar_advantage_gives_the_gradient_of_the_cvar():
    """Compare with the exact derivative, for enumerated costs of a categorical policy."""
    values = np.array([0.0, 1.0, 4.0, 9.0])

    logits = np.log([0.4, 0.3, 0.2, 0.1])
    number = np.array([40, 30, 20, 10])  # samples in exact proportion
    action = np.repeat(np.arange(4), number)
    advantage = losses.cvar_advantage(jnp.float32(values[action]), 0.25)

    def exact(logits):
        prob = np.exp(logits) / np.exp(logits).sum()
        return min(v + (prob * np.maximum(values - v, 0)).sum() / 0.25 for v in values)

    gradient = jax.grad(
        lambda x: losses.policy_gradient(jax.nn.log_softmax(x)[action], advantage).mean()
    )(jnp.float32(logits))
    for i in range(4):
        step = 1e-5 * np.eye(4)[i]
        expected = (exact(logits + step) - exact(logits - step)) / 2e-5
        np.testing.assert_allclose(gradient[i], expected, atol=1e-4)


def minimum(score, sample, size=1, start=None):
    """Return SciPy's minimum of the mean of score(variables, sample)."""
    function = jax.jit(lambda x: score(x, sample).mean())
    found = scipy.optimize.minimize(
        lambda x: float(function(jnp.asarray(x))),
        np.ones(size) if start is None else start,
        method="Nelder-Mead",
        options={"xatol": 1e-6, "fatol": 1e-9, "maxiter": 300},
    )
    return found.x, found.fun


def test_minimized_scores_are_the_risk_measures():
    with jax.enable_x64(True):
        sample = jnp.asarray(np.random.default_rng(0).normal(1.0, 2.0, 200))
        tail = 0.132  # not a multiple of 1 / 200: the value at risk is unique
        v, least = minimum(lambda v, y: losses.variance_score(v[0], y), sample)
        np.testing.assert_allclose([v[0], least], [sample.mean(), sample.var()], rtol=1e-4)
        for weight in (1.0, 0.4):
            v, least = minimum(
                lambda v, y, w=weight: losses.expected_shortfall_score(v[0], y, tail, w), sample
            )
            measure = (1 - weight) * sample.mean() + weight * worst_mean(sample, tail)
            np.testing.assert_allclose(least, measure, rtol=1e-5)
            np.testing.assert_allclose(v[0], losses.value_at_risk(sample, tail), rtol=1e-3)


def test_evar_score_of_a_gaussian():
    """The minimum is mean + deviation * root, root = sqrt(-2 log tail), at t = deviation / root."""
    with jax.enable_x64(True):
        tail, mean, deviation = 0.1, 1.0, 2.0
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        sample, weights = jnp.asarray(mean + deviation * nodes), weights / weights.sum()
        (v, log_t), least = minimum(
            lambda x, y: 40 * weights * losses.evar_score(x[0], jnp.exp(x[1]), y, tail),
            sample,
            2,
            np.array([3.0, 0.0]),
        )
        root = np.sqrt(-2 * np.log(tail))
        np.testing.assert_allclose(least, mean + deviation * root, rtol=1e-4)
        np.testing.assert_allclose(np.exp(log_t), deviation / root, rtol=1e-2)
        np.testing.assert_allclose(v, mean + deviation**2 / 2 / np.exp(log_t), rtol=1e-2)
        assert least > mean + deviation * scipy.stats.norm.pdf(scipy.stats.norm.ppf(0.1)) / 0.1


def test_entropic_risk():
    cost = np.random.default_rng(0).normal(size=7)
    for a in (0.5, -2.0):
        expected = np.log(np.exp(a * cost).mean()) / a
        np.testing.assert_allclose(losses.entropic_risk(jnp.float32(cost), a), expected, rtol=1e-5)
    mask = np.arange(7) < 4
    expected = np.log(np.exp(cost[:4]).mean())
    ours = losses.entropic_risk(jnp.where(mask, jnp.float32(cost), jnp.nan), 1.0, mask)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    huge = jnp.array([0.0, 1e6])
    np.testing.assert_allclose(losses.entropic_risk(huge, 1.0), 1e6 - np.log(2), rtol=1e-6)
    assert losses.entropic_risk(jnp.float32(cost), 1.0) > cost.mean()


def test_itakura_saito_has_the_certainty_equivalent_as_its_minimizer():
    target = jnp.float32(np.random.default_rng(0).normal(1.0, 0.8, 4001))
    a = 1.0
    gradient = jax.jit(jax.grad(lambda v: losses.itakura_saito(v, target, a).mean()))
    best = -losses.entropic_risk(-target, a)
    np.testing.assert_allclose(gradient(best), 0, atol=1e-5)
    np.testing.assert_allclose(best, 1.0 - a * 0.8**2 / 2, atol=0.03)
    value = jnp.float32(5.0)
    for _ in range(200):
        value = value - 0.5 * jnp.clip(gradient(value), -1, 1)
    np.testing.assert_allclose(value, best, atol=1e-3)


def test_itakura_saito_by_its_definition_and_far_away():
    d = np.array([-3.0, -0.5, 0.0, 2.0])
    ours = losses.itakura_saito(jnp.float32(d), jnp.zeros(4), 2.0)
    np.testing.assert_allclose(ours, np.exp(2 * d) - 2 * d - 1, rtol=1e-5)
    gradient = jax.grad(losses.itakura_saito)
    for value in (1e3, 1e6):
        assert jnp.isfinite(gradient(value, 0.0, 2.0)) and gradient(value, 0.0, 2.0) > 1e10
        np.testing.assert_allclose(gradient(-value, 0.0, 2.0), -2.0)


def test_ecrm_costs_sum_to_the_measure():
    x = ecrm(np.random.default_rng(0))
    total = 0.0
    for t in range(3):  # the first episode; each threshold was chosen one step before
        v = x["next_threshold"][t - 1]
        c = x["cost"][t]
        risky = 0.4 * c + 0.6 * (v + max(c - v, 0) / 0.2)
        total += 0.9**t * (c if t == 0 else risky)
    x["threshold"][1:] = x["next_threshold"][:-1]
    ours = losses.ecrm_cost(**{k: jnp.asarray(v) for k, v in x.items()})
    np.testing.assert_allclose((ours[:3] * 0.9 ** np.arange(3)).sum(), total, rtol=1e-5)


def test_ecrm_minimized_over_thresholds_is_mean_and_cvar():
    """A step with a random cost follows one with a certain cost."""
    cost = np.random.default_rng(1).exponential(size=50)

    def objective(v):
        first = losses.ecrm_cost(jnp.float32(2.0), jnp.float32(0), v, True, False, 0.9, 0.2, 0.6)
        second = losses.ecrm_cost(jnp.float32(cost), v, jnp.float32(0), False, True, 0.9, 0.2, 0.6)
        return first + 0.9 * second.mean()

    least = jax.vmap(objective)(jnp.float32(cost)).min()
    expected = 2 + 0.9 * (0.4 * cost.mean() + 0.6 * worst_mean(cost, 0.2))
    np.testing.assert_allclose(least, expected, rtol=1e-5)


def test_risk_averse_utility_equals_the_covariance_form():
    x = game(np.random.default_rng(0))
    ours = losses.risk_averse_utility(**{k: jnp.asarray(v) for k, v in x.items()})
    for i in range(2):
        s, o, m = x["strategy"][i], x["opponent"][i], x["payoff"][i]
        covariance = np.cov(m, aweights=o, ddof=0)
        expected = s @ m @ o - 0.5 * s @ covariance @ s
        np.testing.assert_allclose(ours[i], expected, rtol=1e-4)


def test_risk_aversion_picks_the_safe_equilibrium_of_a_stag_hunt():
    payoff, half = jnp.array([[4.0, 0.0], [3.0, 2.0]]), jnp.array([0.7, 0.3])
    utility = jax.vmap(losses.risk_averse_utility, in_axes=(0, None, None, None))
    stag, hare = utility(jnp.eye(2), half, payoff, 0.0)
    assert stag > hare
    stag, hare = utility(jnp.eye(2), half, payoff, 0.5)
    assert hare > stag


def test_cost_sensitive_reward():
    x = portfolio(np.random.default_rng(0))
    ours = losses.cost_sensitive_reward(**{k: jnp.asarray(v) for k, v in x.items()})
    for i in range(2):
        r = x["log_return"][x["mask"][:, i], i]
        trade = np.abs(x["weights"] - x["held_weights"]).sum(-1)[x["mask"][:, i], i]
        expected = r.mean() - 0.5 * r.var() - 0.1 * trade.mean()
        np.testing.assert_allclose(ours[i], expected, rtol=1e-4)
