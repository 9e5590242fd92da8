import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

T, K = 6, 3
SEGMENT = np.array([[0, 0, 1, 1, 2, 2], [0, 1, 1, 1, -1, 9]]).T
MASK = np.array([[1, 1, 1, 1, 1, 0], [1, 0, 1, 1, 1, 1]], bool).T


def tokens(rng):
    return {"x": rng.normal(size=(T, 2)), "segment": SEGMENT, "number": K, "mask": MASK}


def garbage(rng):
    return [{"x": np.where(MASK, 1e6, np.nan)}, {"mask": np.zeros((T, 2), bool)}]


def turns(rng):
    return {
        "turn_reward": rng.normal(size=(K, 2, 4)),
        "reward": rng.normal(size=(2, 4)),
        "weight": 0.5,
        "mask": np.arange(K)[:, None, None] < np.array([2, 1])[:, None] + np.zeros(4),
    }


def steps(rng):
    present = np.arange(T)[:, None] < np.array([6, 4, 5, 2])
    return {
        "step_reward": rng.normal(size=(T, 4)),
        "reward": rng.normal(size=4),
        "done": rng.random((T, 4)) < 0.2,
        "discount": 0.5,
        "weight": 0.7,
        "mask": present,
    }


CASES = [
    Case(
        losses.segment_ids,
        lambda rng: {"end": rng.random((T, 2)) < 0.5, "number": 2},
        time=("end",),
    ),
    Case(
        losses.low_probability_mask,
        lambda rng: {"log_prob": -rng.integers(0, 3, (T, 2)), "threshold": 0.3},
        time=("log_prob",),
    ),
    *(
        Case(
            function,
            tokens,
            gradient=("x",),
            time=("x", "segment", "mask"),
            extremes=garbage,
        )
        for function in (losses.segment_sum, losses.segment_mean)
    ),
    Case(
        losses.segment_to_tokens,
        lambda rng: {"x": rng.normal(size=(K, 2)), "segment": SEGMENT},
        gradient=("x",),
        time=("segment",),
    ),
    Case(
        losses.segment_advantage,
        lambda rng: {"value": rng.normal(size=(K + 1, 2)), "segment": SEGMENT},
        gradient=("value",),
        time=("segment",),
    ),
    Case(
        losses.turn_advantage,
        turns,
        gradient=("turn_reward", "reward"),
        time=("turn_reward", "mask"),
        extremes=lambda rng: [
            {"turn_reward": np.ones((K, 2, 4)), "reward": np.ones((2, 4))},
            {"turn_reward": np.where(turns(rng)["mask"], 1e6, np.nan)},
            {"mask": np.zeros((K, 2, 4), bool)},
        ],
    ),
    Case(
        losses.step_episode_advantage,
        steps,
        gradient=("step_reward", "reward"),
        time=("step_reward", "done", "mask"),
        extremes=lambda rng: [
            {"step_reward": np.where(steps(rng)["mask"], 1e6, np.nan)},
            {"step_reward": np.zeros((T, 4)), "reward": np.zeros(4)},
            {"mask": np.zeros((T, 4), bool)},
        ],
    ),
    Case(
        losses.multi_discount_returns,
        lambda rng: {
            "reward": rng.normal(size=(T, 2, 3)),
            "discount": np.array([1.0, 0.9, 0.5]),
            "done": rng.random((T, 2)) < 0.2,
            "mask": MASK,
        },
        gradient=("reward", "discount"),
        time=("reward", "done", "mask"),
        extremes=lambda rng: [
            {"reward": np.where(MASK[..., None], rng.normal(size=(T, 2, 3)), np.nan)}
        ],
    ),
    Case(
        losses.entropy_shaped_advantage,
        lambda rng: {
            "advantage": rng.normal(size=(T, 2)),
            "entropy": rng.uniform(0, 2, (T, 2)),
            "scale": 0.4,
            "bound": 2.0,
        },
        gradient=("advantage",),
        stopped=("entropy",),
        extremes=lambda rng: [
            {"advantage": np.zeros((T, 2))},
            {"advantage": np.full((T, 2), -1e6)},
        ],
    ),
]
test_contract = contract(CASES)


