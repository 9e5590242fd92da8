import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

T, G = 5, 4
LENGTHS = np.array([5, 3, 1, 0])
MASK = np.arange(T)[:, None] < LENGTHS

CASES = [
    Case(
        losses.kl_penalized_reward,
        lambda rng: {
            "reward": rng.normal(size=G),
            "log_prob": -rng.uniform(0.5, 1.5, (T, G)),
            "reference_log_prob": -rng.uniform(0.5, 1.5, (T, G)),
            "beta": 0.1,
            "mask": MASK,
        },
        gradient=("reward",),
        stopped=("log_prob", "reference_log_prob"),
        time=("log_prob", "reference_log_prob", "mask"),
        extremes=lambda rng: [
            {"log_prob": np.where(MASK, -500.0, np.nan)},
            {"reference_log_prob": np.where(MASK, -500.0, -np.inf)},
            {"reward": np.full(G, 1e6)},
        ],
    ),
    Case(
        losses.clipped_reward,
        lambda rng: {
            "reward": rng.normal(size=(3, G)),
            "mean": 0.2,
            "deviation": 0.5,
            "clip": 2.5,
        },
        gradient=("reward",),
        extremes=lambda rng: [{"deviation": 0.0}, {"reward": np.full((3, G), 1e6)}],
    ),
    Case(
        losses.calibrated_reward,
        lambda rng: {
            "reward": rng.normal(size=G),
            "baseline_reward": rng.normal(size=G),
            "satisfied": np.array([True, False, True, True]),
        },
        gradient=("reward", "baseline_reward"),
        extremes=lambda rng: [{"reward": np.array([1e6, -1e6, 0, 0])}],
    ),
    Case(
        losses.self_correction_reward,
        lambda rng: {"reward": rng.normal(size=(3, G)), "scale": 10.0},
        gradient=("reward",),
        time=("reward",),
    ),
    Case(
        losses.first_attempt_penalty,
        lambda rng: {
            "reward": rng.normal(size=G),
            "log_prob": -rng.uniform(1, 2, G),
            "reference_log_prob": -rng.uniform(1, 2, G),
            "beta": 0.1,
        },
        gradient=("reward",),
        stopped=("log_prob", "reference_log_prob"),
    ),
    Case(
        losses.cosine_length_reward,
        lambda rng: {
            "correct": rng.random(6) < 0.5,
            "length": rng.uniform(1, 9, 6),
            "limit": 10.0,
        },
        gradient=("length",),
        extremes=lambda rng: [{"length": np.zeros(6)}, {"length": np.full(6, 1e6)}],
    ),
    Case(
        losses.length_penalty,
        lambda rng: {
            "correct": rng.random((3, G)) < 0.5,
            "length": rng.uniform(1, 9, (3, G)),
            "mask": np.array([[True, True, False, True]] * 3),
        },
        stopped=("length",),
        extremes=lambda rng: [
            {"length": np.full((3, G), 7.0)},
            {"mask": np.zeros((3, G), bool)},
            {"length": np.tile([1.0, 2.0, np.nan, 1e6], (3, 1))},
        ],
    ),
    Case(
        losses.overlong_penalty,
        lambda rng: {"length": rng.uniform(82, 98, 6), "limit": 100.0, "margin": 20.0},
        gradient=("length",),
        bfloat16=None,  # bfloat16 has a spacing of 0.5 at a length of 90
        extremes=lambda rng: [{"length": np.full(6, 1e6)}, {"length": np.zeros(6)}],
    ),
    *(
        Case(
            function,
            lambda rng: {"token": rng.integers(0, 2, (T, G)), "size": 2, "mask": MASK},
            time=("token", "mask"),
        )
        for function in (losses.repeated_tokens, losses.repetition_rate)
    ),
    Case(
        losses.distinct_answers,
        lambda rng: {"token": rng.integers(0, 2, (T, G)), "mask": MASK},
        time=("token", "mask"),
    ),
    Case(
        losses.balance_score,
        lambda rng: {
            "good": rng.uniform(0, 5, G),
            "selected": rng.uniform(5, 9, G),
            "target": 6.0,
        },
        gradient=("good", "selected"),
        extremes=lambda rng: [{"good": np.zeros(G), "selected": np.zeros(G)}],
    ),
]
test_contract = contract(CASES)


