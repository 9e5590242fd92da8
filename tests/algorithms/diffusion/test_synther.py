"""SynthER: what is learned from, on which scale, and what the second phase takes over."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import experience_model as experience_module
from jaxrl.algorithms.diffusion import synther
from jaxrl.algorithms.diffusion.shared import experience
from jaxrl.algorithms.diffusion.shared.experience import EXPERIENCE
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import take_over
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start
from jaxrl.core.types import Batch
from jaxrl.kit import Recipe
from jaxrl.kit.normalization import add, no_moments
from tests.algorithms.diffusion import gaussians
from tests.datasets.stand_in import no_training
from tests.kit.stub import stub
from tests.networks.pendulum import make_timestep

__all__ = ["no_training"]

ENV = envs.make("pendulum")
SETTINGS = {k: v for k, v in synther.TINY.items() if k != "env"}
RNG = np.random.default_rng(2)
SCALE = add(no_moments((5,)), jnp.asarray(RNG.normal(0.2, 0.3, (50, 5)), jnp.float32))


def test_the_actor_critic_sees_standardized_observations():
    """Acting and learning, and what is generated is in the environment's units."""
    seen = []

    def act(net, timestep, memory, key, greedy):
        seen.append(timestep.observation)
        return jnp.zeros((len(timestep.reward), 1)), memory, {}

    def update(net, batch):
        seen.extend([batch.transitions.observation, batch.transitions.next_observation])
        return net

    plain = Recipe(parts={}, act=act, losses=(), update=update)
    config = replace(synther.Config(), SETTINGS | {"generator.steps": 18})
    recipe = experience.learn_from_generated(plain, ENV, config)
    mean, spread = np.full(9, 0.3), 0.2
    net = stub(denoiser=gaussians.denoiser(mean, spread**2 * np.eye(9)), extra=SCALE)
    observation = RNG.normal(size=(6, 3)).astype(np.float32)
    timestep = make_timestep(observation, [False] * 6)
    extras = recipe.act(net, timestep, (), random.key(0), False)[2]
    assert recipe.act(net, timestep, (), random.key(0), True)[2] == {}
    unit = lambda x: (x - np.asarray(SCALE.mean[:3])) / np.asarray(SCALE.deviation[:3])
    x = jax.tree.map(lambda leaf: leaf[:, 0], extras[EXPERIENCE])
    recipe.update(net, Batch(x, jnp.float32(0)))
    for found, raw in zip(
        seen, (observation, observation, x.observation, x.next_observation), strict=True
    ):
        np.testing.assert_allclose(found, np.clip(unit(raw), -10, 10), rtol=1e-4, atol=1e-5)
    generated = unit(np.asarray(x.observation))
    assert abs(generated.mean() - 0.3) < 0.3 and generated.std() < 0.5
    assert not x.terminated.any()


@pytest.mark.slow
def test_the_second_phase_takes_the_average_over_and_leaves_it_as_it_is(no_training):
    """Only the denoiser and the moments: all else begins. Without a real share all is generated."""
    first = experience_module.experience_model(
        ENV, {k: v for k, v in experience_module.TINY.items() if k != "env"}
    )
    second = synther.synther(ENV, SETTINGS | {"real_share": 0.0})

    @jax.jit
    def run(key):
        learned, begun = start(first, key).state, start(second, key).state
        learned = first.step(learned, key)[0]
        taken = take_over(begun, second.agent.adopt(begun.agent, learned.agent))
        after, metrics = second.step(taken, key)
        fresh = second.source.collect(after.source, second.policy(after), key)[1]
        batch = second.source.sample(after.source, fresh, key)
        return learned.agent, begun.agent, taken.agent, after.agent, metrics, batch, fresh

    learned, begun, taken, after, metrics, batch, fresh = run(random.key(0))
    same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
    for state in (taken, after):
        same(state.parts["denoiser"].params, learned.parts["denoiser"].target)
        same(state.extra, learned.extra)
    same(taken.parts["actor"], begun.parts["actor"])
    assert after.extra.count > 0
    changed = jax.tree.map(lambda a, b: (a != b).any(), after.parts["actor"], taken.parts["actor"])
    assert any(jax.tree.leaves(changed.params))
    assert batch.transitions.reward.shape == (8,) and fresh.transitions.reward.shape == (1, 8)
    assert np.isfinite(metrics["generated_reward"].total)


def test_what_does_not_fit_is_refused(no_training):
    for more, text in (
        ({"horizon": 2}, "horizon is 2; synther generates transitions"),
        ({"num_envs": 2}, "synther learns from a dataset alone"),
        ({"normalization.observation": True}, "standardizes observations by the data's"),
        ({"real_share": 0.99}, "at least one transition must be generated"),
    ):
        with pytest.raises(UserError, match=text):
            synther.synther.agent(ENV, replace(synther.Config(), SETTINGS | more))
    assert set(synther.recipe(ENV, Static(replace(synther.Config(), SETTINGS))).scores) == {
        "dynamics_error",
        "reward_error",
    }
