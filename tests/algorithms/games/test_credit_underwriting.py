"""Credit underwriting: beliefs against their definition, rules on tables, and what is learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.games import credit_underwriting as credit
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.exact import selection
from jaxrl.networks.logistic import Logistic

F, M = 2, 40
RNG = np.random.default_rng(0)


def test_a_belief_is_the_mode_and_curvature_of_the_posterior():
    network = Logistic(F, deviation=0.7)
    x = RNG.normal(size=(M, F)).astype(np.float32)
    y, mask = RNG.integers(0, 2, M).astype(np.float32), RNG.integers(0, 2, M).astype(np.float32)
    prior = network.init(jax.random.key(0), x)
    once = network.infer(prior, x, y, mask)
    twice = network.infer(once, x[::-1], y, mask)
    full = np.concatenate([x, np.ones((M, 1))], 1)
    for before, after, seen in ((prior, once, full), (once, twice, full[::-1])):
        seen = np.concatenate([seen[:, :-1], np.ones((M, 1))], 1)
        odds = 1 / (1 + np.exp(-seen @ np.asarray(after.mean, np.float64)))
        slope = (mask * (y - odds)) @ seen - before.precision @ (after.mean - before.mean)
        np.testing.assert_allclose(slope, 0, atol=1e-4)
        curvature = before.precision + (seen.T * (mask * odds * (1 - odds))) @ seen
        np.testing.assert_allclose(after.precision, curvature, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(prior.precision, np.eye(3) / 0.49, rtol=1e-5)
    # Unknown labels do not matter, whatever they are.
    other = network.infer(prior, x, np.where(mask, y, 1 - y), mask)
    np.testing.assert_array_equal(other.mean, once.mean)
    np.testing.assert_allclose(network.apply(once, x), full @ once.mean, rtol=1e-4, atol=1e-5)
    drawn = network.draw(once, jax.random.key(1), 20_000)
    np.testing.assert_allclose(drawn.mean(0), once.mean, atol=0.02)
    np.testing.assert_allclose(np.cov(drawn.T), np.linalg.inv(once.precision), atol=0.02)
    wider = network.draw(once, jax.random.key(1), 20_000, 2.0)
    np.testing.assert_allclose(wider - once.mean, 2 * (drawn - once.mean), atol=1e-5)


def test_a_default_after_repayments_moves_a_wide_belief():
    """Whole Newton steps go back and forth here, and end where they began."""
    network, one = Logistic(1, deviation=10.0), np.ones((1, 1), np.float32)
    belief = network.init(jax.random.key(0), one)
    for label in (1.0, 1.0, 0.0, 1.0, 0.0):
        before = belief
        belief = network.infer(belief, one, np.float32([label]), np.ones(1, np.float32))
        odds = jax.nn.sigmoid(belief.mean.sum())
        slope = (label - odds) - before.precision @ (belief.mean - before.mean)
        np.testing.assert_allclose(slope, 0, atol=1e-3)
    assert belief.mean.sum() < 0  # the last one was a default


def test_information_scores_are_minus_squared_regret_by_information():
    odds = RNG.uniform(size=(50, 1, 4))
    available = np.array([[True, True, False, True]])
    found = credit.information_scores(jnp.asarray(odds), jnp.asarray(available))
    p = odds[:, 0, [0, 1, 3]]
    best = p.argmax(1)
    regret = p.max(1).mean() - p.mean(0)
    information = np.zeros(3)
    for b in range(3):
        information += (best == b).mean() * (p[best == b].mean(0) - p.mean(0)) ** 2
    expected = -(regret**2) / information
    np.testing.assert_allclose(found[0, [0, 1, 3]], expected, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ("greedy", "thompson", "ids"))
def test_every_rule_learns_whom_to_lend_to(rule):
    sizes = {"candidates": 4, "quota": 2, "types": 6, "features": 0}
    env = envs.make("selective_labels", rounds=40, delay=1, **sizes)
    algorithm = credit.credit_underwriting(env, {"rule": rule, "num_envs": 8, "deviation": 2.0})

    @jax.jit
    def learn(key):
        run, _ = train(algorithm, start(algorithm, key), 60)
        return run.state.agent.parts["model"].params

    belief = learn(random.key(0))
    scores = np.asarray(belief.mean)[:-1]
    value = lambda x: selection.value(x, env.params, 4, 2)
    best, even = value(selection.type_rewards(env.params)), value(np.zeros(6))
    assert value(scores) > best - 0.05 * (best - even)
    # 60 rounds of 8 lenders who grant 2 loans: as much curvature came as labels, at most.
    assert np.trace(belief.precision) < 0.25 * 7 + 0.25 * 2 * 60 * 8 * 2


def test_other_environments_are_refused():
    with pytest.raises(UserError, match="cannot act in 'cartpole'"):
        credit.credit_underwriting(envs.make("cartpole"))
