import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
import scipy.optimize

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract
from tests.losses.divergences.test_entropy_and_kl import IMPOSSIBLE
from tests.losses.policies.test_policy_gradients import log_probs

MASK = np.arange(4)[:, None] < np.array([4, 2, 3])


def trajectories(rng, *names):
    return {
        **log_probs(rng, "log_prob", "old_log_prob"),
        **{name: rng.normal(size=(4, 3)) for name in names},
        "mask": MASK,
    }


def masked_nan(name):
    return {"mask": np.zeros((4, 3), bool), name: np.full((4, 3), np.nan)}


def far_ratios(shape=(4, 3)):
    return [{"log_prob": np.full(shape, -500.0)}, {"old_log_prob": np.full(shape, -500.0)}]


def bandit(rng):
    return {
        "logits": rng.normal(size=(5, 4)),
        "old_log_prob": -rng.uniform(0.5, 2, 5),
        "action": rng.integers(0, 4, 5),
        "reward": rng.normal(size=5),
        "q_values": rng.normal(size=(5, 4)),
    }


AVAILABLE = np.arange(20).reshape(5, 4) % 4 < np.array([4, 3, 2, 1, 4])[:, None]
CASES = [
    Case(
        losses.truncated_ratio,
        lambda rng: {**log_probs(rng, "log_prob", "old_log_prob"), "maximum": 1.01},
        gradient=("log_prob", "old_log_prob"),
        extremes=lambda rng: far_ratios(),
    ),
    Case(
        losses.cumulative_ratio,
        lambda rng: trajectories(rng),
        gradient=("log_prob", "old_log_prob"),
        time=("log_prob", "old_log_prob", "mask"),
        extremes=lambda rng: [*far_ratios(), masked_nan("log_prob"), masked_nan("old_log_prob")],
    ),
    Case(
        losses.effective_sample_size,
        lambda rng: {"log_weight": rng.normal(size=(5, 4)), "mask": AVAILABLE},
        gradient=("log_weight",),
        extremes=lambda rng: [
            {"log_weight": 1e4 * rng.normal(size=(5, 4))},
            {"mask": np.zeros((5, 4), bool)},
            {"log_weight": np.where(AVAILABLE, 0.0, np.nan)},
        ],
    ),
    *(
        Case(
            losses.importance_sampling,
            lambda rng, per_decision=per_decision, weighted=weighted: {
                **trajectories(rng, "reward"),
                "discount": np.array(0.9),
                "per_decision": per_decision,
                "weighted": weighted,
            },
            gradient=("log_prob", "old_log_prob", "reward", "discount"),
            time=("log_prob", "old_log_prob", "reward", "mask"),
            extremes=lambda rng, both=per_decision and weighted: [
                {"log_prob": np.full((4, 3), -500.0)},
                *(masked_nan(name) for name in ("log_prob", "old_log_prob", "reward") if both),
                *([{"discount": np.array(0.0)}] if both else []),
            ],
            name=f"importance_sampling{per_decision=}{weighted=}",
        )
        for per_decision in (False, True)
        for weighted in (False, True)
    ),
    Case(
        losses.doubly_robust,
        lambda rng: {
            **trajectories(rng, "reward", "q_value", "value"),
            "discount": np.array(0.9),
        },
        gradient=("log_prob", "old_log_prob", "reward", "q_value", "value", "discount"),
        time=("log_prob", "old_log_prob", "reward", "q_value", "value", "mask"),
        extremes=lambda rng: [
            *(masked_nan(x) for x in ("log_prob", "old_log_prob", "reward", "q_value", "value")),
            {"log_prob": np.full((4, 3), -500.0)},
        ],
    ),
    Case(
        losses.pois,
        lambda rng: {
            **log_probs(rng, "log_prob", "old_log_prob"),
            "episode_return": rng.normal(size=(4, 3)),
            "renyi": rng.uniform(0.1, 1, (4, 3)),
            "penalty": np.array(0.5),
        },
        gradient=("log_prob", "renyi", "penalty"),
        stopped=("old_log_prob", "episode_return"),
        extremes=lambda rng: [
            *far_ratios(),
            {"renyi": np.full((4, 3), 1e3)},
            {"renyi": np.zeros((4, 3))},
        ],
    ),
    Case(
        losses.truncation_schedule,
        lambda rng: {"discount": np.array(0.9), "horizon": 5, "budget": 100.0},
        gradient=("discount",),
        extremes=lambda rng: [{"discount": np.array(1.0)}, {"horizon": 1}],
    ),
    Case(
        losses.inverse_propensity,
        lambda rng: {
            **log_probs(rng, "log_prob", "old_log_prob"),
            "reward": rng.normal(size=(4, 3)),
        },
        gradient=("log_prob",),
        stopped=("old_log_prob", "reward"),
        extremes=lambda rng: far_ratios(),
    ),
    Case(
        losses.doubly_robust_bandit,
        bandit,
        gradient=("logits",),
        stopped=("old_log_prob", "reward", "q_values"),
        extremes=lambda rng: [
            {"logits": np.tile(IMPOSSIBLE, (5, 1)), "action": np.array([0, 2, 0, 2, 0])},
            {"old_log_prob": np.full(5, -500.0)},
        ],
    ),
    Case(
        losses.inverse_gap_weighting,
        lambda rng: {
            "q_values": rng.normal(size=(5, 4)),
            "exploration": 3.0,
            "mask": AVAILABLE,
        },
        stopped=("q_values",),
        extremes=lambda rng: [
            {"q_values": np.full((5, 4), 1e6)},
            {"q_values": np.where(AVAILABLE, 1.0, np.nan)},
            {"mask": np.zeros((5, 4), bool)},
            {"exploration": 0.0},
            {"exploration": 1e10},
        ],
    ),
    Case(
        losses.implicit_exploration,
        lambda rng: {
            "prob": rng.dirichlet([1.0] * 4, 5),
            "action": rng.integers(0, 4, 5),
            "loss": rng.uniform(0, 1, 5),
            "exploration": 0.1,
        },
        stopped=("prob", "loss"),
        extremes=lambda rng: [{"prob": np.zeros((5, 4))}],
    ),
]
test_contract = contract(CASES)

