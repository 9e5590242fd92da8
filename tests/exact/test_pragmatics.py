"""Rational speech acts: by hand for three programs, and as the best listener there is."""

import itertools

import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.envs.language.regex_by_example import NONE
from jaxrl.exact import pragmatics

# The classic implicature: a program that says more (0) and one that says less (1) of string 0.
SCALE = jnp.array([[True, True], [True, False], [False, False]])


def test_listeners_of_three_programs_by_hand():
    shown, labels = jnp.array([0, NONE]), jnp.array([True, True])
    np.testing.assert_allclose(pragmatics.literal_listener(SCALE, shown, labels), [0.5, 0.5, 0])
    # Program 0: L is 1/2 by string 0 and 1 by string 1; program 1: 1/2 by both.
    expected = np.array([1 / 3, 1 / 2, 0])
    found = pragmatics.pragmatic_listener(SCALE, shown, labels)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-6)
    assert found.argmax() == 1
    np.testing.assert_allclose(pragmatics.top_1_accuracy(found, 1), 1)
    even = pragmatics.literal_listener(SCALE, shown, labels)
    np.testing.assert_allclose(pragmatics.top_1_accuracy(even, 1), 0.5)
    # Without rationality strings say nothing beyond their labels.
    found = pragmatics.pragmatic_listener(SCALE, shown, labels, 0.0)
    np.testing.assert_allclose(found, [0.5, 0.5, 0], rtol=1e-6)


def test_probabilities_of_all_examples_sum_to_one_and_bayes_is_best():
    env = envs.make("regex_by_example", parts=1, length=2, examples=2)
    meanings = jnp.asarray(env.params.meanings)
    count, size = meanings.shape
    total, best, accuracy, literal = np.zeros(count), 0.0, 0.0, 0.0
    for shown in itertools.permutations(range(size), 2):
        for labels in itertools.product([False, True], repeat=2):
            given = meanings, jnp.array(shown), jnp.array(labels)
            chance = np.asarray(pragmatics.utterance_probability(*given, 2.0))
            total += chance
            if chance.sum() == 0:
                continue
            best += chance.max() / count
            found = pragmatics.pragmatic_listener(*given, 2.0)
            even = pragmatics.literal_listener(*given)
            for program in range(count):
                weight = chance[program] / count
                accuracy += weight * pragmatics.top_1_accuracy(found, program)
                literal += weight * pragmatics.top_1_accuracy(even, program)
    np.testing.assert_allclose(total, 1, rtol=1e-5)
    np.testing.assert_allclose(accuracy, best, rtol=1e-5)
    assert literal < best - 0.02
