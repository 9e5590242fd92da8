"""DRAIL: log-odds by NumPy, what the discriminator's loss raises and lowers, and its reward."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.imitation import drail
from jaxrl.algorithms.imitation.shared.adversarial import Beside
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from tests.algorithms.imitation.test_gail import start_agent
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")
SETTINGS = {k: v for k, v in drail.TINY.items() if k != "env"} | {"penalized": False}
N, D, DRAWS = 8, 4, 3
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(2, D)).astype(np.float32)


def steps(seed):
    x = jax.tree.map(jnp.asarray, transitions(N, 0, seed))
    rng = np.random.default_rng(seed)
    timestep = dataclasses.replace(x.timestep, observation=rng.normal(size=(N, 3)))
    return dataclasses.replace(x, timestep=timestep, action=rng.uniform(-2, 2, (N, 1)))


def net_of(seen):
    """A denoiser that scales what it sees by one row of weights for each label."""

    def discriminator(noisy, level, label):
        seen.append((noisy, level, label))
        return noisy * jnp.where(label[..., None] == 1.0, WEIGHT[1], WEIGHT[0])

    return stub(discriminator=discriminator, key=lambda name: random.key(3), hyper={})


def test_the_loss_is_a_cross_entropy_of_the_difference_of_both_labels_errors():
    config = replace(drail.Config(), SETTINGS | {"draws": DRAWS, "levels": 50})
    loss = losses_of(drail.recipe(ENV, Static(config)))["discriminator_loss"]
    seen, x = [], Beside(steps(0), steps(1))
    output = loss(net_of(seen), x)
    times = np.arange(51) / 50
    ratio = np.cos((times + 0.008) / 1.008 * np.pi / 2) ** 2
    logits = []
    for part, (expert, policy) in zip((x.shown, x.played), (seen[:2], seen[2:]), strict=True):
        assert (expert[2] == 1).all() and (policy[2] == 0).all()
        for a, b in zip(expert[:2], policy[:2], strict=True):  # one noisy pair for both labels
            np.testing.assert_array_equal(a, b)
        noisy, level = (np.asarray(a) for a in expert[:2])
        assert noisy.shape == (DRAWS, N, D)
        clean = np.concatenate([part.timestep.observation, np.asarray(part.action) / 2], -1)
        signal = ratio[np.rint(50 * level).astype(int)][..., None] / ratio[0]
        inside = level < 1  # the last step of the schedule is cut off
        noise = (noisy - np.sqrt(signal) * clean) / np.sqrt(1 - signal)
        errors = [((noise - noisy * w) ** 2).mean(-1) for w in WEIGHT]
        logit = errors[0] - errors[1]
        assert inside.mean() > 0.9
        logits.append(np.where(inside, logit, np.nan).mean(0))
    softplus = lambda z: np.log1p(np.exp(z))
    expected = softplus(-logits[0]) + softplus(logits[1])
    known = np.isfinite(expected)
    assert known.sum() > N / 2
    np.testing.assert_allclose(output.value[known], expected[known], rtol=2e-2, atol=1e-3)


def test_the_policy_is_paid_the_log_odds(no_training):
    """The mean reward of an update whose discriminator does not move."""
    settings = SETTINGS | {"discriminator.optimizer.learning_rate": 0.0, "draws": 1}
    settings |= {"passes.epochs": 1, "passes.minibatches": 1, "normalization.observation": False}
    agent, state, batch = start_agent(drail.drail, ENV, settings)
    _, info = jax.jit(agent.update)(state, batch, random.key(3))
    config = drail.drail.complete_config(settings)
    part = drail.drail.recipe(ENV, config).parts["discriminator"]
    x = batch.transitions
    clean = jnp.concatenate([x.observation, jnp.clip(x.action, -2, 2) / 2], -1)[None]
    process = drail.VariancePreserving(config.discriminator.levels, "cosine")

    @jax.jit
    @jax.vmap
    def log_odds(key):  # with other noise than that of the update
        noised = process.add_noise(key, clean)
        told = jnp.ones(noised.level.shape)
        call = lambda label: part.apply(
            state.parts["discriminator"].params, noised.noisy, noised.level, label
        )
        error = [jnp.square(noised.target - call(label)).mean(-1) for label in (told, 0 * told)]
        return (error[1] - error[0]).mean()

    found = log_odds(jax.random.split(random.key(5), 100))
    paid = float(info.metrics["imitation_reward"])
    assert abs(paid - np.mean(found)) < 5 * np.std(found) + 1e-6
    assert np.std(found) > 0
