"""Markets against their definitions: prices, costs, ledgers, and rules whose value is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.markets import account
from jaxrl.exact import dynamic_programming, markets

EPISODES, STEPS = 512, 16


def play(env, actions, episodes=EPISODES):
    """Return first and later states and time steps, [episodes, ...] and [STEPS, episodes, ...].

    actions: (state, key) -> the action of each step.
    """

    def episode(key):
        key, reset_key = jax.random.split(key)
        state, first = env.reset(reset_key, env.params)

        def step(state, key):
            act_key, step_key = jax.random.split(key)
            action = actions(state, act_key)
            state, timestep = env.step(step_key, state, action, env.params)
            return state, (state.inner, action, timestep)

        _, rest = jax.lax.scan(step, state, jax.random.split(key, STEPS))
        return state.inner, first, *rest

    played = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), episodes))
    return jax.tree.map(np.asarray, played)


def test_a_trade_costs_its_turnover_and_prices_move_holdings():
    held, weights = np.array([0.2, 0.5, 0.3]), np.array([0.0, 0.4, 0.6])
    turnover, left = account.pay_for_trades(jnp.array(held), jnp.array(weights), 0.01)
    np.testing.assert_allclose([turnover, left], [0.4, 0.996], rtol=1e-6)
    growth, after = account.move_prices(jnp.array(weights), jnp.array([1.0, 0.5, 2.0]))
    np.testing.assert_allclose(growth, 1.4, rtol=1e-6)
    np.testing.assert_allclose(after, [0, 0.2 / 1.4, 1.2 / 1.4], rtol=1e-6)


def test_ledgers_sum_up_an_episode():
    gains, traded = np.array([0.3, -0.2, -0.3, 0.4, -0.1]), np.arange(5.0)
    ledger = account.open_ledger()
    assert account.metrics(ledger)["sharpe"] == 0
    for gain, turnover in zip(gains, traded, strict=True):
        ledger = account.record(ledger, jnp.float32(gain), jnp.float32(turnover))
    found = account.metrics(ledger)
    np.testing.assert_allclose(found["sharpe"], gains.mean() / gains.std(), rtol=1e-4)
    np.testing.assert_allclose(found["drawdown"], 0.5, rtol=1e-5)  # from 0.3 to -0.2
    assert found["turnover"] == 10


def test_prices_follow_their_process_and_rewards_are_log_growth_after_costs():
    lead, momentum, cost = 0.5, -0.2, 0.01
    env = envs.make(
        "portfolio", assets=3, window=4, steps=STEPS, lead=lead, momentum=momentum, cost=cost
    )
    draw = lambda state, key: jax.random.uniform(key, (4,))
    state, first, states, action, timestep = play(env, draw)
    seen = np.concatenate([state.returns[:, -1:], states.returns[:, :, -1]], 1)
    drift = 0.0005
    away = seen[:, :-1] - drift
    noise = seen[:, 1:] - drift - momentum * away - lead * np.roll(away, 1, -1)
    np.testing.assert_allclose(noise.std(), 0.02, rtol=0.02)
    correlation = np.corrcoef(noise.reshape(-1, 3), rowvar=False)
    np.testing.assert_allclose(correlation, 0.3 + 0.7 * np.eye(3), atol=0.04)
    lagged = np.corrcoef(noise[:, 1:].ravel(), noise[:, :-1].ravel())[0, 1]
    assert abs(lagged) < 0.03
    # The account, by NumPy.
    weights = action / action.sum(-1, keepdims=True)
    relatives = np.exp(np.concatenate([np.zeros((EPISODES, STEPS, 1)), seen[:, 1:]], -1))
    growth = (weights * relatives).sum(-1)
    after = weights * relatives / growth[..., None]
    held = np.concatenate([np.tile([1.0, 0, 0, 0], (EPISODES, 1, 1)), after[:, :-1]], 1)
    turnover = np.abs(weights - held)[..., 1:].sum(-1)
    reward = np.log(growth) + np.log(1 - cost * turnover)
    np.testing.assert_allclose(timestep.reward, reward, atol=1e-5)
    np.testing.assert_allclose(timestep.observation["held"], after, atol=1e-5)
    np.testing.assert_allclose(timestep.observation["returns"][:, :, -1], seen[:, 1:], atol=1e-7)
    np.testing.assert_allclose(
        timestep.observation["returns"][:, -1, -4:], seen[:, -4:, None][:, :, 0]
    )
    np.testing.assert_allclose(timestep.metrics["turnover"][:, -1], turnover.sum(1), rtol=1e-4)
    ends = np.arange(STEPS) == STEPS - 1
    np.testing.assert_array_equal(timestep.truncated, np.tile(ends, (EPISODES, 1)))
    assert not timestep.terminated.any() and (first.observation["held"][:, 0] == 1).all()
    np.testing.assert_allclose(first.observation["cost"], cost)


def test_the_best_constant_shares_are_those_of_kelly_and_no_other_earns_more():
    """One asset with coins: the share of Kelly's formula; in the environment it earns its rate."""
    settings = {"momentum": 0.0, "lead": 0.0, "cost": 0.0, "correlation": 0.0, "noise": "coin"}
    env = envs.make("portfolio", assets=1, steps=STEPS, drift=[0.05], volatility=[0.4], **settings)
    relatives, chances = markets.coin_outcomes(env.params, jnp.zeros(1))
    best = markets.best_constant_shares(relatives, chances)
    up, down = np.exp(0.45) - 1, 1 - np.exp(-0.35)
    kelly = 0.5 / down - 0.5 / up
    assert 0.1 < kelly < 0.9
    np.testing.assert_allclose(best[1], kelly, atol=1e-4)
    rate = markets.growth(best, relatives, chances)
    _, _, _, _, timestep = play(env, lambda state, key: best, 4096)
    spread = timestep.reward.std() / np.sqrt(timestep.reward.size)
    np.testing.assert_allclose(timestep.reward.mean(), rate, atol=4 * spread)
    for share in np.linspace(0, 1, 11):
        assert markets.growth(jnp.array([1 - share, share]), relatives, chances) <= rate + 1e-7


