"""SCG: the best candidate by the rule is kept at each step; more of them follow it better."""

import functools

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import scg
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.diffusion import VariancePreserving
from jaxrl.exact.tilted import tilted_law, total_variation
from tests.algorithms.diffusion import mixtures
from tests.kit.stub import stub

STEPS, N = 60, 2000
ENV = envs.make("mixture", reward="modes")


@functools.cache
def samples(candidates, greedy=True):
    process = VariancePreserving(STEPS, "cosine")
    config = replace(scg.Config(), {"hidden": (8,), "steps": STEPS, "candidates": candidates})
    act = scg.recipe(ENV, Static(config)).act
    net = stub(base=mixtures.noise_network(process))
    run = jax.jit(lambda key: act(net, mixtures.first_steps(N), (), key, greedy)[0])
    return np.asarray(run(random.key(0)))


def reward(action):
    state = ENV.state_of(mixtures.first_steps(1))
    pay = lambda a: ENV.step(random.key(0), state, a, ENV.params)[1].reward
    return np.asarray(jax.vmap(pay)(action))


def test_more_candidates_follow_the_rule_better_without_its_gradient():
    """The rule is a step function of the sample, and samples stay on the modes of the model."""
    earned = [reward(samples(n)).mean() for n in (1, 2, 8)]
    base = float(tilted_law(ENV, np.inf).expected_reward)
    assert abs(earned[0] - base) < 0.05
    assert earned[0] + 0.1 < earned[1] and earned[1] < earned[2] and earned[2] > 0.9
    centers = np.asarray(mixtures.CENTERS)
    distance = np.linalg.norm(samples(8)[:, None] - centers, axis=-1).min(-1)
    assert (distance < 3 * mixtures.SPREAD).mean() > 0.95


def test_one_candidate_is_the_model_alone():
    law = tilted_law(ENV, np.inf)
    assert total_variation(law, samples(1)) < 0.09
    np.testing.assert_array_equal(samples(1), samples(8, greedy=False))


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="fine-tunes samples that are actions of one step"):
        scg.scg.agent(envs.make("pendulum"), scg.Config())
    with pytest.raises(UserError, match="no time step of 'two_sides' tells its state"):
        scg.scg.agent(envs.make("two_sides"), scg.Config())
