"""Off-policy returns against their definitions and against rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import rlax
from hypothesis import given
from hypothesis import strategies as st

from tests.losses.advantages.windows import (
    SOME,
    STEP,
    UNIT,
    case,
    consistent,
    episodes,
    float32,
    window,
    without_value,
)
from tests.losses.compiled import losses
from tests.losses.contract import contract

CASES = [
    case(losses.vtrace, "ratio", *STEP, **SOME),
    case(losses.corrected_returns, "coefficient", *STEP, discount=0.9),
    case(losses.retrace_returns, "ratio", *STEP, discount=0.9),
    case(losses.q_lambda_returns, "reward", "next_q_values", *STEP[3:], **SOME),
    case(losses.upgo_returns, *STEP, discount=0.9),
]
test_contract = contract(CASES)

n_step = jax.jit(losses.n_step_returns, static_argnames="n")


def brute_force_vtrace(data, ratio, discount, lambda_, clip_ratio, clip_trace):
    """IMPALA's equation 1 as a sum of products, and the bracket of its policy gradient."""
    steps = len(ratio)
    rho, c = np.minimum(ratio, clip_ratio), lambda_ * np.minimum(ratio, clip_trace)
    after = np.where(data["terminated"], 0, data["next_value"])
    delta = data["reward"] + discount * after - data["value"]
    error = np.zeros(steps)
    for t, episode in episodes(data):
        for s in episode:
            error[t] += discount ** (s - t) * np.prod(c[t:s]) * rho[s] * delta[s]
    target = data["value"] + error
    advantage = np.zeros(steps)
    for t in range(steps):
        follows = t + 1 < steps and not data["done"][t]
        beyond = target[t + 1] - data["value"][t + 1] if follows else 0
        advantage[t] = rho[t] * (delta[t] + discount * lambda_ * beyond)
    return target, advantage


vtrace = jax.jit(losses.vtrace)


@given(st.integers(0, 10**6), UNIT, UNIT, st.floats(0.1, 3), st.floats(0.1, 3))
def test_vtrace_is_its_definition(seed, discount, lambda_, clip_ratio, clip_trace):
    data = window(seed)
    ratio = np.exp(np.random.default_rng(seed).normal(size=20))
    settings = {"discount": discount, "lambda_": lambda_}
    clips = {"clip_ratio": clip_ratio, "clip_trace": clip_trace}
    ours = vtrace(jnp.float32(ratio), **float32(data), **settings, **clips)
    theirs = brute_force_vtrace(data, ratio, **settings, **clips)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


rlax_vtrace = jax.jit(rlax.vtrace_td_error_and_advantage)


@given(st.integers(0, 10**6), UNIT, UNIT)
def test_vtrace_equals_rlax(seed, discount, lambda_):
    data = consistent(seed, truncated=False)  # rlax cannot express truncation
    x = float32(data)
    ratio = jnp.float32(np.exp(np.random.default_rng(seed).normal(size=20)))
    theirs = rlax_vtrace(
        x["value"],
        jnp.where(x["terminated"], 0, x["next_value"]),
        x["reward"],
        discount * (1.0 - x["terminated"]),
        ratio,
        lambda_,
    )
    ours = vtrace(ratio, **x, discount=discount, lambda_=lambda_)
    np.testing.assert_allclose(ours.target - x["value"], theirs.errors, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ours.advantage, theirs.pg_advantage, rtol=1e-3, atol=1e-4)


def test_vtrace_on_policy_is_the_n_step_return():
    data = float32(consistent(8))
    target = vtrace(jnp.ones(20), **data, discount=0.9).target
    np.testing.assert_allclose(
        target, n_step(**without_value(data), discount=0.9, n=20), rtol=1e-4, atol=1e-4
    )


retrace = jax.jit(losses.retrace_returns)