# A tree of three steps with two actions, and a reward for each partial path.
PATHS = np.array([*itertools.product(range(2), repeat=3)]).T


def tree(rng):
    """Rewards and action probabilities of two policies at each node, keyed by earlier actions."""
    keys = [
        tuple(path[: t + 1]) for path in itertools.product(range(2), repeat=3) for t in range(3)
    ]
    reward = {key: rng.normal() for key in keys}
    policies = []
    for _ in range(2):
        first = {key[:-1]: rng.uniform(0.2, 0.8) for key in keys}
        policies.append(lambda key, p=first: p[key[:-1]] if key[-1] else 1 - p[key[:-1]])
    return reward, *policies


def on_paths(function):
    """Evaluate a function of the path up to each step: [T, paths]."""
    return np.array(
        [[function(tuple(path[: t + 1])) for path in PATHS.T] for t in range(3)], np.float64
    )


def true_return(reward, policy, discount, key=()):
    """Return of a policy, or its value at any node, after the actions `key`."""
    if len(key) == 3:
        return 0.0
    return sum(
        policy((*key, a))
        * (reward[(*key, a)] + discount * true_return(reward, policy, discount, (*key, a)))
        for a in range(2)
    )


@pytest.mark.parametrize("seed", range(3))
def test_unbiased_estimators_average_to_the_true_return(seed):
    rng = np.random.default_rng(seed)
    reward, policy, behavior = tree(rng)
    log_prob, old = (np.log(on_paths(p)) for p in (policy, behavior))
    rewards = on_paths(reward.get)
    chance = np.exp(old.sum(0))
    truth = true_return(reward, policy, 0.9)
    with jax.enable_x64(True):
        args = [jnp.asarray(x) for x in (log_prob, old, rewards)]
        spread = {}
        for per_decision in (False, True):
            each = losses.importance_sampling(
                *(x[..., None] for x in args), 0.9, per_decision=per_decision
            )
            np.testing.assert_allclose(chance @ each, truth, rtol=1e-9)

        q_value = on_paths(lambda key: reward[key] + 0.9 * true_return(reward, policy, 0.9, key))
        value = on_paths(lambda key: true_return(reward, policy, 0.9, key[:-1]))
        for name, (q, v) in {
            "exact": (q_value, value),
            "wrong": (q_value + 1.3, value + 1.3),
            "none": (0 * q_value, 0 * value),
        }.items():
            each = losses.doubly_robust(*args, jnp.asarray(q), jnp.asarray(v), 0.9)
            spread[name] = chance @ np.square(each - truth)
            np.testing.assert_allclose(chance @ each, truth, rtol=1e-9)
        assert spread["exact"] < 1e-20 < spread["none"]
        plain = losses.importance_sampling(*(x[..., None] for x in args), 0.9)
        np.testing.assert_allclose(each, plain, rtol=1e-9)  # without a model: per decision