def test_the_answers_reward_comes_with_its_last_token():
    rng = np.random.default_rng(0)
    reward, p, ref = rng.normal(size=G), *rng.normal(size=(2, T, G))
    expected = np.zeros((T, G))
    for g, n in enumerate(LENGTHS):
        expected[:n, g] = -0.1 * (p - ref)[:n, g]
        if n:
            expected[n - 1, g] += reward[g]
    given = [jnp.float32(x) for x in (reward, np.where(MASK, p, np.nan), ref)]
    ours = losses.kl_penalized_reward(*given, 0.1, jnp.array(MASK))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
    ours = losses.kl_penalized_reward(given[0], *(jnp.zeros((T, G)),) * 2, 0.1)
    np.testing.assert_allclose(ours[-1], reward, rtol=1e-6)
    # A gap in the mask (a tool's output) does not end the answer.
    gap = jnp.array([True, False, True, False, False])
    ours = losses.kl_penalized_reward(jnp.float32(3), jnp.zeros(5), jnp.ones(5), 0.5, gap)
    np.testing.assert_allclose(ours, [0.5, 0, 3.5, 0, 0])


def test_clipped_reward():
    reward = jnp.array([1.0, 2.0, 100.0, -100.0])
    np.testing.assert_allclose(losses.clipped_reward(reward, 1.0, 2.0, 3.0), [0, 0.5, 3, -3])
    np.testing.assert_allclose(losses.clipped_reward(reward, 1.0, 0.0, 3.0), [0, 1, 3, -3])


def test_calibrated_reward_is_bradley_terry():
    ours = losses.calibrated_reward(jnp.array([2.0, 2.0, 0.0]), 0.5, jnp.array([True, False, True]))
    expected = [1 / (1 + math.exp(-1.5)), 0, 1 / (1 + math.exp(0.5))]
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_the_bonus_rewards_improvement():
    reward = jnp.array([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]])
    ours = losses.self_correction_reward(reward, 10.0)
    np.testing.assert_allclose(ours, [[0, 1, 1, 0], [11, -10, 1, 0]])


