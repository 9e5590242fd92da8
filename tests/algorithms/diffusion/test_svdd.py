"""SVDD: with exact values its samples follow the tilted law; the value's loss; refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import svdd
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.diffusion import VariancePreserving
from jaxrl.exact.tilted import tilted_law, total_variation
from tests.algorithms.diffusion import mixtures
from tests.kit import stub

BETA, STEPS, N = 0.5, 100, 4000  # with 30 steps the sampler itself is off by 0.09
PROCESS = VariancePreserving(STEPS, "cosine")


def recipe(**changes):
    settings = {"hidden": (8,), "steps": STEPS} | changes
    return svdd.recipe(mixtures.ENV, Static(replace(svdd.Config(), settings)))


def samples(greedy=True, **changes):
    net = stub.stub(
        base=mixtures.noise_network(PROCESS),
        value=mixtures.soft_value_network(PROCESS, BETA),
        hyper={"beta": BETA},
    )
    act = recipe(**changes).act
    run = jax.jit(lambda key: act(net, mixtures.first_steps(N), (), key, greedy)[0])
    return run(random.key(0))


def test_exact_values_give_the_tilted_law():
    law, plain = (tilted_law(mixtures.ENV, beta) for beta in (BETA, np.inf))
    guided = samples(candidates=30)
    assert total_variation(law, guided) < 0.13
    np.testing.assert_allclose(guided[:, 0].mean(), law.expected_reward, atol=0.08)
    alone = samples(candidates=1)
    assert total_variation(plain, alone) < 0.07 and total_variation(law, alone) > 0.3
    np.testing.assert_array_equal(alone, samples(greedy=False, candidates=30))


def test_the_reward_of_the_predicted_clean_sample_guides_too():
    law = tilted_law(mixtures.ENV, BETA)
    guided = samples(candidates=10, values="clean")
    np.testing.assert_allclose(guided[:, 0].mean(), law.expected_reward, atol=0.15)
    assert guided[:, 0].mean() > 0.15


def test_a_candidate_is_drawn_in_proportion_to_its_exponential():
    candidates = jnp.arange(3.0)[:, None, None] * jnp.ones((3, N, 1))
    value = jnp.log(jnp.array([0.2, 0.3, 0.5]))[:, None] * jnp.ones((3, N))
    drawn = svdd.draw_candidate(candidates, value, random.key(0))
    shares = np.bincount(np.int32(drawn[:, 0]), minlength=3) / N
    np.testing.assert_allclose(shares, [0.2, 0.3, 0.5], atol=0.03)


@pytest.mark.parametrize("values", ["soft", "mean"])
def test_the_value_is_fitted_at_every_level(values):
    rng = np.random.default_rng(0)
    chain = rng.normal(size=(4, 3, 2)).astype(np.float32)  # two steps
    x = stub.transitions(4, actions=0, chain=jnp.asarray(chain))
    given = lambda timestep, noisy, level: noisy[..., :1] + 2 * level[..., None]
    net = stub.stub(value=given, hyper={"beta": BETA})
    output = stub.losses_of(recipe(steps=2, values=values))["value_loss"](net, x)
    value = chain[..., 0].T + 2 * np.array([1.0, 0.5, 0.0])[:, None]
    error = (value - np.asarray(x.reward)) ** 2
    if values == "soft":
        z = (np.asarray(x.reward) - value) / BETA
        error = np.exp(z) - z - 1
    else:
        error = error / 2
    np.testing.assert_allclose(output, error.mean(0), rtol=1e-4)


def test_what_does_not_fit_is_refused():
    config = replace(svdd.Config(), {"values": "clean"})
    with pytest.raises(UserError, match="fine-tunes samples that are actions of one step"):
        svdd.svdd.agent(envs.make("pendulum"), config)
    with pytest.raises(UserError, match="no time step of 'two_sides' tells its state"):
        svdd.svdd.agent(envs.make("two_sides"), config)