def test_segments_end_after_their_last_end():
    end = jnp.array([0, 1, 0, 0, 1, 1, 0, 1], bool)
    assert losses.segment_ids(end).tolist() == [0, 0, 1, 1, 1, 2, 3, 3]
    assert losses.segment_ids(end, 2).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    every_third = jnp.arange(1, 9) % 3 == 0
    assert losses.segment_ids(every_third).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_low_probability():
    log_prob = jnp.log(jnp.array([0.95, 0.5, 0.9]))
    assert losses.low_probability_mask(log_prob, 0.8).tolist() == [False, True, False]


def test_sums_and_means_over_segments():
    x = np.random.default_rng(0).normal(size=(T, 2))
    total, count = np.zeros((2, K, 2))
    for t in range(T):
        for b in range(2):
            if MASK[t, b] and 0 <= SEGMENT[t, b] < K:
                total[SEGMENT[t, b], b] += x[t, b]
                count[SEGMENT[t, b], b] += 1
    given = jnp.float32(np.where(MASK, x, np.nan)), jnp.array(SEGMENT), K, jnp.array(MASK)
    np.testing.assert_allclose(losses.segment_sum(*given), total, rtol=1e-5)
    np.testing.assert_allclose(losses.segment_mean(*given), total / np.maximum(count, 1), rtol=1e-5)


def macro_gae(reward, value, segment, number, discount, lambda_):
    reward = losses.segment_sum(reward, segment, number)
    value = losses.segment_mean(value, segment, number)
    next_value = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    ends = jnp.zeros(reward.shape, bool).at[-1].set(True)
    advantage = losses.gae(reward, value, next_value, ends, ends, discount, lambda_)
    return losses.segment_to_tokens(advantage, segment)


@pytest.mark.slow
def test_macro_actions_of_one_token_are_tokens():
    rng = np.random.default_rng(0)
    reward, value, log_prob, old = jnp.float32(rng.normal(size=(4, T, 2)))
    segment = jnp.tile(jnp.arange(T)[:, None], (1, 2))
    next_value = jnp.concatenate([value[1:], jnp.zeros((1, 2))])
    ends = jnp.zeros((T, 2), bool).at[-1].set(True)
    np.testing.assert_allclose(
        macro_gae(reward, value, segment, T, 0.9, 0.8),
        losses.gae(reward, value, next_value, ends, ends, 0.9, 0.8),
        rtol=1e-5,
    )
    np.testing.assert_allclose(losses.segment_sum(log_prob, segment, T), log_prob)
    # A single macro action for the whole answer is a bandit: the return minus the value.
    whole = jnp.zeros((T, 2), int)
    ours = macro_gae(reward, value, whole, 1, 0.9, 0.8)
    expected = jnp.broadcast_to(reward.sum(0) - value.mean(0), (T, 2))
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)
    ratio = losses.importance_ratio(*(losses.segment_sum(x, whole, 1) for x in (log_prob, old)))
    np.testing.assert_allclose(ratio[0], jnp.exp(log_prob - old).prod(0), rtol=1e-4)


