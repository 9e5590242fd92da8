"""Preference models: embeddings, probabilities of both orders, cycles, and policies they judge."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses, solvers
from jaxrl.algorithms.preferences import egpo as of_egpo
from jaxrl.algorithms.preferences import inpo as of_inpo
from jaxrl.algorithms.preferences import spo as of_spo
from jaxrl.algorithms.preferences.preference_model import preference_model
from jaxrl.algorithms.preferences.preference_model import recipe as model_recipe
from jaxrl.algorithms.preferences.reward_model import reward_model
from jaxrl.algorithms.preferences.shared.measures import all_answers, log_probs
from jaxrl.algorithms.preferences.shared.preference_models import (
    PreferenceModel,
    compare_answers,
    embeddings_of,
    judged_by,
    on_preferences,
)
from jaxrl.algorithms.preferences.shared.reward_models import score_answers
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from jaxrl.core.train import start, train
from jaxrl.exact.answers import nash_answers
from jaxrl.kit import Minibatch, Recipe, group
from jaxrl.kit.stages import stages
from jaxrl.sources.pairs import judged_of
from tests.algorithms.preferences.test_reward_models import (
    MASK,
    READING,
    same,
)
from tests.kit.stub import stub

ENV = envs.make("judged_words", letters=2, length=2, cycle=4.0, seed=4)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 5e-3}
MODEL = SIZES | {"count": 16, "batch_size": 8, "planes": 2}
T, B, D = 3, 4, 4
RNG = np.random.default_rng(0)
VALUE = RNG.normal(size=(T + 1, B, D)).astype(np.float32)
LAST = np.array([2, 3, 2, 3])  # the successor of each episode's last step, in its text


@group
class OnPreferences(of_egpo.Config):
    """EGPO by a preference model."""

    preference: PreferenceModel = PreferenceModel(planes=2)


@group
class SPOOnPreferences(of_spo.Config):
    """SPO by a preference model."""

    preference: PreferenceModel = PreferenceModel(planes=2)


egpo = on_preferences("egpo_on_preferences", of_egpo.egpo, OnPreferences)
spo = on_preferences("spo_on_preferences", of_spo.spo, SPOOnPreferences)
BUILDERS = [(egpo, {"prompts": 4, "steps": 2}), (spo, {"prompts": 4, "answers": 3})]
both = pytest.mark.parametrize(("builder", "sizes"), BUILDERS, ids=lambda x: getattr(x, "name", ""))


def test_an_embedding_is_the_value_after_the_last_token():
    found = embeddings_of(jnp.asarray(VALUE), READING, jnp.asarray(MASK))
    np.testing.assert_allclose(found, VALUE[LAST, np.arange(B)])


def test_the_loss_is_the_likelihood_of_the_labels():
    (loss,) = model_recipe(ENV, Static(preference_model.complete_config(MODEL))).losses
    net = stub(
        hyper={"label_smoothing": 0.1},
        network=lambda name: type("", (), {"initial": lambda self, n: ()})(),
        preference=lambda text, memory, method: (None, jnp.asarray(VALUE)),
    )
    found = loss(net, Minibatch(READING, jnp.asarray(MASK)))
    a, b, c, d, e, f, g, h = VALUE[LAST, np.arange(B)].reshape(2, 2 * D).T
    score = a * f - b * e + c * h - d * g
    logistic = lambda x: np.log1p(np.exp(-x))
    np.testing.assert_allclose(
        found.value, 0.9 * logistic(score) + 0.1 * logistic(-score), rtol=1e-5
    )
    np.testing.assert_allclose(found.metrics["accuracy"], score > 0)


@pytest.fixture(scope="module")
def first():
    algorithm = preference_model(ENV, MODEL)
    return algorithm, start(algorithm, random.key(1)).state


def test_both_orders_add_up_to_one_whatever_the_weights(first):
    algorithm, state = first
    found = all_answers(ENV)
    preference = np.asarray(compare_answers(ENV, algorithm.config, state.agent.parts, found))
    assert preference.shape == found.preference.shape and preference.std() > 0.01
    np.testing.assert_allclose(preference + preference.swapaxes(1, 2), 1, atol=1e-6)
    np.testing.assert_array_equal(np.diagonal(preference, axis1=1, axis2=2), 0.5)


def test_measures_are_those_of_the_policys_pairs(first):
    algorithm, state = first
    found, parts = all_answers(ENV), state.agent.parts
    share = np.exp(log_probs(ENV, algorithm.config, parts["actor_critic"].params))
    learned = np.asarray(compare_answers(ENV, algorithm.config, parts, found))
    gold, (prompts, answers) = np.asarray(found.preference), share.shape
    error = right = 0.0
    for p in range(prompts):
        pairs = [(i, j) for i in range(answers) for j in range(answers)]
        weight = np.array([share[p, i] * share[p, j] for i, j in pairs])
        off = np.array([learned[p, i, j] - gold[p, i, j] for i, j in pairs])
        error += np.sqrt((weight * off**2).sum()) / prompts
        agree = [
            0.5 if i == j else float((learned[p, i, j] > 0.5) == (gold[p, i, j] > 0.5))
            for i, j in pairs
        ]
        right += (weight * agree).sum() / prompts
    measured = algorithm.measure(state, random.key(0))
    assert set(measured) <= set(algorithm.scores)
    np.testing.assert_allclose(measured["preference_error"], error, rtol=1e-4)
    np.testing.assert_allclose(measured["exact_accuracy"], right, rtol=1e-3)


# ------------------------------------------------------------------------------- as a judge


@group
class INPOOnPreferences(of_inpo.Config):
    """INPO by a preference model."""

    preference: PreferenceModel = PreferenceModel(planes=2)


def test_a_source_that_compares_answers_itself_is_refused():
    inpo = on_preferences("inpo_on_preferences", of_inpo.inpo, INPOOnPreferences)
    with pytest.raises(UserError, match="no judge"):
        inpo(ENV, SIZES | {"prompts": 4})


@both
def test_answers_are_compared_by_the_model_and_not_by_the_environment(builder, sizes):
    """A recipe sees an environment and episodes of the model's judge."""
    config = Static(builder.complete_config(SIZES | sizes))
    judges, batches = [], []

    def recipe_of(env):
        judges.append(env.judge)
        return Recipe({}, None, (), lambda net, batch: batches.append(batch) or net)

    algorithm = builder(ENV, SIZES | sizes)
    state = start(algorithm, random.key(0)).state
    _, batch, _ = algorithm.source.collect(state.source, algorithm.policy(state), random.key(1))
    columns = batch.mask.shape[1]
    value = jnp.asarray(RNG.normal(size=(len(batch.mask) + 1, columns, 4)).astype(np.float32))
    net = stub(
        network=lambda name: type("", (), {"initial": lambda self, n: ()})(),
        preference=lambda text, memory, method: (None, value),
    )
    judged_by(recipe_of, ENV, config).update(net, batch)
    assert judges == [losses.general_preference]
    ended = np.asarray(batch.mask & batch.transitions.done)
    expected = [value[np.argmax(ended[:, i]) + 1, i] for i in range(columns)]
    np.testing.assert_allclose(judged_of(batches[0]), expected, rtol=1e-6)
    assert not np.allclose(judged_of(batch)[:, :3], judged_of(batches[0])[:, :3])
    # In the time steps that are acted on it has the same shape, as in any batch.
    t = batches[0].transitions
    shapes = lambda x: jax.tree.map(jnp.shape, x.privileged)
    assert shapes(t.timestep) == shapes(t.next_timestep)


