"""Returns and advantages against float64 loops and against rlax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.core.errors import UserError
from jaxrl.losses import discounted_returns, gae
from tests.losses.advantages.windows import (
    SOME,
    STEP,
    UNIT,
    brute_force_gae,
    brute_force_n_step,
    brute_force_returns,
    case,
    consistent,
    episodes,
    float32,
    window,
    without_value,
)
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

CASES = [
    case(losses.gae, *STEP, **SOME),
    case(losses.masked_gae, *STEP, "mask", **SOME),
    case(losses.differential_gae, *STEP, lambda_=0.8, reward_rate=0.3),
    Case(
        losses.discounted_returns,
        lambda rng: {
            "reward": rng.normal(size=(6, 2)),
            "done": np.arange(12).reshape(6, 2) == 5,
            "final_value": rng.normal(size=2),
            "discount": 0.9,
        },
        gradient=("reward", "final_value"),
        time=("reward", "done"),
        extremes=lambda rng: [{"reward": np.full((6, 2), 1e30)}],
    ),
    case(losses.lambda_returns, "reward", *STEP[2:], **SOME),
    case(losses.n_step_returns, "reward", *STEP[2:], discount=0.9, n=3),
]
test_contract = contract(CASES)

jitted = jax.jit(gae)


@given(st.integers(0, 10**6), UNIT, UNIT)
def test_gae_is_the_sum_of_td_errors(seed, discount, lambda_):
    data = window(seed)
    np.testing.assert_allclose(
        jitted(**float32(data), discount=discount, lambda_=lambda_),
        brute_force_gae(**data, discount=discount, lambda_=lambda_),
        rtol=2e-4,
        atol=2e-4,
    )


@given(st.integers(0, 10**6), UNIT)
def test_returns_are_the_discounted_sums(seed, discount):
    data = window(seed)
    np.testing.assert_allclose(
        jax.jit(discounted_returns)(
            jnp.float32(data["reward"]), data["done"], jnp.float32(2.5), discount
        ),
        brute_force_returns(data["reward"], data["done"], 2.5, discount),
        rtol=2e-4,
        atol=2e-4,
    )


@given(st.integers(0, 10**6), UNIT)
def test_lambda_0_is_the_td_error_and_lambda_1_the_return_minus_the_value(seed, discount):
    data = consistent(seed)
    alive = np.where(data["terminated"], 0, data["next_value"])
    zero = jitted(**float32(data), discount=discount, lambda_=0.0)
    td_error = data["reward"] + discount * alive - data["value"]
    np.testing.assert_allclose(zero, td_error, rtol=1e-5, atol=1e-5)
    # At a truncated step, a bootstrap is worth as much as a reward.
    cut = data["done"].copy()
    cut[-1] = True
    reward = data["reward"] + np.where(cut, discount * alive, 0)
    returns = brute_force_returns(reward, cut, 0.0, discount)
    one = jitted(**float32(data), discount=discount, lambda_=1.0)
    np.testing.assert_allclose(one + data["value"], returns, rtol=1e-4, atol=1e-4)


@given(st.integers(0, 10**6), st.integers(0, 18))
def test_nothing_leaks_over_an_episodes_end(seed, end):
    data = window(seed)
    data["done"][end] = True
    changed = {k: v.copy() for k, v in data.items()}
    for name in ("reward", "value", "next_value"):
        changed[name][end + 1 :] += 100.0
    a, b = (np.array(jitted(**float32(d), discount=0.9, lambda_=0.8)) for d in (data, changed))
    np.testing.assert_array_equal(a[: end + 1], b[: end + 1])
    assert (a[end + 1 :] != b[end + 1 :]).any()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_not_even_nan_leaks_over_an_episodes_end(poison):
    data = window(0)
    data["done"][7] = True
    data["reward"][8:] = poison
    result = jitted(**float32(data), discount=0.9, lambda_=0.8)
    assert np.isfinite(result[:8]).all()


def test_a_terminated_steps_next_value_is_never_read():
    data = window(0)
    clean = jitted(**float32(data), discount=0.9, lambda_=0.8)
    data["next_value"] = np.where(data["terminated"], np.nan, data["next_value"])
    np.testing.assert_array_equal(clean, jitted(**float32(data), discount=0.9, lambda_=0.8))


def test_truncation_bootstraps_and_termination_does_not():
    ones, no, yes = jnp.ones(1), jnp.array([False]), jnp.array([True])
    args = {"discount": 0.5, "lambda_": 0.9}
    assert gae(ones, 3 * ones, 10 * ones, no, yes, **args)[0] == 1 + 5 - 3
    assert gae(ones, 3 * ones, 10 * ones, yes, yes, **args)[0] == 1 - 3
    assert gae(ones, 3 * ones, 10 * ones, no, no, **args)[0] == 1 + 5 - 3  # the end of the window


def test_time_has_a_direction():
    data = float32(window(5))
    forwards = jitted(**data, discount=0.9, lambda_=0.8)
    backwards = jitted(**{k: v[::-1] for k, v in data.items()}, discount=0.9, lambda_=0.8)[::-1]
    assert not np.allclose(forwards, backwards, atol=0.1)


@given(st.integers(0, 10**6), UNIT, UNIT)
def test_gae_equals_rlax(seed, discount, lambda_):
    data = window(seed)
    data["done"] = data["terminated"]  # rlax cannot express truncation
    data["next_value"][:-1] = data["value"][1:]
    x = float32(data)
    theirs = rlax_gae(
        x["reward"],
        discount * (1.0 - x["terminated"]),
        lambda_,
        jnp.append(x["value"], x["next_value"][-1]),
    )
    ours = jitted(**x, discount=discount, lambda_=lambda_)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


rlax_gae = jax.jit(rlax.truncated_generalized_advantage_estimation)


def test_returns_equal_rlax():
    data = float32(window(3))
    theirs = rlax.discounted_returns(data["reward"], 0.9 * (1.0 - data["done"]), 2.0)
    ours = discounted_returns(data["reward"], data["done"], jnp.float32(2.0), 0.9)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_trailing_axes_are_independent_and_take_their_own_discounts():
    data = window(4, steps=7, shape=(3, 2))
    discount = np.array([[0.9, 0.5], [1.0, 0.0], [0.3, 0.7]])
    lambda_ = np.array([0.9, 0.4])
    ours = gae(**float32(data), discount=jnp.float32(discount), lambda_=jnp.float32(lambda_))
    for i in range(3):
        for j in range(2):
            expected = brute_force_gae(
                **{k: v[:, i, j] for k, v in data.items()},
                discount=discount[i, j],
                lambda_=lambda_[j],
            )
            np.testing.assert_allclose(ours[:, i, j], expected, rtol=1e-4, atol=1e-5)


def test_gradients_flow_and_equal_finite_differences():
    data = float32(window(6, steps=5))
    flags = {k: data.pop(k) for k in ("terminated", "done")}

    def f(reward, value, next_value, discount, lambda_):
        return gae(reward, value, next_value, **flags, discount=discount, lambda_=lambda_)[0]

    jax.test_util.check_grads(f, (*data.values(), 0.9, 0.8), order=1, modes=["rev"], rtol=2e-2)


@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_extremes_stay_finite(steps, dtype):
    data = {
        k: v.astype(dtype) if v.dtype != bool else v for k, v in float32(window(1, steps)).items()
    }
    data["reward"] = data["reward"] * 1e30
    assert jnp.isfinite(gae(**data, discount=1.0, lambda_=1.0)).all()
    returns = discounted_returns(data["reward"], data["done"], jnp.zeros((), dtype), 1.0)
    assert jnp.isfinite(returns).all()
    assert returns.dtype == dtype


def test_unequal_shapes_are_rejected():
    data = float32(window(0))
    with pytest.raises(UserError, match=r"`gae` needs reward and value of one shape, not \[20\]"):
        gae(**(data | {"value": jnp.zeros((20, 1))}), discount=0.9, lambda_=0.9)
    with pytest.raises(UserError, match="with the same T, not of shapes"):
        discounted_returns(data["reward"], data["done"][1:], jnp.float32(0), 0.9)


def test_it_composes_with_vmap():
    data = float32(window(2, steps=6, shape=(4,)))
    one = functools.partial(gae, discount=0.9, lambda_=0.8)
    mapped = jax.vmap(lambda d: one(**d), in_axes=1, out_axes=1)(data)
    np.testing.assert_allclose(mapped, one(**data), rtol=1e-6)


n_step = jax.jit(losses.n_step_returns, static_argnames="n")
lambda_returns = jax.jit(losses.lambda_returns)


@given(st.integers(0, 10**6), UNIT, st.sampled_from([1, 3, 30]))
def test_n_step_returns_are_their_definition(seed, discount, n):
    data = window(seed)
    np.testing.assert_allclose(
        n_step(**float32(without_value(data)), discount=discount, n=n),
        brute_force_n_step(data, discount, n),
        rtol=1e-4,
        atol=1e-4,
    )


@given(st.integers(0, 10**6), UNIT, UNIT)
def test_lambda_returns_mix_the_n_step_returns(seed, discount, lambda_):
    """Definition: weights (1 - lambda) lambda^(n - 1) of n-step returns, the rest for the last."""
    data = window(seed)
    longest = [brute_force_n_step(data, discount, n + 1) for n in range(20)]
    expected = np.zeros(20)
    for t, steps in episodes(data):
        for n in range(len(steps) - 1):
            expected[t] += (1 - lambda_) * lambda_**n * longest[n][t]
        expected[t] += lambda_ ** (len(steps) - 1) * longest[-1][t]
    ours = lambda_returns(**float32(without_value(data)), discount=discount, lambda_=lambda_)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


@given(st.integers(0, 10**6), UNIT)
def test_lambda_0_and_1_are_one_step_and_all_steps(seed, discount):
    x = float32(without_value(window(seed)))
    for lambda_, n in ((0.0, 1), (1.0, 20)):
        np.testing.assert_allclose(
            lambda_returns(**x, discount=discount, lambda_=lambda_),
            n_step(**x, discount=discount, n=n),
            rtol=1e-4,
            atol=1e-4,
        )


@given(st.integers(0, 10**6), UNIT, UNIT)
def test_gae_plus_value_is_the_lambda_return(seed, discount, lambda_):
    data = float32(consistent(seed))
    np.testing.assert_allclose(
        jitted(**data, discount=discount, lambda_=lambda_) + data["value"],
        lambda_returns(**without_value(data), discount=discount, lambda_=lambda_),
        rtol=1e-4,
        atol=1e-4,
    )


def test_differential_advantages_are_undiscounted_sums_of_the_excess_over_the_rate():
    data = window(3)
    expected = brute_force_gae(**{**data, "reward": data["reward"] - 0.4}, discount=1, lambda_=0.7)
    ours = losses.differential_gae(**float32(data), reward_rate=0.4, lambda_=0.7)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def skip_like_verl(reward, value, mask, discount, lambda_):
    """Advantages of an episode's decisions by a loop from the end, which stands still at others."""
    result, next_value, later = np.zeros(len(reward)), 0.0, 0.0
    for t in reversed(range(len(reward))):
        if mask[t]:
            later = reward[t] + discount * next_value - value[t] + discount * lambda_ * later
            next_value, result[t] = value[t], later
    return result


