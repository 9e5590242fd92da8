"""SALMON: sets of principles, labels, the loss, and policies that other principles steer."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences import salmon_reward_model as of_model
from jaxrl.algorithms.preferences.salmon import salmon
from jaxrl.algorithms.preferences.salmon_reward_model import (
    Sample,
    accuracy_by_set,
    draw_principles,
    judge_by_principles,
    salmon_reward_model,
    scores_of,
    sets_of,
    state_principles,
)
from jaxrl.algorithms.preferences.shared.measures import all_answers
from jaxrl.algorithms.preferences.shared.ratings import ratings_of
from jaxrl.algorithms.preferences.shared.reward_models import score_answers
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from jaxrl.core.train import start, train
from jaxrl.kit import Minibatch
from tests.kit.stub import losses_of, stub

ENV = envs.make("ruled_words", letters=2, length=2, tastes=3, seed=6)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 5e-3}
SMALL = SIZES | {"count": 16, "batch_size": 8}
NAMES = ("taste_0", "taste_1", "taste_2")
RNG = np.random.default_rng(0)


def test_sets_have_geometrically_many_principles_half_of_them_negated():
    drawn = np.asarray(draw_principles(random.key(0), (40_000,), 4, 3))
    assert set(np.unique(drawn)) == {-1, 0, 1}
    size = (drawn != 0).sum(-1)
    share = np.bincount(size, minlength=5) / len(size)
    expected = 0.8 ** np.arange(3)
    np.testing.assert_allclose(share, [0, *(expected / expected.sum()), 0], atol=0.01)
    np.testing.assert_allclose((drawn != 0).mean(0), size.mean() / 4, atol=0.01)
    np.testing.assert_allclose((drawn == 1).mean(0), (drawn == -1).mean(0), atol=0.01)
    few = np.asarray(draw_principles(random.key(1), (1000,), 2, 8))
    assert few.shape == (1000, 2) and (few != 0).any(-1).all()


def test_the_principle_with_the_largest_difference_decides():
    difference = RNG.normal(size=(200, 3)) * [1, 10, 0.1]
    principles = RNG.integers(-1, 2, (200, 3))
    variance = difference.var(0)
    found = judge_by_principles(
        jnp.asarray(difference), jnp.asarray(variance), jnp.asarray(principles)
    )
    dominant = []
    for label, apart, told in zip(np.asarray(found), difference, principles, strict=True):
        own = [told[k] * apart[k] / variance[k] for k in range(3)]
        largest = max(range(3), key=lambda k: abs(own[k]))
        dominant.append(largest)
        assert label == np.sign(own[largest])
    assert len(set(dominant)) == 3
    none = judge_by_principles(jnp.zeros((1, 3)), jnp.ones(3), jnp.ones((1, 3)))
    assert none.tolist() == [0]


def test_scores_are_those_of_whole_answers():
    algorithm = salmon_reward_model(ENV, SMALL)
    state = start(algorithm, random.key(0)).state
    _, batch, _ = algorithm.source.collect(state.source, algorithm.policy(state), random.key(1))
    batch = algorithm.source.sample(state.source, batch, random.key(2))
    found = np.asarray(scores_of(batch, NAMES))
    mask = np.asarray(batch.mask)
    decision = np.asarray(batch.transitions.timestep.tokens["decision"]) & mask
    for i in range(mask.shape[1]):
        prompt = int(batch.transitions.timestep.observation[0, i])
        said = np.asarray(batch.transitions.action)[decision[:, i], i]
        word = [int(x) for x in said if x < 2]
        pairs = list(zip([prompt, *word], word, strict=False))
        expected = [sum(table[prompt, a, b] for a, b in pairs) for table in ENV.params.tastes]
        np.testing.assert_allclose(found[i], expected, rtol=1e-4, atol=1e-5)


def test_the_loss_is_bradley_terrys_of_the_label_and_nothing_for_ties():
    config = Static(salmon_reward_model.complete_config(SMALL | {"members": 2}))
    loss = losses_of(of_model.recipe(ENV, config))["loss"]
    score = RNG.normal(size=(2, 6)).astype(np.float32)
    label = np.array([1, -1, 0])
    monkey = lambda *x: jnp.asarray(score)[:, None]
    sample = Sample(None, jnp.asarray(np.repeat(label, 2))[None])  # type: ignore[arg-type]
    original, of_model.score_tokens = of_model.score_tokens, monkey
    try:
        found = loss(stub(hyper={"centering": 0.2}), Minibatch(sample, jnp.ones((1, 6), bool)))
    finally:
        of_model.score_tokens = original
    lead = label * (score[:, ::2] - score[:, 1::2])
    own = np.where(label == 0, 0, np.log1p(np.exp(-lead)))
    penalty = 0.2 * (score[:, ::2] + score[:, 1::2]) ** 2
    np.testing.assert_allclose(found.value, (own + penalty).sum(0), rtol=1e-5)


def test_pairs_are_told_their_principles_and_labeled_by_them(monkeypatch):
    """A pair has one set, which both answers read in every time step."""
    algorithm = salmon_reward_model(ENV, SMALL | {"minibatches": 2})
    state = start(algorithm, random.key(0)).state
    batch = algorithm.source.sample(state.source, jnp.float32(0), random.key(2))
    principles = np.asarray(draw_principles(random.key(5), (8,), 3, 3))
    monkeypatch.setattr(of_model, "draw_principles", lambda *x: jnp.asarray(principles))
    seen = []
    net = stub(
        key=random.key,
        hyper={"flipped": 0.0},
        epochs=lambda settings, window, step, unit: seen.append(window),
    )
    net.key = lambda name: random.key(0)
    of_model.recipe(ENV, Static(algorithm.config)).update(net, batch)
    sample, mask = seen[0].x, seen[0].mask
    both = np.repeat(principles, 2, 0)
    for timestep in (sample.reading.first, sample.reading.after):
        np.testing.assert_array_equal(
            timestep.goal, np.broadcast_to(both, (*timestep.first.shape, 3))
        )
    apart = np.asarray(scores_of(batch, NAMES))
    apart = apart[::2] - apart[1::2]
    label = judge_by_principles(jnp.asarray(apart), jnp.asarray(apart.var(0)), principles)
    np.testing.assert_array_equal(sample.label[0], np.repeat(np.asarray(label), 2))
    np.testing.assert_array_equal(mask, batch.mask)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="principles of salmon_reward_model are the components"):
        salmon_reward_model(envs.make("judged_words"), SMALL)
    with pytest.raises(UserError, match=r"reward\.reads must be 'text'"):
        salmon_reward_model(ENV, SMALL | {"reads": "features"})
    for wrong in ((1, 1), (0, 0, 0)):
        with pytest.raises(UserError, match=r"it must have an entry for each of taste_0, taste_1"):
            salmon(ENV, SIZES | {"principles": wrong})


# ------------------------------------------------------------------------------------- learning

MODEL = SIZES | {"count": 512, "batch_size": 64, "hidden": (32,), "recurrent": 32}
LEARNER = SIZES | {
    "hidden": (32,),
    "recurrent": 32,
    "prompts": 32,
    "answers": 8,
    "kl.weight": 0.05,
    "learning_rate": 5e-3,
}


@pytest.mark.slow
def test_sets_that_are_larger_than_those_of_training_are_followed():
    algorithm = salmon_reward_model(ENV, MODEL | {"most_principles": 2})
    begun = jax.jit(functools.partial(start, algorithm))(random.key(0))
    after, _ = jax.jit(lambda run: train(algorithm, run, 1500))(begun)
    policy = algorithm.policy(after.state)
    found = np.asarray(accuracy_by_set(ENV, algorithm.config, policy))
    new = (sets_of(ENV) != 0).all(-1)
    assert new.sum() == 8
    assert found[~new].mean() > 0.85 and found[new].mean() > 0.8, (found[~new], found[new])


@pytest.mark.slow
def test_principles_steer_the_policy_with_one_reward_model():
    model = salmon_reward_model(ENV, MODEL)
    begun = jax.jit(functools.partial(start, model))(random.key(0))
    trained, _ = jax.jit(lambda run: train(model, run, 1500))(begun)
    ratings, moved = ratings_of(ENV), {}
    for told in ((1, 0, 0), (-1, 0, 0), (0, 1, 0)):
        algorithm = salmon(ENV, LEARNER | {"principles": told})
        run = start(algorithm, random.key(1))
        adopted = algorithm.agent.adopt(run.state.agent, trained.state.agent)
        run = dataclasses.replace(run, state=dataclasses.replace(run.state, agent=adopted))
        measure = jax.jit(algorithm.measure)
        first = measure(run.state, random.key(0))
        run, _ = jax.jit(lambda run, algorithm=algorithm: train(algorithm, run, 60))(run)
        last = measure(run.state, random.key(0))
        moved[told] = {
            name: float(last[f"exact_{name}"] - first[f"exact_{name}"]) for name in NAMES
        }
        same = lambda x, y: all(map(np.array_equal, jax.tree.leaves(x), jax.tree.leaves(y)))
        reward = run.state.agent.parts["reward"].params
        assert same(reward, trained.state.agent.parts["reward"].params)
    spread = float(ratings["taste_0"].max(-1).mean() - ratings["taste_0"].min(-1).mean())
    assert moved[1, 0, 0]["taste_0"] > 0.15 * spread, moved
    assert moved[-1, 0, 0]["taste_0"] < -0.15 * spread, moved
    assert moved[0, 1, 0]["taste_1"] > moved[1, 0, 0]["taste_1"], moved


def test_a_score_depends_on_the_principles():
    algorithm = salmon_reward_model(ENV, SMALL)
    state = start(algorithm, random.key(0)).state
    tell = lambda told: functools.partial(state_principles, principles=jnp.asarray(told))
    parts, found = state.agent.parts, all_answers(ENV)
    scores = [
        np.asarray(score_answers(ENV, algorithm.config, parts, found, tell(told)))
        for told in ((1.0, 0.0, 0.0), (-1.0, 0.0, 0.0))
    ]
    assert scores[0].shape == (1, *found.reward.shape) and not np.allclose(*scores)
