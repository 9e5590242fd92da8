"""Genius: what its loss sees of the pairs, and that it makes a policy surer without any reward."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences.shared.measures import all_answers, log_probs
from jaxrl.algorithms.preferences.shared.pairs import Answers
from jaxrl.algorithms.tokens.genius import calibrated_loss, differing_pairs, genius
from jaxrl.core import random
from jaxrl.core.train import start, train
from jaxrl.core.types import Batch, TimeStep, Transition
from tests.kit.stub import stub

ENV = envs.make("judged_words", letters=2, length=2)
SIZES = {"recurrent": 16, "transformer": 0, "steps": 2, "step_length": 1, "rollouts": 2}


def test_rejected_texts_with_the_higher_advantage_are_penalized_less():
    rng = np.random.default_rng(0)
    both = [Answers(*map(jnp.asarray, rng.normal(size=(4, 50)))) for _ in range(2)]
    found = calibrated_loss(stub(hyper={"beta": 0.7, "alpha": 0.4}), *both)
    win, lose = ([np.asarray(x, float) for x in answers] for answers in both)
    weight = np.minimum(np.exp(-(lose[3] - win[3]) / 0.4), 1)
    margin = 0.7 * (win[0] - win[1]) - 0.7 * weight * (lose[0] - lose[1])
    np.testing.assert_allclose(found, np.log1p(np.exp(-margin)), rtol=1e-4)
    assert (weight < 0.9).any() and (weight == 1).any()


def test_pairs_of_equal_texts_are_left_out():
    said = np.array([[1, 1, 1, 2, 1, 1], [2, 2, 2, 2, 2, 3]])
    mask = np.ones((2, 6), bool)
    mask[1, 4:] = False  # what follows an end means nothing
    none = np.zeros((2, 6))
    step = TimeStep(*[none] * 5)
    t = Transition(step, jnp.asarray(said), step, (), {})
    found = differing_pairs(Batch(t, jnp.float32(0), mask=jnp.asarray(mask)))
    np.testing.assert_array_equal(found, [False, False, True, True, False, False])


@pytest.mark.slow
def test_it_grows_sure_of_what_it_was_likely_to_say():
    """No reward is read: with its sign changed the same is learned."""
    algorithm = genius(ENV, SIZES | {"optimizer.learning_rate": 5e-3, "prompts": 64})
    run = start(algorithm, random.key(0))
    exact = lambda run: np.asarray(
        log_probs(ENV, algorithm.config, run.state.agent.parts["actor_critic"].params)
    )
    begun = exact(run)
    after, _ = jax.jit(lambda run: train(algorithm, run, 30))(run)
    ended = exact(after)
    entropy = lambda x: -(np.exp(x) * x).sum(-1).mean()
    assert entropy(ended) < 0.8 * entropy(begun)
    assert all_answers(ENV).reward.shape == begun.shape
    # What follows the first letter is surer in the answers that grew likelier.
    flipped = dataclasses.replace(
        ENV, params=dataclasses.replace(ENV.params, taste=-np.asarray(ENV.params.taste))
    )
    other = genius(flipped, SIZES | {"optimizer.learning_rate": 5e-3, "prompts": 64})
    again, _ = jax.jit(lambda run: train(other, run, 30))(start(other, random.key(0)))
    np.testing.assert_allclose(exact(again), ended, atol=1e-4)
