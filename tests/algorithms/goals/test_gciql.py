"""Implicit Q-learning with goals: true values are its fixed point, and both ways to a policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.goals import gciql
from jaxrl.algorithms.goals.shared.conditioned import LARGEST_WEIGHT, follow_value
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start, train
from tests.algorithms.goals import everything
from tests.kit.stub import losses_of, stub

HYPER = {"discount": 0.9, "expectile": 0.8, "extraction.temperature": 0.5}
HYPER |= {"extraction.cloning": 0.2}
RNG = np.random.default_rng(0)
TRUE = everything.value(0.9)


def critic(timestep, action):
    """True values of actions: 0 at the goal, which the episode never leaves."""
    here = everything.place(timestep.observation)
    after = everything.MAZE.goal[everything.MAZE.next[here, action]]
    d = everything.distance(after, timestep.goal)
    q = -1 - 0.9 * (1 - 0.9**d) / (1 - 0.9)
    at_goal = (timestep.observation == timestep.goal).all(-1)
    return np.stack([np.where(at_goal, 0.0, q)] * 2)


def test_true_values_are_a_fixed_point():
    x = everything.steps()
    net = stub(value=TRUE, critic=critic, target={"critic": critic}, hyper=HYPER)
    np.testing.assert_allclose(gciql.critic_loss(net, x), 0.0, atol=1e-9)
    error, best = gciql.value_loss(net, x).value, everything.best(x)
    np.testing.assert_allclose(error[best], 0.0, atol=1e-9)
    assert (error[~best] > 1e-5).all()


def test_the_policy_imitates_by_advantage():
    x = everything.steps("actor_goal")
    config = Static(gciql.Config())
    loss = losses_of(gciql.recipe(everything.ENV, config))["actor_loss"]
    log_prob = RNG.normal(size=len(x.reward)).astype(np.float32)
    noise = RNG.normal(size=(2, len(x.reward))).astype(np.float32)
    net = stub(
        value=TRUE,
        critic=lambda t, a: critic(t, a) + noise,
        actor=lambda t: everything.policy(log_prob),
        hyper=HYPER,
    )
    advantage = (critic(x.timestep, x.action) + noise).min(0) - TRUE(x.timestep)
    weight = np.minimum(np.exp(advantage / 0.5), LARGEST_WEIGHT)
    np.testing.assert_allclose(loss(net, x).value, -weight * log_prob, rtol=1e-4)


def test_or_it_follows_the_value():
    q = RNG.normal(size=5).astype(np.float32) - 3
    log_prob = RNG.normal(size=5).astype(np.float32)
    found = follow_value(everything.policy(log_prob), None, jnp.asarray(q), 0.2)
    np.testing.assert_allclose(found, -q / np.abs(q).mean() - 0.2 * log_prob, rtol=1e-5)


@pytest.mark.slow
def test_the_value_is_followed_through_the_action():
    """The policy loss has a gradient from the value on a bounded box, even without cloning."""
    env = envs.make("point_maze")
    changes = {k: v for k, v in gciql.TINY.items() if not k.startswith("env")}
    changes |= {"extraction.method": "ddpg_bc", "extraction.cloning": 0.0}
    algorithm = gciql.gciql(env, changes)
    run = jax.jit(lambda key: start(algorithm, key))(random.key(0))
    after, _ = jax.jit(lambda run: train(algorithm, run, 1))(run)
    moved = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max()),
        run.state.agent.parts["actor"].params,
        after.state.agent.parts["actor"].params,
    )
    assert max(jax.tree.leaves(moved)) > 1e-4


def test_the_value_cannot_be_followed_through_discrete_actions():
    config = replace(gciql.Config(), {"extraction.method": "ddpg_bc"})
    with pytest.raises(UserError, match="needs a bounded Box"):
        gciql.gciql.agent(everything.ENV, config)
