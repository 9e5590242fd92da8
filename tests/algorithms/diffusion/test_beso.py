"""BESO: its loss with and without the goal, the law of three guided steps, and what it learns."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import beso
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.diffusion import EDM
from tests.algorithms.diffusion import bandit, gaussians
from tests.kit.stub import losses_of, stub

ENV = envs.make("point_maze", dt=0.05)
PROCESS = EDM(0.5, 1.0, 0.05, rho=float("inf"), density="log_logistic")


def recipe(**changes):
    return beso.recipe(ENV, Static(replace(beso.Config(), changes)))


def batch(key, n):
    """Steps with one of two goals; actions lie left or right, and up or down as the goal says."""
    goal_key, side_key, noise_key = jax.random.split(key, 3)
    goal = jnp.where(jax.random.bernoulli(goal_key, 0.5, (n,)), 1.0, -1.0)
    side = jnp.where(jax.random.bernoulli(side_key, 0.5, (n,)), 0.6, -0.6)
    action = jnp.stack([side, 0.5 * goal], -1) + 0.05 * jax.random.normal(noise_key, (n, 2))
    no = jnp.zeros(n, bool)
    goals = jnp.stack([goal, goal], -1)
    before = TimeStep(jnp.zeros((n, 4)), jnp.zeros(n), no, no, no, goal=goals)
    return Transition(before, action, before, (), {})


def test_the_loss_hides_some_goals():
    n = 40
    x = batch(random.key(2), n)
    seen = []

    def actor(timestep, noisy, level, flag):
        seen.append((timestep.goal, flag))
        return 0.5 * noisy + level[:, None] + timestep.goal * flag

    net = stub(actor=actor, key=bandit.key, hyper={"drop": np.float32(0.3)})
    found = losses_of(recipe())["actor_loss"](net, x)
    known = np.asarray(jax.random.uniform(bandit.key("drop"), (n,)) >= 0.3)
    assert 5 < n - known.sum() < 25
    np.testing.assert_array_equal(seen[0][0], np.where(known[:, None], x.timestep.goal, 0))
    np.testing.assert_array_equal(seen[0][1], known[:, None])
    noised = PROCESS.add_noise(bandit.key("noise"), x.action)
    said = 0.5 * noised.noisy + noised.level[:, None]
    said = said + np.where(known[:, None], x.timestep.goal, 0)
    np.testing.assert_allclose(found, np.square(said - noised.target).mean(-1), rtol=1e-4)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.0])
def test_three_guided_steps_have_the_law_of_their_recursion(weight):
    """Actions are N(0, 0.2^2) without the goal and N(0.2, 0.2^2) with it: predictions are linear,
    so guidance shifts the mean by its weight, and the steps are those of a recursion."""
    n, spread = 8000, 0.2
    exact = lambda mean: gaussians.denoiser([mean] * 2, spread**2 * np.eye(2), 0.5)

    def actor(timestep, noisy, level, flag):
        return jnp.where(flag > 0, exact(0.2)(noisy, level), exact(0.0)(noisy, level))

    net = stub(target={"actor": actor}, hyper={"guidance": np.float32(weight)})
    seen = batch(random.key(0), n).timestep
    act = jax.jit(lambda key: recipe().act(net, seen, (), key, True)[0])
    action = np.asarray(act(random.key(1)))
    sigma = np.append(np.geomspace(1.0, 0.05, 3), 0.0)
    mean, variance = 0.0, 1.0
    for now, after in itertools.pairwise(sigma):
        slope = spread**2 / (spread**2 + now**2)
        ratio = after / now
        factor = ratio + (1 - ratio) * slope
        mean = factor * mean + (1 - ratio) * (1 - slope) * 0.2 * weight
        variance *= factor**2
    np.testing.assert_allclose(action.mean(0), mean, atol=0.01)
    np.testing.assert_allclose(action.std(0), np.sqrt(variance), rtol=0.04)
    np.testing.assert_allclose(gaussians.denoising_steps(PROCESS, 3), sigma, rtol=1e-5)
    assert weight or abs(mean) < 1e-9


@pytest.mark.slow
def test_three_steps_cover_all_modes_and_guidance_separates_goals():
    """Actions have two modes with a goal and four without; weight 0 does not know the goal."""
    settings = {"torso.hidden": (64, 64), "average.rate": 0.02}
    agent = beso.beso.agent(ENV, replace(beso.Config(), settings))

    @jax.jit
    def learn(key):
        def step(state, key):
            data_key, key = jax.random.split(key)
            x = Batch(batch(data_key, 256), jnp.float32(0))
            return agent.update(state, x, key)[0], None

        hyper = {k: jnp.float32(v) for k, v in agent.hyper.items()}
        state = agent.init(key, hyper | {"optimizer.learning_rate": jnp.float32(2e-3)})
        state = jax.lax.scan(step, state, jax.random.split(key, 1500))[0]
        seen = batch(random.key(5), 1000).timestep

        def sample(weight):
            hyper = state.hyper | {"guidance": weight}
            own = dataclasses.replace(state, hyper=hyper)
            return agent.act(own, seen, (), random.key(6), True)[0]

        return seen.goal, jax.vmap(sample)(jnp.array([0.0, 1.0]))

    goal, (free, told) = jax.tree.map(np.asarray, learn(random.key(0)))
    follows = lambda action: (np.sign(action[:, 1]) == goal[:, 0]).mean()
    assert follows(told) > 0.95 and abs(follows(free) - 0.5) < 0.1
    for action in (free, told):
        right = action[:, 0] > 0
        assert 0.35 < right.mean() < 0.65
        assert (np.abs(np.abs(action[:, 0]) - 0.6) < 0.2).mean() > 0.7


def test_what_does_not_fit_is_refused():
    for env, more, text in (
        ("pendulum", {}, "beso learns to reach goals; 'pendulum' has none"),
        ("goal_maze", {}, "needs a bounded Box"),
        ("point_maze", {"smallest": 1.0}, "smallest is 1.0; it must be below"),
    ):
        with pytest.raises(UserError, match=text):
            beso.beso.agent(envs.make(env), replace(beso.Config(), more))
