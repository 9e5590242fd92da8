"""Reward models that read features: which numbers they see, and how few labels they need."""

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences.domain_reward_model import domain_reward_model
from jaxrl.algorithms.preferences.reward_model import reward_model
from jaxrl.algorithms.preferences.shared.measures import all_answers
from jaxrl.algorithms.preferences.shared.ratings import ratings_of
from jaxrl.algorithms.preferences.shared.reward_models import Judges, on_scores, score_answers
from jaxrl.algorithms.tokens import ppo_max as of_ppo_max
from jaxrl.algorithms.tokens import rloo as of_rloo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.kit import group
from jaxrl.kit.stages import stages

ENV = envs.make("ruled_words", letters=2, length=2, tastes=3, seed=6)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 5e-3}


@group
class OnFeatures(of_rloo.Config):
    """RLOO on the scores of reward models that read features."""

    reward: Judges = Judges(reads="features")


rloo = on_scores("rloo_on_features", of_rloo.rloo, OnFeatures)


@group
class PPOMaxOnFeatures(of_ppo_max.Config):
    """PPO-max on the scores of reward models that read features."""

    reward: Judges = Judges(reads="features")


def test_a_score_is_a_perceptron_of_the_components():
    algorithm = domain_reward_model(
        ENV, SIZES | {"count": 16, "batch_size": 8, "members": 2, "feature_hidden": (5,)}
    )
    state = start(algorithm, random.key(0)).state
    parts = state.agent.parts
    found = np.asarray(score_answers(ENV, algorithm.config, parts, all_answers(ENV)))
    features = np.stack([ratings_of(ENV)[f"taste_{k}"] for k in range(3)], -1)
    leaves = jax.tree.leaves(parts["reward"].params)
    assert sum(x[0].size for x in leaves) == 3 * 5 + 5 + 5 + 1  # and reads nothing else
    for member in range(2):
        one = jax.tree.map(lambda x, i=member: np.asarray(x[i]), parts["reward"].params)
        (first, second) = (one["params"]["torso"], one["params"]["head"])
        kernel, bias = (next(v for k, v in _flat(first) if k == n) for n in ("kernel", "bias"))
        hidden = np.tanh(features @ kernel + bias)
        expected = (hidden @ second["kernel"] + second["bias"])[..., 0]
        np.testing.assert_allclose(found[member], expected, rtol=1e-4, atol=1e-5)


def _flat(tree):
    return [(path[-1].key, x) for path, x in jax.tree_util.tree_leaves_with_path(tree)]


def test_features_that_nobody_says_and_scores_of_tokens_are_refused():
    with pytest.raises(UserError, match="reads is features, but 'judged_words' says none"):
        domain_reward_model(envs.make("judged_words"), SIZES)
    with pytest.raises(UserError, match="cannot score every token by features"):
        domain_reward_model(ENV, SIZES | {"dense": True})


@pytest.mark.slow
def test_features_need_a_tenth_of_the_labels():
    env = envs.make("ruled_words", length=4, seed=3)

    def accuracy(builder, count):
        algorithm = builder(env, SIZES | {"count": count, "batch_size": 32})

        def one(key):
            run, _ = train(algorithm, start(algorithm, key), 300)
            return algorithm.measure(run.state, key)["exact_accuracy"]

        return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(random.key(0), 4)))

    few, many = accuracy(domain_reward_model, 64), accuracy(reward_model, 640)
    assert few.mean() > 0.75 and few.mean() > many.mean() - 0.02, (few, many)


def test_a_critic_of_its_own_begins_as_the_policy_since_the_model_reads_no_text():
    ppo_max = on_scores("ppo_max_on_features", of_ppo_max.ppo_max, PPOMaxOnFeatures)
    sizes = {"recurrent": 16, "transformer": 0}
    agent = ppo_max.agent(ENV, sizes | {"prompts": 4, "answers": 2})
    model = domain_reward_model.agent(ENV, sizes | {"count": 16, "batch_size": 8})
    own = agent.init(random.key(0), agent.hyper)
    other = model.init(random.key(1), model.hyper)
    adopted = agent.adopt(own, other)
    assert jax.tree.structure(adopted) == jax.tree.structure(own)
    found = jax.tree.leaves(adopted.parts["critic"].params)
    expected = jax.tree.leaves(other.parts["actor_critic"].params)
    assert all(np.array_equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.slow
def test_policies_learn_from_scores_of_features():
    model = domain_reward_model(ENV, SIZES | {"count": 64, "batch_size": 32})
    learner = {"prompts": 32, "answers": 8, "kl.weight": 0.1, "learning_rate": 1e-2}
    algorithm = stages(model, 100, rloo(ENV, SIZES | learner))
    begun = start(algorithm, random.key(0))
    after, _ = train(algorithm, begun, 60)
    measure = jax.jit(algorithm.measure)
    first, last = (measure(run.state, random.key(0)) for run in (begun, after))
    assert last["exact_proxy"] > first["exact_proxy"] + 0.3, (first, last)
    assert last["exact_return"] > first["exact_return"] + 0.2, (first, last)
