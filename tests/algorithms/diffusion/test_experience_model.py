"""The model of experience: what a sample holds, its loss, and the joint law of generated steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import experience_model as experience_module
from jaxrl.algorithms.diffusion.shared import experience
from jaxrl.algorithms.diffusion.shared.experience import EXPERIENCE, Layout
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.kit.normalization import add, no_moments
from tests.algorithms.diffusion import bandit
from tests.kit.stub import losses_of, stub

PENDULUM = envs.make("pendulum")
SETTINGS = {k: v for k, v in experience_module.TINY.items() if k != "env"}
RNG = np.random.default_rng(3)
SCALE = add(no_moments((5,)), jnp.asarray(RNG.normal(0.5, 0.3, (50, 5)), jnp.float32))


def window(length, n=4):
    """Windows [length, n] of Pendulum's observations and actions, the last step of some an end."""
    no = np.zeros((length, n), bool)
    ended = no.copy()
    ended[-1] = RNG.random(n) < 0.5
    draw = lambda *shape: RNG.normal(size=(length, n, *shape)).astype(np.float32)
    seen, reward = RNG.normal(size=(length + 1, n, 3)).astype(np.float32), draw()
    before = TimeStep(seen[:-1], draw(), no, no, no)
    after = TimeStep(seen[1:], reward, ended, no, no)
    action = RNG.uniform(-2, 2, (length, n, 1)).astype(np.float32)
    return jax.tree.map(jnp.asarray, Transition(before, action, after, (), {}))


def numbers(x):
    """Standardized steps [T, n, 6] by NumPy: observation, half the action, reward, end."""
    x = jax.tree.map(np.asarray, x)
    plain = np.concatenate([x.observation, x.action / 2, x.reward[..., None]], -1)
    unit = (plain - np.asarray(SCALE.mean)) / np.asarray(SCALE.deviation)
    return np.concatenate([unit, x.terminated[..., None]], -1)


@pytest.mark.parametrize("length", [1, 3])
def test_a_sample_holds_steps_and_what_came_after_them(length):
    x, layout = window(length), Layout(PENDULUM, length)
    sample = np.asarray(layout.encode(SCALE, x))
    assert sample.shape == layout.shape(4)
    step = numbers(x).swapaxes(0, 1)
    after = np.asarray(x.next_observation[-1])
    after = (after - np.asarray(SCALE.mean[:3])) / np.asarray(SCALE.deviation[:3])
    if length == 1:
        np.testing.assert_allclose(sample, np.concatenate([step[:, 0], after], -1), rtol=1e-5)
    else:
        np.testing.assert_allclose(sample[:, :-1], step, rtol=1e-5)
        np.testing.assert_allclose(sample[:, -1, :3], after, rtol=1e-5)
        assert (sample[:, -1, 3:] == 0).all()
    found = layout.decode(SCALE, jnp.asarray(sample))
    for part in ("observation", "next_observation", "reward", "action", "terminated"):
        np.testing.assert_allclose(getattr(found, part), getattr(x, part), atol=1e-5, err_msg=part)
    # Actions are within bounds, and an end is more than half.
    wide = layout.replace_actions(jnp.asarray(sample), jnp.full((4, length, 1), 100.0))
    assert (layout.decode(SCALE, wide).action == 2).all()
    np.testing.assert_array_equal(layout.actions_of(wide), 100.0)
    np.testing.assert_allclose(layout.observations_of(wide), step[..., :3], rtol=1e-5)


@pytest.mark.parametrize("length", [1, 3])
def test_the_loss(length):
    x = window(length)
    config = replace(experience_module.Config(), SETTINGS | {"horizon": length})
    recipe = experience_module.recipe(PENDULUM, Static(config))
    wide = (slice(None), *(None,) * (1 if length == 1 else 2))
    denoiser = lambda noisy, level: 0.5 * noisy + level[wide]
    found = losses_of(recipe)["denoiser_loss"](
        stub(denoiser=denoiser, extra=SCALE, key=bandit.key), x
    )
    layout = Layout(PENDULUM, length)
    noised = layout.process().add_noise(bandit.key(), layout.encode(SCALE, x))
    error = np.square(denoiser(noised.noisy, noised.level) - noised.target)
    expected = np.asarray(error).reshape(4, -1).mean(-1)
    np.testing.assert_allclose(found, np.broadcast_to(expected, (length, 4)), rtol=1e-4)


