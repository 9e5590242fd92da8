"""T-REG: contrastive prompts, rewards of tokens, and exact credit."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences.dpo import dpo
from jaxrl.algorithms.preferences.shared.pairs import Sample
from jaxrl.algorithms.preferences.t_reg import t_reg, token_rewards
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.core.types import TimeStep
from jaxrl.kit import Minibatch
from tests.kit.stub import losses_of, stub

ENV = envs.make("judged_words", letters=2, length=2)
SIZES = {"recurrent": 16, "transformer": 0, "optimizer.learning_rate": 3e-3}
SMALL = SIZES | {"count": 64, "batch_size": 32, "beta": 0.5}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def texts():
    """Two pairs of texts of two tokens, [2, 4], which a table reads: rows of log-probabilities of
    the action by what is read, the last three after the prompt for worse answers."""
    read = jnp.array([[0, 1, 1, 2], [2, 0, 1, 1]])
    timestep = TimeStep(read, *(jnp.zeros((2, 4), bool),) * 4)
    table = np.log([0.8, 0.5, 0.2, 0.1, 0.5, 0.3])

    def answer(timestep, memory, method):
        policy = types.SimpleNamespace(log_prob=lambda action: table[timestep.observation])
        return policy, None, ()

    network = types.SimpleNamespace(initial=lambda n: ())
    return read, timestep, stub(prompted=answer, network=lambda name: network)


def test_a_token_is_worth_what_the_two_prompts_say_of_it():
    read, timestep, net = texts()
    found = token_rewards(net, timestep, jnp.zeros((2, 4), jnp.int32), tokens=3)
    each = sigmoid(np.log([0.8 / 0.1, 1.0, 0.2 / 0.3])) - 0.5
    np.testing.assert_allclose(found, each[np.asarray(read)], rtol=1e-5)


def test_chosen_answers_are_read_after_one_prompt_and_rejected_ones_after_the_other():
    read, timestep, net = texts()
    own = losses_of(t_reg.recipe(ENV, t_reg.complete_config(SMALL)))["prompted_loss"]
    mask = jnp.array([[True, True, True, True], [True, True, False, True]])
    found = own.function(net, Minibatch(Sample(timestep, jnp.zeros((2, 4), jnp.int32)), mask))
    table = np.log([0.8, 0.5, 0.2, 0.1, 0.5, 0.3])
    each = table[np.asarray(read) + 3 * np.array([0, 1, 0, 1])]
    total = np.where(mask, each, 0).sum(0)
    expected = -(total[[0, 2]] + total[[1, 3]]) / 2
    np.testing.assert_allclose(found.value, expected, rtol=1e-5)


def test_the_prompted_network_begins_anew_in_a_warm_start():
    agent = t_reg.agent(ENV, t_reg.complete_config(SMALL))
    own = agent.init(random.key(0), agent.hyper)
    other = dpo.agent(ENV, dpo.complete_config(SIZES | {"count": 64, "batch_size": 32}))
    other = other.init(random.key(1), other.hyper)
    adopted = agent.adopt(own, other)
    policy = other.parts["actor_critic"].params
    same = lambda a, b: all(map(np.array_equal, *map(jax.tree.leaves, (a, b))))
    assert same(adopted.parts["actor_critic"].params, policy)
    assert same(adopted.parts["actor_critic"].target, policy)
    assert same(adopted.parts["prompted"].params, own.parts["prompted"].params)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="small network of its own"):
        t_reg(ENV, SMALL | {"decoder.model": "folder"})


@pytest.mark.slow
def test_credit_of_few_pairs_agrees_better_with_the_exact_one():
    """Compare means of three seeds with DPO, by the settings of the configuration."""
    env, measured = envs.make("judged_words"), {}
    settings = {"count": 256, "batch_size": 128, "recurrent": 32, "transformer": 0, "beta": 0.5}
    settings |= {"optimizer.learning_rate": 3e-3, "prompted.learning_rate": 1e-2}
    for weight in (0.0, 1.0):
        algorithm = t_reg(env, settings | {"weight": weight})
        found = []
        for seed in range(3):
            run, _ = train(algorithm, start(algorithm, random.key(seed)), 200)
            policy = types.SimpleNamespace(state=run.state.agent)
            found.append(t_reg.measure(env, algorithm.config, policy, random.key(0)))
        measured[weight] = {k: float(np.mean([x[k] for x in found])) for k in found[0]}
    assert measured[1.0]["credit_correlation"] > measured[0.0]["credit_correlation"], measured
    assert measured[1.0]["exact_return"] > measured[0.0]["exact_return"], measured
