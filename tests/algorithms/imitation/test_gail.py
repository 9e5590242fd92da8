"""GAIL and AIRL: what PPO learns from, and AIRL's logits against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.imitation import airl, gail
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace

SETTINGS = {k: v for k, v in gail.TINY.items() if k != "env"} | {"penalized": False}


def start_agent(builder, env, settings):
    """The agent's state, and a batch as its source gives it."""
    algorithm = builder(env, settings)
    agent, source = algorithm.agent, algorithm.source

    @jax.jit
    def begin(key):
        state = algorithm.init(key, algorithm.hyper)
        policy = algorithm.policy(state)
        _, fresh, _ = source.collect(state.source, policy, random.key(1))
        return state, source.sample(state.source, fresh, random.key(2))

    state, batch = begin(random.key(0))
    return agent, state.agent, batch


def test_the_environments_reward_is_not_read(no_training):
    agent, state, batch = start_agent(gail.gail, envs.make("cartpole"), SETTINGS)
    x = batch.transitions
    other = dataclasses.replace(x.next_timestep, reward=5.0 - 3 * x.reward)
    changed = dataclasses.replace(batch, transitions=dataclasses.replace(x, next_timestep=other))
    flipped = dataclasses.replace(x.extras["expert"], action=1 - x.extras["expert"].action)
    extras = {**x.extras, "expert": flipped}
    shown = dataclasses.replace(batch, transitions=dataclasses.replace(x, extras=extras))
    update = jax.jit(agent.update)
    new, same, different = (update(state, b, random.key(3))[0] for b in (batch, changed, shown))
    parts = lambda state: jax.tree.leaves(jax.tree.map(np.asarray, state.agent.parts))
    assert all(np.array_equal(a, b) for a, b in zip(parts(new), parts(same), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(parts(new), parts(different), strict=True))


def test_airls_log_odds_are_a_shaped_reward_less_the_policys_density(no_training):
    """The reward that PPO learns from, from the networks before and after."""
    env = envs.make("pendulum")
    settings = SETTINGS | {"state_only": True, "normalization.observation": False}
    settings |= {"passes.epochs": 1, "passes.minibatches": 1, "discount": 0.8}
    settings |= {"discriminator.optimizer.learning_rate": 0.0}  # so that it stays as it is
    agent, state, batch = start_agent(airl.airl, env, settings)
    _, info = jax.jit(agent.update)(state, batch, random.key(3))
    x = batch.transitions
    recipe = airl.airl.recipe(env, airl.airl.complete_config(settings))
    call = lambda part, *inputs: recipe.parts[part].apply(state.parts[part].params, *inputs)
    reward, potential = call("reward", x.timestep), call("potential", x.timestep)
    following = call("potential", x.next_timestep)
    policy = call("actor_critic", x.timestep, ())[0]
    density = policy.log_prob(jnp.clip(x.action, -2, 2))
    expected = reward + 0.8 * np.where(x.terminated, 0, following) - potential - density
    np.testing.assert_allclose(
        info.metrics["imitation_reward"], expected.mean(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("builder", "changes", "message"),
    [
        (gail.gail, {"normalization.reward": True}, "normalization.reward is on"),
        (airl.airl, {"memory.recurrent": 4}, "single steps"),
        (gail.gail, {"discriminator.passes.minibatches": 5}, "5"),
    ],
)
def test_what_does_not_fit_is_said(builder, changes, message, no_training):
    settings = SETTINGS | changes
    with pytest.raises(UserError, match=message):
        builder(envs.make("pendulum"), replace(builder.Config(), settings))