@pytest.mark.parametrize("per_decision", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_importance_sampling_is_its_definition(per_decision, weighted):
    x = trajectories(np.random.default_rng(0), "reward")
    ends = MASK.sum(0)
    ratio = np.exp(x["log_prob"] - x["old_log_prob"])
    weight = np.ones((4, 3))
    for t, i in itertools.product(range(4), range(3)):
        last = min((t if per_decision else 3) + 1, ends[i])
        weight[t, i] = np.prod(ratio[:last, i])
    if weighted:
        weight /= weight.mean(1, keepdims=True)
    expected = np.mean(
        [sum(0.9**t * x["reward"][t, i] * weight[t, i] for t in range(ends[i])) for i in range(3)]
    )
    ours = losses.importance_sampling(
        **{k: jnp.asarray(v) for k, v in x.items()},
        discount=0.9,
        per_decision=per_decision,
        weighted=weighted,
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


def test_a_weighted_estimate_lies_among_the_returns():
    rng = np.random.default_rng(1)
    log_prob, old, reward = jnp.float32(rng.normal(size=(3, 4, 6)))
    ours = losses.importance_sampling(log_prob, old, reward, 1.0, per_decision=False, weighted=True)
    returns = reward.sum(0)
    assert returns.min() <= ours <= returns.max()
    weights = losses.boltzmann_weights((log_prob - old).sum(0))
    np.testing.assert_allclose(ours, weights @ returns, rtol=1e-4)
    unlikely = losses.importance_sampling(
        log_prob - 100, old, reward, 1.0, per_decision=False, weighted=True
    )
    np.testing.assert_allclose(unlikely, ours, rtol=1e-3)


def test_weights():
    same, apart = jnp.zeros((2, 8)), jnp.zeros((2, 8)).at[:, 0].set(60)
    np.testing.assert_allclose(losses.effective_sample_size(same), 8, rtol=1e-6)
    np.testing.assert_allclose(losses.effective_sample_size(apart), 1, rtol=1e-6)
    mask = jnp.arange(8) < 3
    np.testing.assert_allclose(losses.effective_sample_size(same, mask), 3, rtol=1e-6)
    w = np.random.default_rng(2).uniform(size=8)
    ours = losses.effective_sample_size(jnp.log(jnp.float32(7 * w)))
    np.testing.assert_allclose(ours, w.sum() ** 2 / (w**2).sum(), rtol=1e-4)
    ours = losses.truncated_ratio(jnp.log(jnp.array([0.5, 3.0])), jnp.zeros(2), 2.0)
    np.testing.assert_allclose(ours, [0.5, 2], rtol=1e-6)


def test_pois_is_a_bound_that_grows_tighter_with_samples():
    rng = np.random.default_rng(3)
    log_prob, old, g, renyi = rng.normal(size=(4, 6)) ** 2
    weight = np.exp(log_prob - old)
    expected = 0.7 * np.sqrt(np.exp(renyi).mean() / 6) - (weight * g).mean()
    args = [jnp.float32(x) for x in (log_prob, old, g, renyi)]
    np.testing.assert_allclose(losses.pois(*args, 0.7), expected, rtol=1e-4)
    doubled = [jnp.tile(x, 2) for x in args]
    assert losses.pois(*doubled, 0.7) < losses.pois(*args, 0.7)
    exact = losses.pois(*args[:3], jnp.ones(1), 0.7)
    np.testing.assert_allclose(exact, 0.7 * np.sqrt(np.e / 6) - (weight * g).mean(), rtol=1e-4)


def squared_width(lengths, discount):
    """Squared Hoeffding width: the sum of the squared ranges of the trajectories' contributions."""
    alive = [sum(length > t for length in lengths) for t in range(max(lengths))]
    return sum(sum(discount**t / alive[t] for t in range(length)) ** 2 for length in lengths)


def test_truncation_schedule_has_the_narrowest_interval():
    """Compare with a numerical optimum of the width, itself checked by brute force."""
    with jax.enable_x64(True):
        for discount, horizon in ((0.8, 5), (0.95, 4), (1.0, 3)):
            ours = losses.truncation_schedule(jnp.asarray(discount), horizon, 60.0)
            np.testing.assert_allclose(ours.sum(), 60)
            assert (np.diff(ours) <= 1e-9).all()
            c = [
                discount**t * (discount**t + 2 * sum(discount**u for u in range(t + 1, horizon)))
                for t in range(horizon)
            ]
            best = scipy.optimize.minimize(
                lambda n, c=c: np.sum(c / n),
                np.full(horizon, 60 / horizon),
                bounds=[(0.1, None)] * horizon,
                constraints={"type": "eq", "fun": lambda n: n.sum() - 60},
                tol=1e-10,
            )
            np.testing.assert_allclose(ours, best.x, rtol=1e-2)
    lengths = [5, 5, 4, 3, 3, 1]
    alive = np.array([sum(x > t for x in lengths) for t in range(5)])
    c = [0.8**t * (0.8**t + 2 * sum(0.8**u for u in range(t + 1, 5))) for t in range(5)]
    np.testing.assert_allclose(squared_width(lengths, 0.8), np.sum(c / alive), rtol=1e-9)


def test_logged_bandits_are_evaluated_without_bias():
    """Enumerate a logging policy's actions; a model, right or wrong, does not change the mean."""
    rng = np.random.default_rng(4)
    with jax.enable_x64(True):
        logits, old_logits, reward, q_values = jnp.asarray(rng.normal(size=(4, 4)))
        log_prob, old = jax.nn.log_softmax(logits), jax.nn.log_softmax(old_logits)
        truth = jnp.exp(log_prob) @ reward
        each = losses.inverse_propensity(log_prob, old, reward)
        np.testing.assert_allclose(jnp.exp(old) @ each, truth)
        tiled = jnp.tile(logits, (4, 1))
        for model in (q_values, reward):
            robust = losses.doubly_robust_bandit(
                tiled, old, jnp.arange(4), reward, jnp.tile(model, (4, 1))
            )
            np.testing.assert_allclose(jnp.exp(old) @ robust, truth)
        np.testing.assert_allclose(robust, truth)  # the right model leaves no variance
        gradient = jax.jit(
            jax.grad(
                lambda x: (
                    jnp.exp(old)
                    @ losses.doubly_robust_bandit(
                        jnp.tile(x, (4, 1)), old, jnp.arange(4), reward, jnp.tile(q_values, (4, 1))
                    )
                )
            )
        )(logits)
        exact = jax.grad(lambda x: jax.nn.softmax(x) @ reward)(logits)
        np.testing.assert_allclose(gradient, exact, atol=1e-12)


def test_inverse_gap_weighting():
    q_values = jnp.array([0.2, 1.0, 0.5, 0.9])
    ours = losses.inverse_gap_weighting(q_values, 10.0)
    others = [1 / (4 + 10 * gap) for gap in (0.8, 0.5, 0.1)]
    expected = [others[0], 1 - sum(others), others[1], others[2]]
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    np.testing.assert_allclose(losses.inverse_gap_weighting(q_values, 0.0), 0.25, rtol=1e-6)
    mask = jnp.array([True, False, True, False])
    ours = losses.inverse_gap_weighting(q_values, 10.0, mask)
    np.testing.assert_allclose(ours, [1 / 5, 0, 4 / 5, 0], rtol=1e-5)
    ours = losses.inverse_gap_weighting(jnp.ones(3), 10.0)
    np.testing.assert_allclose(ours, 1 / 3, rtol=1e-5)
    # Trade-off between regret and model error: the mean gap is at most (A - 1) / exploration.
    prob = losses.inverse_gap_weighting(q_values, 10.0)
    assert prob @ (1.0 - q_values) <= 3 / 10


def test_implicit_exploration_is_biased_low_and_without_it_unbiased():
    prob, loss = jnp.array([0.5, 0.3, 0.2]), jnp.array([1.0, 2.0, 0.5])
    for exploration in (0.0, 0.1):
        each = losses.implicit_exploration(jnp.tile(prob, (3, 1)), jnp.arange(3), loss, exploration)
        np.testing.assert_allclose(prob @ each, loss * prob / (prob + exploration), rtol=1e-6)


def test_ratios_equal_rlax():
    rng = np.random.default_rng(5)
    logits, old = jnp.float32(rng.normal(size=(2, 4, 3)))
    action = jnp.array([0, 1, 2, 0])
    log_prob, old_log_prob = (
        losses.at_action(jax.nn.log_softmax(x), action) for x in (logits, old)
    )
    theirs = rlax.categorical_importance_sampling_ratios(logits, old, action)
    ours = losses.cumulative_ratio(log_prob, old_log_prob)
    np.testing.assert_allclose(ours, jnp.cumprod(theirs), rtol=1e-5)
