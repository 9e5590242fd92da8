"""The tax economy: taxes, Gini coefficients, budgets that add up, and what policies change."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.markets import tax_economy as economies


def advance(env, state, saved=0.0, hours=0.0, government=(-1.0,) * 4, key=2):
    """Take one step in which all households do the same."""
    count = env.action_space["households"].shape[0]
    households = jnp.broadcast_to(jnp.array([saved, hours]), (count, 2))
    action = {"government": jnp.array(government), "households": households}
    return jax.jit(env.step)(random.key(key), state, action, env.params)


def test_taxes_and_gini_coefficients():
    x = jnp.array([1.0, 3.0, 8.0])
    np.testing.assert_allclose(economies.tax(x, jnp.array(0.0), jnp.array(0.0)), 0, atol=1e-6)
    np.testing.assert_allclose(economies.tax(x, jnp.array(0.3), jnp.array(0.0)), 0.3 * x, rtol=1e-5)
    bent = economies.tax(x, jnp.array(0.2), jnp.array(0.5))
    by_hand = [v - 4 * 0.8 / 0.5 * (v / 4) ** 0.5 for v in (1, 3, 8)]  # the mean is 4
    np.testing.assert_allclose(bent, by_hand, rtol=1e-5)
    pairs = sum(abs(a - b) for a in (1, 3, 8) for b in (1, 3, 8))
    assert float(economies.gini(x)) == pytest.approx(pairs / (2 * 9 * 4))
    assert float(economies.gini(jnp.full(5, 2.0))) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("policy", ["free", "fixed"])
def test_what_is_made_is_consumed_or_saved(policy):
    env = make("tax_economy", households=20, policy=policy)
    state, _ = env.reset(random.key(0), env.params)
    after, timestep = advance(env, state, saved=0.2)
    old, new = state.inner, after.inner
    hours = 0.99 / 2 + 0.01
    wage, interest, output = economies.prices(
        new.productivity, old.wealth, jnp.full(20, hours), env.params
    )
    assert float(output) == pytest.approx(
        float(old.wealth.sum() ** 0.36 * (jnp.exp(new.productivity) * hours).sum() ** 0.64),
        rel=1e-5,
    )
    pay = wage * jnp.exp(new.productivity) * hours + (interest + 0.06) * old.wealth
    assert float(pay.sum()) == pytest.approx(float(output), rel=1e-5)  # firms have no profit
    utility = timestep.privileged["rewards"]
    consumed = jnp.exp(utility + 8 * hours**3 / 3)
    saved = new.wealth.sum() - 0.94 * old.wealth.sum()
    assert float(consumed.sum() + saved) == pytest.approx(float(output), rel=1e-4)
    np.testing.assert_allclose(timestep.reward, [utility.mean()] * 2, rtol=1e-5)


def test_taxes_hold_at_once_and_are_seen_afterwards():
    env = make("tax_economy", households=20)
    state, _ = env.reset(random.key(0), env.params)
    plain, _ = advance(env, state)
    taxed, timestep = advance(env, state, government=(0.0, 1.0, -1.0, 5.0))
    np.testing.assert_allclose(taxed.inner.taxes, economies.MOST * [0.5, 1, 0, 1])
    assert float(taxed.inner.gini[1]) < float(plain.inner.gini[1]) - 0.05
    seen = timestep.observation["households"]
    np.testing.assert_allclose(seen[3, 10:14], [0.5, 1, 0, 1])  # after its own two, six and two
    np.testing.assert_array_equal(seen[:, 2:], [timestep.observation["government"]] * 20)
    own = [taxed.inner.productivity, jnp.log(taxed.inner.wealth)]
    np.testing.assert_allclose(seen[:, :2], jnp.stack(own, 1), rtol=1e-5)


def test_goals_and_fixed_policies():
    env = make("tax_economy", households=20, goal="output", gini_weight=0.5)
    state, _ = env.reset(random.key(0), env.params)
    after, timestep = advance(env, state, saved=1.0)
    growth = after.inner.wealth.sum() / state.inner.wealth.sum() - 1
    unequal = after.inner.gini.prod()
    assert float(timestep.reward[0]) == pytest.approx(
        float(100 * (growth - 0.5 * unequal)), rel=1e-3
    )
    for policy, taxes in (("free", np.zeros(4)), ("fixed", economies.FIXED)):
        fixed = make("tax_economy", households=20, policy=policy)
        state, _ = fixed.reset(random.key(0), fixed.params)
        after, _ = advance(fixed, state, government=(1.0,) * 4)
        np.testing.assert_allclose(after.inner.taxes, taxes)
        np.testing.assert_allclose(state.inner.taxes, taxes)


def test_productivity_is_stationary():
    env = make("tax_economy", households=200)
    state, _ = env.reset(random.key(0), env.params)
    began = float(state.inner.productivity.std())
    stir = dataclasses.replace(env.params, persistence=0.0, shock=0.3)
    action = {"households": jnp.zeros((200, 2)), "government": jnp.zeros(4)}
    after, _ = jax.jit(env.step)(random.key(1), state, action, stir)
    assert began == pytest.approx(0.2 / np.sqrt(1 - 0.982**2), rel=0.15)
    assert float(after.inner.productivity.std()) == pytest.approx(0.3, rel=0.15)


def test_the_economy_keeps_the_rules_of_environments():
    check_environment(make("tax_economy", households=10, years=4))


def test_bad_options_are_refused():
    for option, value in (("households", 9), ("policy", "none"), ("goal", "growth")):
        with pytest.raises(UserError, match=f"The {option} of 'tax_economy'"):
            make("tax_economy", **{option: value})