@given(st.integers(0, 10**6), UNIT, UNIT)
def test_retrace_is_its_definition(seed, discount, lambda_):
    data = window(seed)
    ratio = np.exp(np.random.default_rng(seed).normal(size=20))
    c = lambda_ * np.minimum(1, ratio)
    after = np.where(data["terminated"], 0, data["next_value"])
    delta = data["reward"] + discount * after - data["value"]
    expected = data["value"].copy()
    for t, steps in episodes(data):
        for s in steps:
            expected[t] += discount ** (s - t) * np.prod(c[t + 1 : s + 1]) * delta[s]
    ours = retrace(jnp.float32(ratio), **float32(data), discount=discount, lambda_=lambda_)
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-3)


def test_retrace_without_a_trace_is_one_step_and_ignores_the_first_ratio():
    data = float32(window(2))
    ratio = jnp.exp(data["value"])
    one_step = n_step(**without_value(data), discount=0.9, n=1)
    np.testing.assert_allclose(
        retrace(ratio, **data, discount=0.9, lambda_=0.0), one_step, rtol=1e-5
    )
    changed = retrace(ratio.at[0].set(1e-3), **data, discount=0.9)
    np.testing.assert_allclose(changed, retrace(ratio, **data, discount=0.9), rtol=1e-6)


def test_importance_weighted_returns_evaluate_another_policy():
    """The expectation over all trajectories of two steps is the evaluated policy's value."""
    rng = np.random.default_rng(0)
    pi, mu = np.array([0.2, 0.8]), np.array([0.6, 0.4])
    first, second = rng.normal(size=2), rng.normal(size=(2, 2))  # rewards
    q_first, q_second = rng.normal(size=2), rng.normal(size=(2, 2))  # arbitrary values
    yes, no = jnp.array([False, True]), jnp.array([False, True])
    for a in range(2):
        expected = 0.0
        for b in range(2):
            returns = losses.corrected_returns(
                jnp.float32([1.0, pi[b] / mu[b]]),
                jnp.float32([first[a], second[a, b]]),
                jnp.float32([q_first[a], q_second[a, b]]),
                jnp.float32([pi @ q_second[a], 0]),
                yes,
                no,
                0.9,
            )
            expected += mu[b] * returns[0]
        np.testing.assert_allclose(expected, first[a] + 0.9 * pi @ second[a], rtol=1e-5)


def test_q_lambda_equals_rlax_and_watkins_stops_at_non_greedy_actions():
    rng = np.random.default_rng(4)
    x = float32({"reward": rng.normal(size=9), "next_q_values": rng.normal(size=(9, 3))})
    no = jnp.zeros(9, bool)
    theirs = rlax.lambda_returns(x["reward"], jnp.full(9, 0.9), x["next_q_values"].max(-1), 0.8)
    peng = losses.q_lambda_returns(**x, terminated=no, done=no, discount=0.9, lambda_=0.8)
    np.testing.assert_allclose(peng, theirs, rtol=1e-5)
    action = x["next_q_values"].argmax(-1).at[4].add(1) % 3
    cut = losses.q_lambda_returns(
        **x, terminated=no, done=no, discount=0.9, lambda_=0.8, next_action=action
    )
    np.testing.assert_allclose(cut[5:], peng[5:], rtol=1e-5)
    best = x["next_q_values"][4].max()
    np.testing.assert_allclose(cut[4], x["reward"][4] + 0.9 * best, rtol=1e-5)
    assert (abs(cut[:4] - peng[:4]) > 1e-4).all()


upgo = jax.jit(losses.upgo_returns)


@given(st.integers(0, 10**6), UNIT)
def test_upgo_follows_only_better_trajectories(seed, discount):
    data = consistent(seed)
    after = np.where(data["terminated"], 0, data["next_value"])
    q = data["reward"] + discount * after
    expected = np.zeros(20)
    for t in reversed(range(20)):
        ends = t == 19 or data["done"][t]
        if ends:
            follow = after[t]
        else:
            follow = expected[t + 1] if q[t + 1] >= data["value"][t + 1] else data["value"][t + 1]
        expected[t] = data["reward"][t] + discount * follow
    ours = upgo(**float32(data), discount=discount)
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-3)
