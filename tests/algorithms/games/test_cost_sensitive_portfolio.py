"""Cost-sensitive portfolio selection: its account is the environment's, its gradient is whole, and
without costs it finds the best constant shares."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.games import cost_sensitive_portfolio as portfolio
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.exact import markets
from jaxrl.kit import Minibatch
from jaxrl.networks.portfolio import TwoStreamPolicy
from jaxrl.sources.episodes import episodes
from tests.kit.stub import stub

STEPS, ASSETS, WINDOW, B = 5, 3, 4, 6
ENV = envs.make("portfolio", assets=ASSETS, window=WINDOW, steps=STEPS, cost=0.02)


@functools.cache
def play():
    """Return a batch of episodes of an untrained network, and the algorithm's state."""
    algorithm = portfolio.cost_sensitive_portfolio(ENV, {"num_envs": B})

    @jax.jit
    def run(key):
        begun = algorithm.init(key, algorithm.hyper)
        policy, source = algorithm.policy(begun), episodes(ENV, B)
        _, fresh, _ = source.collect(source.init(key, {}, policy), policy, key)
        return fresh.transitions

    return run(random.key(0))


def test_the_account_of_the_loss_is_that_of_the_environment():
    x = play()
    log_return, held = portfolio.follow_account(x, x.action)
    np.testing.assert_allclose(log_return, x.reward, atol=1e-5)
    np.testing.assert_allclose(held, x.timestep.observation["held"], atol=1e-5)
    assert np.abs(np.diff(x.action, axis=0)).max() > 1e-4


def test_the_loss_is_minus_the_reward_and_its_gradient_passes_through_holdings():
    x, rng = play(), np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(ASSETS + 1), (STEPS, B))
    mask = np.ones((STEPS, B), bool)
    mask[3:, 0] = False
    hyper = {"risk_aversion": 2.0, "cost_aversion": 0.3}

    def loss(weights):
        net = stub(policy=lambda timestep: weights, hyper=hyper)
        return portfolio.portfolio_loss(net, Minibatch(x, jnp.asarray(mask))).value

    # By NumPy, from the episode's prices.
    def compute_loss(weights, b):
        held, growths, traded = np.array([1.0, 0, 0, 0]), [], []
        for t in range(STEPS if b else 3):
            relative = np.exp(np.append(0, x.next_timestep.observation["returns"][t, b, -1]))
            traded.append(np.abs(weights[t, b, 1:] - held[1:]).sum())
            growths.append(np.log((weights[t, b] @ relative) * (1 - 0.02 * traded[-1])))
            held = weights[t, b] * relative / (weights[t, b] @ relative)
        return -(np.mean(growths) - 2.0 * np.var(growths) - 0.3 * np.mean(traded))

    value, slope = jax.jit(lambda w: (loss(w), jax.grad(lambda w: loss(w).sum())(w)))(
        jnp.asarray(weights, jnp.float32)
    )
    for b in range(B):
        np.testing.assert_allclose(value[b], compute_loss(weights, b), atol=1e-5)
    for at in ((1, 2, 1), (2, 3, 0)):
        shift = np.zeros_like(weights)
        shift[at] = 1e-5
        by_hand = (
            compute_loss(weights + shift, at[1]) - compute_loss(weights - shift, at[1])
        ) / 2e-5
        np.testing.assert_allclose(slope[at], by_hand, atol=2e-3)
    assert not np.any(slope[3:, 0])


def test_the_network_reads_both_streams_and_what_is_held():
    network, x = TwoStreamPolicy((2, 3), 4), play().timestep
    params = network.init(jax.random.key(1), x)
    params = jax.tree.map(lambda p: p + 0.05, params)  # biases and cash, too
    apply = jax.jit(
        lambda returns, held: network.apply(
            params, dataclasses.replace(x, observation={"returns": returns, "held": held})
        )
    )
    returns, held = x.observation["returns"], jnp.full((STEPS, B, ASSETS + 1), 0.25)
    shares = apply(returns, held)
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-5)
    assert shares.shape == (STEPS, B, ASSETS + 1) and (shares > 0).all()
    # Only how returns compare matters, not their size.
    np.testing.assert_allclose(apply(3 * returns, held), shares, atol=1e-5)
    ratio = lambda y: np.log(y[..., 2] / y[..., 1])
    assert np.abs(ratio(apply(returns, held.at[..., 1].set(0.9))) - ratio(shares)).max() > 1e-4
    # One asset's series changes how two others compare: the correlational convolution.
    changed = returns.at[..., 2].multiply(-1)
    assert np.abs(ratio(apply(changed, held)) - ratio(shares)).max() > 1e-4


@pytest.mark.slow
def test_without_costs_it_finds_the_shares_of_kelly():
    settings = {"momentum": 0.0, "lead": 0.0, "cost": 0.0, "correlation": 0.0, "noise": "coin"}
    process = {"drift": [0.05], "volatility": [0.4]}
    env = envs.make("portfolio", assets=1, window=2, steps=8, **process, **settings)
    config = {"widths": (2,), "units": 2, "num_envs": 256, "learning_rate": 1e-2}
    config |= {"risk_aversion": 0.0, "cost_aversion": 0.0}
    algorithm = portfolio.cost_sensitive_portfolio(env, config)
    run = jax.jit(lambda run: train(algorithm, run, 150)[0])(start(algorithm, random.key(0)))
    source, policy = episodes(env, 256), algorithm.policy(run.state)
    played = source.collect(source.init(random.key(1), {}, policy), policy, random.key(1))[1]
    relatives, chances = markets.coin_outcomes(env.params, jnp.zeros(1))
    best = markets.best_constant_shares(relatives, chances)
    np.testing.assert_allclose(played.transitions.action.mean((0, 1)), best, atol=0.05)


def test_other_environments_are_refused():
    with pytest.raises(UserError, match="'pendulum', which is no portfolio"):
        portfolio.cost_sensitive_portfolio(envs.make("pendulum"))