@pytest.mark.slow
def test_what_is_generated_has_the_joint_law_of_the_data():
    """Transitions of a linear Gaussian law: means, all covariances and the share of ends."""
    settings = {"width": 64, "blocks": 2, "generator.steps": 18, "average.rate": 0.02}
    config = replace(experience_module.Config(), settings)
    agent = experience_module.experience_model.agent(bandit.ENV, config)

    def draw(key, n):
        keys = jax.random.split(key, 4)
        noise = [jax.random.normal(k, (n,)) for k in keys]
        s = 0.2 + 0.4 * noise[0]
        a = jnp.clip(0.5 * s + 0.15 * noise[1], -1, 1)
        r = s - 2 * a + 0.3 * noise[2]
        after = 0.8 * s + 0.5 * a + 0.1 * noise[3]
        return s, a, r, after

    def batch(key, n):
        s, a, r, after = draw(key, n)
        no = jnp.zeros((1, n), bool)
        wide = lambda x: x[None, :, None]
        before = TimeStep(wide(s), jnp.zeros((1, n)), no, no, no)
        then = TimeStep(wide(after), r[None], (after > 0.5)[None], no, no)
        return Batch(Transition(before, wide(a), then, (), {}), jnp.float32(0))

    @jax.jit
    def run(key):
        def step(state, key):
            return agent.update(state, batch(key, 256), key)[0], None

        hyper = {k: jnp.float32(v) for k, v in agent.hyper.items()}
        hyper["optimizer.learning_rate"] = jnp.float32(2e-3)
        state = agent.init(key, hyper)
        state = jax.lax.scan(step, state, jax.random.split(key, 1500))[0]
        seen = jax.tree.map(lambda x: x[0], batch(key, 4000).transitions.timestep)
        return agent.act(state, seen, (), key, False)[2][EXPERIENCE]

    x = run(random.key(0))
    parts = (x.observation, x.action, x.reward[..., None], x.next_observation)
    found = np.concatenate([np.asarray(part).reshape(4000, 1) for part in parts], -1)
    true = np.stack(jax.jit(draw, static_argnums=1)(random.key(7), 100_000), -1)
    deviation = true.std(0)
    np.testing.assert_allclose((found.mean(0) - true.mean(0)) / deviation, 0, atol=0.1)
    unit = np.outer(deviation, deviation)
    np.testing.assert_allclose((np.cov(found.T) - np.cov(true.T)) / unit, 0, atol=0.12)
    # The noise of the dynamics is a tenth of the data's spread, and is met.
    error = found[:, 3] - 0.8 * found[:, 0] - 0.5 * found[:, 1]
    assert 0.06 < error.std() < 0.17 and abs(error.mean()) < 0.04
    ended = np.asarray(x.terminated).ravel()
    assert abs(ended.mean() - (true[:, 3] > 0.5).mean()) < 0.04
    assert (ended == (found[:, 3] > 0.5)).mean() > 0.95


def test_generated_steps_are_compared_with_the_environment():
    """True steps have no error; with the next observation of another one, theirs is 2 variances."""
    config = replace(experience_module.Config(), SETTINGS)

    def act(state, timestep, memory, key, greedy):
        n = len(timestep.reward)
        angle, spin = jax.random.uniform(key, (2, n), minval=-3.0)
        seen = jnp.stack([jnp.cos(angle), jnp.sin(angle), spin], -1)
        before = dataclasses.replace(timestep, observation=seen)
        action = jax.random.uniform(random.key(1), (n, 1), minval=-2.0, maxval=2.0)
        states = jax.vmap(PENDULUM.state_of)(before)
        step = jax.vmap(PENDULUM.step, (None, 0, 0, None))
        after = step(key, states, action, PENDULUM.params)[1]
        after = dataclasses.replace(after, observation=jnp.roll(after.observation, state, 0))
        x = Transition(before, action, after, (), {})
        return action, memory, {EXPERIENCE: jax.tree.map(lambda leaf: leaf[:, None], x)}

    def measure(shift):
        policy = stub(act=act, memory=lambda n: (), state=shift)
        return experience.measure_experience(PENDULUM, config, policy, random.key(0))

    exact, other = measure(0), measure(1)
    assert exact["dynamics_error"] < 1e-8 and exact["reward_error"] < 1e-8
    np.testing.assert_allclose(other["dynamics_error"], 2.0, atol=0.2)
    assert other["reward_error"] < 1e-8
    assert experience.measure_experience(envs.make("reacher"), config, None, None) == {}


def test_what_does_not_fit_is_refused():
    for env, more, text in (
        ("point_maze", {}, "generates no goals, and episodes of 'point_maze' have some"),
        ("catch", {}, "needs a bounded Box"),
        ("pendulum", {"num_envs": 2}, "learns from a dataset alone"),
        (
            "pendulum",
            {"horizon": 201},
            "horizon is 201, but episodes of 'pendulum' have at most 200",
        ),
    ):
        with pytest.raises(UserError, match=text):
            config = replace(experience_module.Config(), SETTINGS | more)
            experience_module.experience_model.agent(envs.make(env), config)
