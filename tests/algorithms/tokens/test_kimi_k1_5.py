"""Kimi k1.5: how answers are judged, and the exact solution of an iteration."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.kimi_k1_5 import judge_by_length_too, kimi_k1_5
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.core.train import advance, start
from jaxrl.exact.answers import answer_log_probs, enumerate_answers
from tests.algorithms.tokens.test_answers import LENGTH, MASK, RETURNS, B, T, batch
from tests.kit.stub import stub


def test_an_answer_is_judged_by_its_return_and_its_length():
    """Both count less the mean of the group."""
    x = batch()
    reward = jnp.where(MASK, x.transitions.reward, 0)
    after = dataclasses.replace(x.transitions.next_timestep, reward=reward)
    t = dataclasses.replace(x.transitions, next_timestep=after)
    x = dataclasses.replace(x, transitions=t, mask=jnp.asarray(MASK))
    found = judge_by_length_too(4)(stub(hyper={"length_weight": 0.3}), x)["advantage"]
    length, total = (LENGTH - 1).reshape(3, 4), RETURNS.reshape(3, 4).copy()
    for p in range(3):
        shortest, longest = length[p].min(), length[p].max()
        gain = 0.5 - (length[p] - shortest) / (longest - shortest)
        total[p] += 0.3 * np.where(total[p] > 0, gain, np.minimum(gain, 0))
    expected = (total - total.mean(1, keepdims=True)).reshape(-1)
    np.testing.assert_allclose(found, np.broadcast_to(expected, (T, B)), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_an_iteration_solves_the_regression_of_all_answers():
    """The solution by brute force: of all answers, whose own rewards are a part of the means."""
    env, size, temperature = envs.make("judged_words", letters=2, length=2), 4, 2.0
    found = enumerate_answers(env)
    settings = {"recurrent": 16, "transformer": 0, "prompts": 2048, "answers": size, "epochs": 20}
    settings |= {"minibatches": 8, "optimizer.learning_rate": 0.01, "temperature": temperature}
    algorithm = kimi_k1_5(env, replace(kimi_k1_5.Config(), settings))
    network = policy_network(env, algorithm.config.torso, algorithm.config.memory)
    exact = jax.jit(lambda params: answer_log_probs(network, params, found))
    run = start(algorithm, random.key(0))
    old = exact(run.state.agent.parts["actor_critic"].params)
    run, _ = jax.jit(lambda run: advance(algorithm, run))(run)
    new = exact(run.state.agent.parts["actor_critic"].params)

    mean = (jnp.exp(old) * found.reward).sum(-1, keepdims=True)
    advantage = (1 - 1 / size) * (found.reward - mean)

    def loss(logits):
        error = advantage - temperature * (jax.nn.log_softmax(logits) - old)
        return (jnp.exp(old) * jnp.square(error)).sum()

    step = lambda _, logits: logits - 0.1 * jax.grad(loss)(logits)
    solved = jax.nn.softmax(jax.jit(lambda x: jax.lax.fori_loop(0, 3000, step, x))(old))
    assert jnp.abs(solved - jnp.exp(old)).max() > 0.08
    np.testing.assert_allclose(jnp.exp(new), solved, atol=0.03)