def test_with_several_assets_no_shares_grow_faster_than_the_best():
    params = envs.make("portfolio", momentum=0.0, lead=0.0, correlation=0.5).params
    params = dataclasses.replace(
        params,
        drift=np.array([0.01, 0.03, -0.02], np.float32),
        volatility=np.array([0.2, 0.3, 0.1], np.float32),
    )
    relatives, chances = markets.coin_outcomes(params, jnp.zeros(3))
    best = markets.best_constant_shares(relatives, chances)
    marginal = (chances[:, None] * relatives / (relatives @ best)[:, None]).sum(0)
    assert (marginal <= 1 + 1e-4).all()  # the conditions of Kuhn and Tucker
    np.testing.assert_allclose(marginal[best > 1e-3], 1, atol=1e-3)
    others = jax.random.dirichlet(jax.random.key(0), jnp.ones(4), (500,))
    rates = jax.vmap(lambda w: markets.growth(w, relatives, chances))(others)
    assert rates.max() <= markets.growth(best, relatives, chances) + 1e-7
    # What was enumerated has the moments that were asked for.
    returns = np.log(relatives[:, 1:])
    np.testing.assert_allclose(returns.mean(0), params.drift, atol=1e-6)
    np.testing.assert_allclose(returns.std(0), params.volatility, rtol=1e-4)
    np.testing.assert_allclose(np.corrcoef(returns[:, :2], rowvar=False)[0, 1], 0.5, atol=1e-4)