def test_segment_advantages_sum_to_the_answers_gain():
    value = jnp.array([0.2, 0.5, 0.1, 1.0])
    segment = jnp.array([0, 1, 1, 2, -1, 3])
    ours = losses.segment_advantage(value, segment)
    np.testing.assert_allclose(ours, [0.3, -0.4, -0.4, 0.9, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(ours[jnp.array([0, 1, 3])].sum(), value[-1] - value[0], rtol=1e-5)


def test_segment_values_are_exact_where_prefixes_can_be_enumerated():
    """Two binary tokens, reward 1 for 11: V at a boundary is the chance of reaching 11."""
    p = 0.3
    value = jnp.array([p * p, p, 1.0])  # of the empty prefix, of 1, of 11
    ours = losses.segment_advantage(value, jnp.arange(2))
    np.testing.assert_allclose(ours, [p - p * p, 1 - p], rtol=1e-5)


def test_with_one_turn_it_is_grpo():
    rng = np.random.default_rng(0)
    turn, reward = jnp.float32(rng.normal(size=(1, 4))), jnp.float32(rng.normal(size=4))
    grpo = losses.group_relative(reward)
    no_turn = jnp.zeros((1, 4), bool)
    np.testing.assert_allclose(losses.turn_advantage(turn, reward, 1.0, no_turn)[0], grpo)
    np.testing.assert_allclose(losses.turn_advantage(turn, reward, 0.0)[0], grpo)


def test_two_turns():
    """The first turn gets its own and the outcome's advantage, the last only the outcome's."""
    turn = jnp.array([[1.0, 0.0, 0.0, 1.0], [jnp.nan] * 4])
    reward = jnp.array([1.0, 0.0, 0.0, 0.0])
    ours = losses.turn_advantage(turn, reward, 0.5, jnp.array([[True], [False]]))
    outcome = (reward - 0.25) / jnp.sqrt(3 / 16)
    np.testing.assert_allclose(ours[0], outcome + 0.5 * jnp.array([1, -1, -1, 1]), rtol=1e-5)
    np.testing.assert_allclose(ours[1], outcome, rtol=1e-5)


def test_step_and_episode_advantage():
    rng = np.random.default_rng(1)
    x = steps(rng)
    x["done"][2, 0] = True
    returns = np.zeros((T, 4))
    for g in range(4):
        later = 0.0
        for t in reversed(range(T)):
            r = x["step_reward"][t, g] if x["mask"][t, g] else 0.0
            later = r + 0.5 * later * (not x["done"][t, g])
            returns[t, g] = later
    score = lambda v: (v - v.mean()) / v.std() if len(v) > 1 else 0 * v
    expected = np.zeros((T, 4))
    for t in range(T):
        here = x["mask"][t]
        if here.any():
            expected[t, here] = score(x["reward"])[here] + 0.7 * score(returns[t, here])
    arrays = {k: jnp.asarray(v) for k, v in x.items()}
    arrays["step_reward"] = jnp.where(arrays["mask"], arrays["step_reward"], jnp.nan)
    np.testing.assert_allclose(
        losses.step_episode_advantage(**arrays), expected, rtol=1e-4, atol=1e-5
    )


def test_each_stream_has_its_own_discount():
    rng = np.random.default_rng(0)
    reward, done = rng.normal(size=(T, 3)), np.arange(T) == 3
    discount = np.array([1.0, 0.9, 0.5])
    expected = np.zeros(T)
    for t in range(T):
        for k in range(t, 4 if t <= 3 else T):
            expected[t] += (discount ** (k - t) * reward[k]).sum()
    arguments = jnp.float32(reward), jnp.float32(discount), jnp.array(done)
    np.testing.assert_allclose(losses.multi_discount_returns(*arguments), expected, rtol=1e-4)
    one = arguments[0][:, :1], arguments[1][:1], arguments[2]
    np.testing.assert_allclose(
        losses.multi_discount_returns(*one),
        losses.discounted_returns(one[0][:, 0], one[2], jnp.float32(0), 1.0),
        rtol=1e-5,
    )


def test_the_entropy_bonus_keeps_the_sign():
    advantage, entropy = jnp.array([1.0, -1.0, 1.0, 0.0]), jnp.array([0.5, 9.0, 9.0, 9.0])
    ours = losses.entropy_shaped_advantage(advantage, entropy, 0.4, 2.0)
    np.testing.assert_allclose(ours, [1.2, -0.5, 1.5, 0.0], rtol=1e-6)
    assert jax.grad(lambda h: losses.entropy_shaped_advantage(1.0, h, 0.4, 2.0))(0.5) == 0
