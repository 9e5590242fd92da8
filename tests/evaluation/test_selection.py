"""Choices of a bandit against all possible outcomes, and against a bandit in NumPy."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.core.errors import UserError
from jaxrl.evaluation.selection import bandit_selection

TRIALS = 20_000


def test_policies_without_noise():
    """After k distinct policies the best of k drawn ones is chosen, and it stays so."""
    scores = jnp.array([[0.1], [0.9], [0.4]])
    found = bandit_selection(jaxrl.key(0), scores, 6, trials=TRIALS)
    assert found.shape == (TRIALS, 6)
    pairs = [max(a, b) for a, b in itertools.combinations([0.1, 0.9, 0.4], 2)]
    expected = [np.mean([0.1, 0.9, 0.4]), np.mean(pairs), *[0.9] * 4]
    np.testing.assert_allclose(found.mean(0), expected, atol=0.01)
    assert (np.asarray(found[:, 2:]) == np.float32(0.9)).all()


def test_noisy_policies_are_mistaken_as_often_as_all_outcomes_say():
    scores = np.array([[0.0, 0.6], [0.2, 0.5]])
    found = bandit_selection(jaxrl.key(1), jnp.asarray(scores), 2, trials=TRIALS).mean(0)
    truth = scores.mean(1)
    second = [truth[int(b > a)] for a in scores[0] for b in scores[1]]
    np.testing.assert_allclose(found, [truth.mean(), np.mean(second)], atol=0.003)


def test_later_choices_are_those_of_a_plain_bandit():
    generator = np.random.default_rng(0)
    scores = np.round(generator.uniform(size=(4, 3)), 2).astype(np.float32)
    evaluations, alpha = 12, 0.3
    ours = bandit_selection(
        jaxrl.key(2), jnp.asarray(scores), evaluations, trials=TRIALS, alpha=alpha
    )
    total = np.zeros(evaluations)
    for _ in range(1_500):
        seen: list[list[float]] = [[] for _ in scores]
        for step in range(evaluations):
            bounds = [
                np.mean(x) + np.sqrt(alpha * np.log(step + 1) / len(x)) if x else np.inf
                for x in seen
            ]
            arm = generator.choice(np.flatnonzero(np.equal(bounds, max(bounds))))
            seen[arm].append(generator.choice(scores[arm]))
            best = np.argmax([np.mean(x) if x else -np.inf for x in seen])
            total[step] += scores[best].mean()
    np.testing.assert_allclose(ours.mean(0), total / 1_500, atol=0.02)


def test_a_trial_may_see_some_of_the_policies():
    scores = jnp.array([[0.0], [1.0], [2.0]])
    found = bandit_selection(jaxrl.key(3), scores, 5, policies=1, trials=TRIALS)
    np.testing.assert_allclose(found[:, -1].mean(), 1.0, atol=0.02)
    pairs = bandit_selection(jaxrl.key(3), scores, 5, policies=2, trials=TRIALS)
    np.testing.assert_allclose(pairs[:, -1].mean(), 5 / 3, atol=0.02)


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        (jnp.ones(3), {}, r"the shape \[3\]"),
        (jnp.ones((3, 2)), {"policies": 4}, "policies is 4; it must be between 1 and 3"),
        (jnp.ones((3, 2)), {"trials": 0}, "trials is 0"),
    ],
)
def test_bad_arguments_are_refused(scores, options, message):
    with pytest.raises(UserError, match=message):
        bandit_selection(jaxrl.key(0), scores, 2, **options)