def test_the_rule_of_pairs_traders_earns_what_its_table_says():
    env = envs.make("pairs_trading", ticks=8, steps=STEPS, shift=3.0, switch=0.1, entry=2.0)
    state, first, states, action, timestep = play(
        env, lambda state, key: env.expert(state, env.params), 4096
    )
    transition, reward = markets.pairs_tables(env.params, 8)
    np.testing.assert_allclose(transition.sum(-1), 1, atol=1e-5)
    _, spread, position = markets.pairs_states(8)
    rule = np.where(
        np.abs(spread) >= 2, -np.sign(spread), np.where(position * spread < 0, position, 0)
    )
    policy = jnp.asarray(np.eye(3)[rule + 1], jnp.float32)
    values = dynamic_programming.finite_horizon_evaluation(transition, reward, policy, STEPS)[0][0]
    at = (state.mean * 17 + state.spreads[:, -1].astype(int) + 8) * 3 + 1
    total = timestep.reward.sum(1)
    spread_of_mean = (total - values[at]).std() / 64
    np.testing.assert_allclose(total.mean(), values[at].mean(), atol=4 * spread_of_mean)
    # The account, by NumPy.
    spreads = np.concatenate([state.spreads[:, -1:], states.spreads[:, :, -1]], 1)
    taken = action - 1.0
    changed = np.abs(np.diff(taken, axis=1, prepend=0))
    np.testing.assert_allclose(timestep.reward, taken * np.diff(spreads, axis=1) - 0.5 * changed)
    np.testing.assert_allclose(timestep.observation[..., -1], taken)
    np.testing.assert_allclose(timestep.observation[..., -2], spreads[:, 1:] / 8)
    assert np.isin(np.abs(np.diff(spreads, axis=1)), (0, 1)).all() and not timestep.terminated.any()
    assert first.observation.shape == (4096, 9) and (first.observation[:, -1] == 0).all()


def test_whoever_knows_the_mean_waits_in_a_band_where_trades_do_not_pay():
    """Dynamic programming trades outside of a band that costs widen, where there is one mean."""
    mean, spread, position = markets.pairs_states(8)
    rule = np.where(
        np.abs(spread) >= 3, -np.sign(spread), np.where(position * spread < 0, position, 0)
    )

    @jax.jit
    def solve(params):
        tables = markets.pairs_tables(params, 8)
        values, policy = dynamic_programming.policy_iteration(*tables, 0.98)
        table = jnp.asarray(np.eye(3)[rule + 1], jnp.float32)
        return values, policy, dynamic_programming.policy_evaluation(*tables, table, 0.98)

    widths = []
    for cost in (0.1, 1.0):
        params = envs.make("pairs_trading", shift=0.0, switch=0.0, cost=cost).params
        values, policy, ruled = solve(params)
        chosen = np.asarray(policy).argmax(1) - 1
        without = chosen[(mean == 1) & (position == 0)]
        at = spread[(mean == 1) & (position == 0)]
        np.testing.assert_array_equal(without, -without[::-1])  # as the process is symmetric
        waits = at[without == 0]
        np.testing.assert_array_equal(waits, np.arange(waits.min(), waits.max() + 1))
        assert (without[at > waits.max()] == -1).all()
        widths.append(len(waits))
        assert (values >= ruled - 1e-3).all()
    assert widths[0] < widths[1]


@pytest.mark.parametrize(
    "name,settings,match",
    [
        ("portfolio", {"assets": 0}, "assets of 'portfolio' is 0"),
        ("portfolio", {"noise": "dice"}, "'dice'; it must be 'normal' or 'coin'"),
        ("pairs_trading", {"window": 0}, "window of 'pairs_trading' is 0"),
    ],
)
def test_bad_structure_is_one_sentence(name, settings, match):
    with pytest.raises(UserError, match=match):
        envs.make(name, **settings)
    with pytest.raises(UserError, match="0 ticks on each side"):
        markets.pairs_tables(envs.make("pairs_trading").params, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["portfolio", "pairs_trading"])
def test_the_environment_keeps_every_rule(name):
    envs.check_environment(envs.make(name, steps=12), steps=16)
