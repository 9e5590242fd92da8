import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

LEARNED = ("log_prob", "other_log_prob")
OLD = ("old_log_prob", "other_old_log_prob")
REFERENCE = ("reference_log_prob", "other_reference_log_prob")
REWARDS = ("reward", "other_reward")


def two(rng, frozen, **more):
    x = {name: -rng.uniform(1, 3, 5) for name in (*LEARNED, *frozen)}
    return {**x, **{name: rng.normal(size=5) for name in REWARDS}, **more}


def turns(rng):
    return two(rng, OLD, eta=0.5) | {
        "reward": rng.normal(size=(4, 5)),
        "other_reward": rng.normal(size=(3, 5)),
        "mask": np.arange(4)[:, None] < np.array([4, 2, 0, 1, 3]),
        "other_mask": np.arange(3)[:, None] < np.array([3, 0, 1, 2, 3]),
    }


FAR = [{"log_prob": np.full(5, -500.0)}, {"other_log_prob": np.full(5, -500.0)}]
CASES = [
    Case(
        losses.rebel,
        lambda rng: two(rng, OLD, eta=0.5),
        gradient=LEARNED,
        stopped=(*OLD, *REWARDS),
        extremes=lambda rng: [*FAR, {"reward": np.full(5, 1e6)}],
    ),
    Case(
        losses.refuel,
        turns,
        gradient=LEARNED,
        stopped=(*OLD, *REWARDS),
        time=(*REWARDS, "mask", "other_mask"),
        extremes=lambda rng: [
            *FAR,
            {"reward": np.full((4, 5), np.nan), "mask": np.zeros((4, 5), bool)},
        ],
    ),
    Case(
        losses.copg,
        lambda rng: two(rng, REFERENCE, beta=0.5),
        gradient=LEARNED,
        stopped=(*REFERENCE, *REWARDS),
        extremes=lambda rng: [*FAR, {"reward": np.full(5, 1e6)}, {"beta": 0.0}],
    ),
]
test_contract = contract(CASES)

OLD_POLICY = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1]))
REWARD = jnp.array([0.5, -0.2, 1.0, 0.0])
X, Y = np.array(list(itertools.permutations(range(4), 2))).T


def of_pairs(logits):
    policy = jax.nn.log_softmax(logits)
    return policy[X], policy[Y], OLD_POLICY[X], OLD_POLICY[Y], REWARD[X], REWARD[Y]


def minimize(loss, step, steps=400):
    gradient = jax.jit(jax.grad(loss))
    logits = jnp.zeros(4)
    for _ in range(steps):
        logits = logits - step * gradient(logits)
    return jax.nn.log_softmax(logits)


def test_rebel_takes_the_exact_mirror_descent_step():
    """pi_next proportional to pi_old exp(eta r): the natural gradient's step for a softmax."""
    found = minimize(lambda x: losses.rebel(*of_pairs(x), 2.0).mean(), 1.0)
    expected = jax.nn.log_softmax(OLD_POLICY + 2.0 * REWARD)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(losses.rebel(*of_pairs(expected), 2.0), 0, atol=1e-10)


def test_rebel_counts_only_differences_of_rewards():
    x = two(np.random.default_rng(0), OLD, eta=0.5)
    shifted = {**x, "reward": x["reward"] + 3, "other_reward": x["other_reward"] + 3}
    np.testing.assert_allclose(losses.rebel(**x), losses.rebel(**shifted), rtol=1e-5)


def test_refuel_judges_turns_by_later_rewards():
    x = turns(np.random.default_rng(0))
    to_go = [
        np.where(x[mask], x[name], 0).sum(0)
        for name, mask in zip(REWARDS, ("mask", "other_mask"), strict=True)
    ]
    ours = losses.refuel(**{**x, "reward": np.where(x["mask"], x["reward"], np.nan)})
    rest = [x[name] for name in (*LEARNED, *OLD)]
    np.testing.assert_allclose(ours, losses.rebel(*rest, *to_go, 0.5), rtol=1e-5)


@pytest.mark.slow
def test_refuel_is_exact_in_a_tabular_conversation_of_two_turns():
    """After a first turn (one of 4) the old policy acts, so its mean reward-to-go counts."""
    later = jnp.array([[1.0, 0.0], [0.0, 2.0], [0.5, 0.5], [3.0, 1.0]])  # by first and second turn
    rewards = jnp.stack([REWARD[:, None] + jnp.zeros((4, 2)), later])  # [T, first, second]
    answers = jnp.array([0.25, 0.75])
    i, j = np.meshgrid(np.arange(2), np.arange(2), indexing="ij")

    def loss(logits):
        p = jax.nn.log_softmax(logits)
        a, b = X[:, None, None], Y[:, None, None]
        value = losses.refuel(
            p[a], p[b], OLD_POLICY[a], OLD_POLICY[b], rewards[:, a, i], rewards[:, b, j], 0.5
        )
        return (value * answers[i] * answers[j]).sum((1, 2)).mean()

    expected = OLD_POLICY + 0.5 * (REWARD + later @ answers)
    np.testing.assert_allclose(jax.grad(loss)(expected), 0, atol=1e-5)


def test_copg_finds_the_optimal_policy_from_data_of_any_policy():
    """Pairs from an arbitrary distribution, on which a plain policy gradient fails."""
    behavior = jnp.array([0.7, 0.1, 0.1, 0.1])
    weight = behavior[X] * behavior[Y]
    found = minimize(lambda x: (weight * losses.copg(*of_pairs(x), 0.5)).sum(), 5.0, 800)
    expected = jax.nn.log_softmax(OLD_POLICY + REWARD / 0.5)
    assert losses.categorical_kl(found, expected) < 1e-5

    def plain(logits):  # the regularized reward with the data's mean as its baseline
        p = jax.nn.log_softmax(logits)
        gain = jax.lax.stop_gradient(REWARD - 0.5 * (p - OLD_POLICY))
        return -(behavior * p * (gain - (behavior * gain).sum())).sum() * 2

    np.testing.assert_allclose(jax.grad(plain)(expected), 0, atol=1e-6)  # the right baseline

    def unbiased_elsewhere(logits):
        p = jax.nn.log_softmax(logits)
        gain = jax.lax.stop_gradient(REWARD - 0.5 * (p - OLD_POLICY))
        return -(behavior * p * gain).sum()

    assert abs(jax.grad(unbiased_elsewhere)(expected)).max() > 1e-2


def test_the_gradient_of_copg_is_the_contrast_of_two_policy_gradients():
    x = two(np.random.default_rng(0), REFERENCE)
    mine, other = jax.grad(
        lambda a, b: losses.copg(**{**x, LEARNED[0]: a, LEARNED[1]: b}, beta=0.5).sum(), (0, 1)
    )(x["log_prob"], x["other_log_prob"])
    gain = x["reward"] - x["other_reward"]
    ratio = x["log_prob"] - x["reference_log_prob"]
    gain = gain - 0.5 * (ratio - x["other_log_prob"] + x["other_reference_log_prob"])
    np.testing.assert_allclose(mine, -gain, rtol=1e-4)
    np.testing.assert_allclose(other, gain, rtol=1e-4)


def test_ipo_is_a_case_of_copg():
    x = two(np.random.default_rng(0), REFERENCE)
    rest = [x[name] for name in (*LEARNED, *REFERENCE)]
    ours = losses.copg(*rest, 0.25 * np.ones(5), -0.25 * np.ones(5), 0.4)
    np.testing.assert_allclose(
        ours, 0.2 * losses.ipo(*rest, 0.4) - 0.2 * 1.25**2, rtol=1e-4, atol=1e-6
    )