@both
def test_the_model_and_the_writer_of_its_pairs_are_taken_over(builder, sizes, first):
    model = first[1].agent
    agent = builder.agent(ENV, builder.complete_config(SIZES | sizes))
    own = agent.init(random.key(5), agent.hyper)
    adopted = agent.adopt(own, model)
    assert jax.tree.structure(adopted) == jax.tree.structure(own)
    assert same(adopted.parts["preference"].params, model.parts["preference"].params)
    for name in adopted.parts.keys() - {"preference"}:
        assert same(adopted.parts[name].params, model.parts["actor_critic"].params), name
    assert same(adopted.parts["actor_critic"].target, model.parts["actor_critic"].params)
    assert not jax.tree.leaves(adopted.parts["preference"].optimizer)


# ----------------------------------------------------------------------- cycles, and proxies

LEARNED = {"recurrent": 32, "transformer": 0, "learning_rate": 5e-3}
MANY = {"count": 32_768, "batch_size": 256, "learning_rate_steps": 300}


@pytest.mark.slow
def test_it_learns_preferences_that_go_round_and_a_reward_model_cannot():
    """The error of its probabilities, beside that of Bradley and Terry's by the best rewards."""
    found = all_answers(ENV)
    gold, runs = np.asarray(found.preference), {}
    for builder in (preference_model, reward_model):
        algorithm = builder(ENV, LEARNED | MANY)
        run, _ = train(algorithm, start(algorithm, random.key(0)), 300)
        runs[builder] = algorithm.config, run.state.agent.parts
    learned = np.asarray(compare_answers(ENV, *runs[preference_model], found))
    score = np.asarray(score_answers(ENV, *runs[reward_model], found))[0]
    pointwise = 1 / (1 + np.exp(score[:, None] - score[:, :, None]))
    error = lambda x: np.sqrt(((x - gold) ** 2).mean())
    assert error(learned) < 0.05, error(learned)
    assert error(pointwise) > 0.2, error(pointwise)
    # There are cycles of three answers, and the model says the same ones.
    beats = lambda x: np.where(x > 0.55, 1, 0)
    cycles = lambda x: int(np.einsum("pij,pjk,pki->", *[beats(x)] * 3)) // 3
    assert cycles(gold) > 10 and cycles(pointwise) == 0
    assert abs(cycles(learned) - cycles(gold)) < 0.2 * cycles(gold), cycles(learned)


