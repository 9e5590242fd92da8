"""IDQL: its loss, the weights of the implicit actor, and how it chooses among clones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.diffusion import idql
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from jaxrl.diffusion import Hooks, VariancePreserving
from tests.algorithms.diffusion import bandit
from tests.kit.stub import losses_of, stub

N = 32
CONFIG = replace(idql.Config(), {"levels": 3, "candidates": 4, "hidden": (8,)})
RECIPE = idql.recipe(bandit.ENV, Static(CONFIG))
PROCESS = VariancePreserving(3)


def actor(s, noisy, level):
    return 0.3 * noisy + 0.01 * s.observation[:, None] + 0.1 * level[..., None]


def test_values_are_those_of_implicit_q_learning():
    assert [loss.name for loss in RECIPE.losses] == ["value_loss", "critic_loss", "actor_loss"]
    assert RECIPE.parts["actor"].target is not None


def test_the_policy_denoises_all_actions_alike():
    x = bandit.transitions(N)
    loss = losses_of(RECIPE)["actor_loss"](stub(actor=actor, key=bandit.key), x)
    noised = PROCESS.add_noise(bandit.key(), jnp.asarray(x.action))
    said = actor(x.timestep, noised.noisy, noised.level)
    np.testing.assert_allclose(loss, np.square(said - noised.target).mean(-1), rtol=1e-4)


@pytest.mark.parametrize("expectile", [0.3, 0.9])
def test_the_implicit_actor_has_the_value_of_the_expectile(expectile):
    """V is the expectile of Q exactly if V is the mean of Q over the weighted actions."""
    q = np.random.default_rng(0).normal(size=200)
    low, high = q.min(), q.max()
    for _ in range(60):
        value = (low + high) / 2
        slope = (np.where(q > value, expectile, 1 - expectile) * (q - value)).sum()
        low, high = (value, high) if slope > 0 else (low, value)
    weights = np.asarray(idql.implicit_weights(jnp.asarray(q), value, expectile))
    np.testing.assert_allclose((weights * q).sum() / weights.sum(), value, atol=1e-5)


def test_an_action_is_chosen_by_its_weight():
    n, expectile = 4000, 0.9
    net = stub(
        target={
            "actor": lambda s, noisy, level: jnp.zeros_like(noisy),
            "critic": lambda s, a: jnp.concatenate([a, a + 1], -1),
        },
        value=lambda s: np.zeros(n, np.float32),
        hyper={"expectile": expectile},
    )
    seen = stub(reward=np.zeros(n))
    act = lambda greedy: np.asarray(RECIPE.act(net, seen, (), random.key(3), greedy)[0])[:, 0]
    sample_key, _ = jax.random.split(random.key(3))
    predict = lambda noisy, level: jnp.zeros_like(noisy)
    found = PROCESS.sample(sample_key, predict, (4, n, 1), hooks=Hooks(bound=1.0))
    candidates = np.asarray(found)[..., 0]
    np.testing.assert_allclose(act(True), candidates.max(0), atol=1e-6)
    above = (candidates > 0).sum(0)
    expected = expectile * above / (expectile * above + (1 - expectile) * (4 - above))
    assert abs((act(False) > 0).mean() - expected.mean()) < 0.03
    assert abs((candidates > 0).mean() - expected.mean()) > 0.1


@pytest.mark.slow
def test_greedy_actions_are_at_the_better_of_two_modes():
    config = replace(idql.Config(), {"hidden": (64, 64, 64), "levels": 8, "candidates": 8})
    agent = idql.idql.agent(bandit.ENV, config)
    rates = {"actor.learning_rate": 2e-3, "critic.learning_rate": 2e-3}
    rates |= {"target.rate": 0.02, "average.rate": 0.02}
    state = bandit.trainer(agent, bandit.two_modes, 1500)(**rates)
    greedy = bandit.shares(bandit.actions(agent, state, greedy=True))

    assert greedy[1] > 0.6 and greedy[0] < 0.1
    left, right, elsewhere = bandit.shares(bandit.actions(agent, state))

    assert left > 0.1 and right > left and elsewhere < 0.4