@pytest.mark.slow
def test_the_first_stage_is_regularized_exactly():
    """Enumerate two attempts of three answers each: REINFORCE with this reward has the gradient of
    E[r_2] - beta KL(first attempt)."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        reference = jnp.log(jnp.array(rng.dirichlet(np.ones(3))))
        reward = jnp.array(rng.normal(size=(3, 3)))
        logits = {
            "first": jnp.array(rng.normal(size=3)),
            "second": jnp.array(rng.normal(size=(3, 3))),
        }
        beta = 0.6

        def objective(x):
            first, second = jax.nn.softmax(x["first"]), jax.nn.softmax(x["second"])
            kl = losses.categorical_kl(x["first"], reference)
            return -(first[:, None] * second * reward).sum() + beta * kl

        def surrogate(x):
            first, second = jax.nn.log_softmax(x["first"]), jax.nn.log_softmax(x["second"])
            both = first[:, None] + second
            shaped = losses.first_attempt_penalty(reward, first[:, None], reference[:, None], beta)
            sampled = jax.lax.stop_gradient(jnp.exp(both))
            return (sampled * losses.policy_gradient(both, shaped)).sum()

        ours, exact = jax.grad(surrogate)(logits), jax.grad(objective)(logits)
        for name in logits:
            np.testing.assert_allclose(ours[name], exact[name], atol=1e-12)


def test_cosine_length_reward():
    length = jnp.array([0.0, 5.0, 9.999999, 10.0, 50.0])
    for correct, ends in ((True, (2.0, 1.0)), (False, (-10.0, 0.0))):
        ours = losses.cosine_length_reward(jnp.array(correct), length, 10.0)
        expected = [ends[0], sum(ends) / 2, ends[1], -10, -10]
        np.testing.assert_allclose(ours, expected, atol=1e-5)
    whole = losses.cosine_length_reward(jnp.array(True), jnp.array(5), 10)
    np.testing.assert_allclose(whole, 1.5, rtol=1e-6)


def test_length_penalty():
    length, correct = jnp.array([10, 20, 30, 15]), jnp.array([True, True, True, False])
    ours = losses.length_penalty(correct, length)
    np.testing.assert_allclose(ours, [0.5, 0, -0.5, 0], rtol=1e-6, atol=1e-7)
    wrong = losses.length_penalty(jnp.zeros(4, bool), length)
    np.testing.assert_allclose(wrong, [0, 0, -0.5, 0], rtol=1e-6, atol=1e-7)
    mask = jnp.array([True, True, False, True])
    ours = losses.length_penalty(correct, length, mask)
    np.testing.assert_allclose(ours, [0.5, -0.5, 0, 0], rtol=1e-6)


def test_overlong_penalty():
    ours = losses.overlong_penalty(jnp.array([10.0, 80.0, 90.0, 100.0, 120.0]), 100.0, 20.0)
    np.testing.assert_allclose(ours, [0, 0, -0.5, -1, -1], rtol=1e-6)


repeated_tokens = jax.jit(losses.repeated_tokens, static_argnums=1)
repetition_rate = jax.jit(losses.repetition_rate, static_argnums=1)


def repeated_by_sets(tokens, n):
    seen, covered, repeats = set(), [False] * len(tokens), 0
    for i in range(len(tokens) - n + 1):
        gram = tuple(tokens[i : i + n])
        if gram in seen:
            repeats += 1
            covered[i : i + n] = [True] * n
        seen.add(gram)
    total = max(len(tokens) - n + 1, 0)
    return covered, 1 - len(seen) / total if total else 0


@settings(max_examples=60)
@given(
    st.lists(st.integers(-1, 2), min_size=9, max_size=9),
    st.sampled_from([1, 2, 3]),
    st.integers(0, 9),
)
def test_repetition_equals_a_set_of_n_grams(tokens, n, length):
    mask = jnp.arange(9) < length
    covered, rate = repeated_by_sets(tokens[:length], n)
    ours = repeated_tokens(jnp.array(tokens), n, mask)
    assert ours.tolist() == covered + [False] * (9 - length)
    np.testing.assert_allclose(repetition_rate(jnp.array(tokens), n, mask), rate, atol=1e-6)


def test_distinct_answers_are_counted_as_by_sets():
    rng = np.random.default_rng(0)
    tokens, length = rng.integers(0, 2, (3, 4, 6)), rng.integers(0, 4, (4, 6))
    mask = np.arange(3)[:, None, None] < length
    ours = np.asarray(losses.distinct_answers(jnp.array(tokens), jnp.array(mask)))
    for i in range(4):
        texts = [tuple(tokens[: length[i, j], i, j]) for j in range(6)]
        assert ours[i].tolist() == [text not in texts[:j] for j, text in enumerate(texts)]
    assert 0.2 < ours.mean() < 0.9
    whole = np.asarray(losses.distinct_answers(jnp.array(tokens)))
    for i in range(4):
        texts = [tuple(tokens[:, i, j]) for j in range(6)]
        assert whole[i].tolist() == [text not in texts[:j] for j, text in enumerate(texts)]


def test_repetition_over_a_gap():
    token, mask = jnp.array([1, 1, 1, 2, 1]), jnp.array([True, False, True, True, False])
    assert repeated_tokens(token, 1, mask).tolist() == [False, False, True, False, False]
    assert not repeated_tokens(token, 2, mask).any()  # no n-gram crosses the gap
    assert not repeated_tokens(token, 1, jnp.array([False, True, False, True, False])).any()


def test_repetition_in_many_answers_at_once():
    tokens = np.random.default_rng(0).integers(0, 3, (12, 2, 3))
    ours = repeated_tokens(jnp.array(tokens), 3)
    for i, j in itertools.product(range(2), range(3)):
        assert ours[:, i, j].tolist() == repeated_by_sets(tokens[:, i, j].tolist(), 3)[0]


@pytest.mark.parametrize(
    "good,selected,score", [(3, 4, 0.375), (6, 6, 1.0), (8, 16, 0.5), (0, 0, 0), (0, 5, 0)]
)
def test_balance_score(good, selected, score):
    np.testing.assert_allclose(
        losses.balance_score(jnp.array(good), jnp.array(selected), 6), score, rtol=1e-6
    )