@pytest.mark.slow
def test_a_policy_ends_at_the_equilibrium_of_the_models_game():
    """The equilibrium of the judge's game is elsewhere, since the model has seen few labels; the
    model's win rate against the reference is higher than the judge's."""
    labels = {"count": 64, "batch_size": 32, "planes": 2, "label_smoothing": 0.2}
    model = preference_model(ENV, LEARNED | labels)
    algorithm = stages(model, 100, egpo(ENV, LEARNED | {"prompts": 128, "eta": 2.0, "steps": 25}))
    begun = start(algorithm, random.key(0))
    after, _ = train(algorithm, begun, 600)
    parts = [run.state.agent.parts for run in (begun, after)]
    assert same(parts[0]["preference"].params, parts[1]["preference"].params)
    found, beta = all_answers(ENV), algorithm.config.beta
    learned = compare_answers(ENV, algorithm.config, parts[1], found)
    reference, now = (
        log_probs(ENV, algorithm.config, parts[i]["actor_critic"].params) for i in (0, 1)
    )
    gap = lambda preference, x: solvers.preference_gap(preference, x, reference, beta)
    assert (gap(learned, reference) > 0.05).all()
    assert (gap(learned, now) < 0.01).all(), gap(learned, now)
    assert (gap(found.preference, now) > 0.05).all(), gap(found.preference, now)
    assert (gap(found.preference, nash_answers(found.preference, reference, beta)) < 1e-3).all()
    measured = jax.jit(algorithm.measure)(after.state, random.key(0))
    assert set(measured) <= set(algorithm.scores)
    won = lambda preference: np.einsum(
        "pi,pij,pj->p", np.exp(now), preference, np.exp(reference)
    ).mean()
    np.testing.assert_allclose(measured["exact_proxy"], won(learned), rtol=1e-3)
    np.testing.assert_allclose(measured["win_rate"], won(found.preference), rtol=1e-3)
    assert measured["exact_proxy"] > measured["win_rate"] + 0.02
