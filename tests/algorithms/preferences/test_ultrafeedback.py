"""UltraFeedback: ratings, pairs, and what a reward model of them is good for."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences.shared.measures import all_answers
from jaxrl.algorithms.preferences.ultrafeedback import aspects_of, pool_of, ultrafeedback
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.sources.feedback import draw_feedback, draw_pairs, feedback_pairs

ENV = envs.make("ruled_words", letters=2, length=2)
FOUND = all_answers(ENV)
QUALITIES = (-1.0, 0.0, 1.0, 3.0)
SIZES = {"memory.recurrent": 16, "memory.transformer": 0, "pairs.batch_size": 32}


def test_the_pool_is_of_varied_quality_and_the_aspects_add_up_to_the_reward():
    pool, aspects = pool_of(ENV, QUALITIES), aspects_of(ENV)
    worth = (jnp.exp(pool) * FOUND.reward).sum(-1).mean(-1)
    np.testing.assert_allclose(jnp.exp(pool).sum(-1), 1, rtol=1e-5)
    assert (np.diff(worth) > 0.1).all()
    np.testing.assert_allclose(jnp.exp(pool[1, 0, 0]), 1 / 3, rtol=1e-5)  # '.', of three tokens
    assert aspects.shape == (2, 2, 7)
    np.testing.assert_allclose(aspects.mean(0), FOUND.reward, rtol=1e-5, atol=1e-6)


def test_ratings_are_standardized_aspects_in_whole_numbers():
    pool, aspects = pool_of(ENV, QUALITIES), aspects_of(ENV)
    found = draw_feedback(jax.random.key(0), pool, aspects, 500, 3, noise=0.0)
    share = np.exp(pool).mean(0) / 2
    for aspect in range(2):
        values = np.asarray(aspects[aspect])
        mean = (share * values).sum()
        deviation = np.sqrt((share * (values - mean) ** 2).sum())
        rated = values[np.asarray(found.prompt)[:, None], np.asarray(found.answer)]
        expected = np.clip(np.round(3 + (rated - mean) / deviation), 1, 5)
        np.testing.assert_array_equal(found.ratings[..., aspect], expected)
    np.testing.assert_allclose(found.overall, found.ratings.mean(-1))
    assert all(len(set(x)) == 3 for x in np.asarray(found.writer).tolist())
    # The first policy of the pool dislikes what the last one likes.
    gold = np.asarray(FOUND.reward)[np.asarray(found.prompt)[:, None], np.asarray(found.answer)]
    by = [gold[np.asarray(found.writer) == i].mean() for i in range(4)]
    exact = (np.exp(pool) * np.asarray(FOUND.reward)).sum(-1).mean(-1)
    np.testing.assert_allclose(by, exact, atol=0.2)


def test_noise_changes_labels():
    pool, aspects = pool_of(ENV, QUALITIES), aspects_of(ENV)
    wrong = []
    for noise in (0.0, 1.0):
        found = draw_feedback(jax.random.key(0), pool, aspects, 500, 3, noise)
        prompt, chosen, rejected = draw_pairs(jax.random.key(1), found, 2000)
        wrong.append(float((FOUND.reward[prompt, chosen] < FOUND.reward[prompt, rejected]).mean()))
    assert wrong[0] < 0.05 < 0.1 < wrong[1] < 0.4, wrong


def test_pairs_are_rated_answers_to_one_prompt_the_better_one_first():
    pool, aspects = pool_of(ENV, QUALITIES), aspects_of(ENV)
    source = feedback_pairs(
        FOUND.transitions, FOUND.within, pool, aspects, 50, 64, size=3, noise=0.5
    )
    state = source.init(jax.random.key(0), {}, None)
    batch = source.sample(state, jnp.float32(1), jax.random.key(1))
    t = batch.transitions
    observed = np.asarray(t.timestep.observation[0])
    np.testing.assert_array_equal(observed[::2], observed[1::2])  # the prompt
    table = {}  # overall ratings by prompt and answer: with noise there may be several
    for prompt, row, rated in zip(
        *map(np.asarray, (state.feedback.prompt, state.feedback.answer, state.feedback.overall)),
        strict=True,
    ):
        for i, j in np.argwhere(rated[:, None] > rated):
            table.setdefault((prompt, row[i]), set()).add(row[j])
    reward = np.asarray(jnp.where(batch.mask, t.reward, 0).sum(0))
    place = lambda column: int(
        np.argmin(np.abs(np.asarray(FOUND.reward[observed[column]]) - reward[column]))
    )
    for pair in range(64):
        chosen, rejected = place(2 * pair), place(2 * pair + 1)
        assert rejected in table[observed[2 * pair], chosen]


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="qualities has 2 policies"):
        ultrafeedback(ENV, SIZES | {"pairs.qualities": (0.0, 1.0), "pairs.answers": 3})
    with pytest.raises(UserError, match=r"pairs\.noise instead"):
        ultrafeedback(ENV, SIZES | {"pairs.flipped": 0.1})


@pytest.mark.slow
def test_a_reward_model_of_the_dataset_is_right_and_useful():
    sizes = SIZES | {"pairs.count": 1024, "pairs.batch_size": 128, "optimizer.learning_rate": 1e-2}
    algorithm = ultrafeedback(ENV, sizes)
    run, _ = train(algorithm, start(algorithm, random.key(0)), 100)
    policy = lambda state: types.SimpleNamespace(state=state)
    measure = lambda state: ultrafeedback.measure(
        ENV, algorithm.config, policy(state), random.key(0)
    )
    found = {name: float(x) for name, x in jax.jit(measure)(run.state.agent).items()}
    assert found["pool_accuracy"] > 0.85, found
    assert found["best_of_16_gain"] > 0.3, found