@given(st.integers(0, 10**6), UNIT, UNIT)
def test_masked_advantages_skip_observations_as_verl_does(seed, discount, lambda_):
    """Whole episodes, without rewards for what is read."""
    rng = np.random.default_rng(seed)
    mask, value = rng.random(12) < 0.6, rng.normal(size=12)
    reward, end = rng.normal(size=12) * mask, np.arange(12) == 11
    data = {"reward": reward, "value": value, "next_value": np.append(value[1:], np.nan)}
    data |= {"terminated": end, "done": end, "mask": mask}
    ours = losses.masked_gae(**float32(data), discount=discount, lambda_=lambda_)
    expected = skip_like_verl(reward, value, mask, discount, lambda_)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@given(st.integers(0, 10**6), UNIT, UNIT)
def test_masked_advantages_are_those_of_decisions_side_by_side(seed, discount, lambda_):
    """Rewards between decisions belong to the one before; episodes may end anywhere."""
    data, rng = consistent(seed), np.random.default_rng(seed)
    mask = rng.random(20) < 0.5
    expected = np.zeros(20)
    starts = np.flatnonzero(np.append(True, data["done"][:-1]))
    for start, stop in zip(starts, [*starts[1:], 20], strict=True):
        own = start + np.flatnonzero(mask[start:stop])
        if not len(own):
            continue
        until = np.append(own[1:], stop)  # the decision that follows, or the end
        last, few = stop - 1, len(own)
        side = {
            "reward": np.array(
                [data["reward"][a:b].sum() for a, b in zip(own, until, strict=True)]
            ),
            "value": data["value"][own],
            "next_value": np.append(data["value"][own[1:]], data["next_value"][last]),
            "terminated": np.append(np.zeros(few - 1, bool), data["terminated"][last]),
            "done": np.append(np.zeros(few - 1, bool), data["done"][last]),
        }
        expected[own] = brute_force_gae(**side, discount=discount, lambda_=lambda_)
    ours = losses.masked_gae(**float32({**data, "mask": mask}), discount=discount, lambda_=lambda_)
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-4)


def test_masked_advantages_of_all_steps_are_those_of_gae():
    data = float32(window(3))
    ours = losses.masked_gae(**data, mask=jnp.ones(20, bool), discount=0.9, lambda_=0.8)
    np.testing.assert_allclose(ours, gae(**data, discount=0.9, lambda_=0.8), rtol=1e-5)
