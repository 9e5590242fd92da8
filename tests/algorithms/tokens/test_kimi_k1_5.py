"""Kimi k1.5: its first gradient, its optimizer, its rewards, its prompts, and that it learns."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.kimi_k1_5 import kimi_k1_5, shaped_reward
from jaxrl.algorithms.tokens.shared.answers import decisions, returns_of
from jaxrl.algorithms.tokens.shared.models import token_network
from jaxrl.core import memory, random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.exact.answers import answer_log_probs, enumerate_answers

ENV = envs.make("judged_words", letters=2, length=3)
SMALL = {"prompts": 4, "answers": 4, "recurrent": 16, "transformer": 0, "minibatches": 1}
SGD = {"optimizer.name": "sgd", "optimizer.learning_rate": 1.0, "max_grad_norm": 1e9}


def network():
    return token_network(ENV, kimi_k1_5.complete_config(SMALL))


def params_of(state):
    return state.agent.parts["actor_critic"].params


def collect_once(algorithm):
    """Return a new run, and a batch that its policy played."""
    assert algorithm.source is not None
    run = start(algorithm, random.key(0))
    batch = algorithm.source.collect(run.state.source, algorithm.policy(run.state), random.key(1))
    return run, batch[1]


@pytest.fixture(scope="module", params=[0.1, 10.0])
def first_step(request):
    algorithm = kimi_k1_5(ENV, SMALL | SGD | {"temperature": request.param, "length.weight": 0.5})
    assert algorithm.agent is not None

    @jax.jit
    def step():
        run, batch = collect_once(algorithm)
        agent, info = algorithm.agent.update(run.state.agent, batch, random.key(2))
        return run, batch, agent.parts["actor_critic"].params, info.feedback

    return algorithm, *step()


def test_its_first_gradient_is_equation_3_whatever_the_temperature(first_step):
    _, run, batch, after, _ = first_step
    before = params_of(run.state)
    length = np.asarray(decisions(batch.transitions.timestep, batch.mask)).sum(0).reshape(4, 4)
    reward = np.asarray(returns_of(batch)).reshape(4, 4)
    low, high = length.min(1, keepdims=True), length.max(1, keepdims=True)
    gain = np.where(high > low, 0.5 - (length - low) / np.maximum(high - low, 1), 0)
    reward = reward + 0.5 * np.where(reward > 0, gain, np.minimum(gain, 0))
    centered = jnp.asarray((reward - reward.mean(1, keepdims=True)).ravel())

    def objective(params):
        blank = memory.shrink(network().initial(16))
        policy = network().apply(params, batch.transitions.timestep, blank, method="unroll")[0]
        mask = decisions(batch.transitions.timestep, batch.mask)
        log_prob = jnp.where(mask, policy.log_prob(batch.transitions.action), 0).sum(0)
        return (centered * log_prob).mean()

    expected = jax.tree.leaves(jax.grad(objective)(before))
    found = jax.tree.leaves(jax.tree.map(jnp.subtract, after, before))
    assert max(np.abs(x).max() for x in expected) > 0.01
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_it_tells_the_prompts_which_answers_were_right(first_step):
    algorithm, run, batch, _, feedback = first_step
    state = algorithm.source.feedback(run.state.source, batch, feedback).tasks.scores
    ids, right = np.asarray(batch.transitions.task[0]), np.asarray(returns_of(batch)) > 0
    assert (ids.reshape(4, 4) == ids.reshape(4, 4)[:, :1]).all()
    for number in set(ids.tolist()):
        np.testing.assert_allclose(state.score[number], right[ids == number].mean(), rtol=1e-6)
    assert state.seen.sum() == len(set(ids.tolist()))


def test_every_iteration_begins_with_a_new_optimizer():
    algorithm = kimi_k1_5(ENV, SMALL | {"minibatches": 2, "epochs": 3})
    run = jax.jit(lambda key: train(algorithm, start(algorithm, key), 2)[0])(random.key(0))
    optimizer = run.state.agent.parts["actor_critic"].optimizer
    counts = [x for x in jax.tree.leaves(optimizer) if jnp.issubdtype(x.dtype, jnp.integer)]
    assert counts and all(x == 6 for x in counts)


def test_length_counts_from_its_beginning_on():
    reward, mask = np.zeros((3, 4), np.float32), np.arange(3)[:, None] < np.array([1, 3, 2, 3])
    reward[0] = [1, 1, 1, -1]
    known = SimpleNamespace(transitions=SimpleNamespace(reward=jnp.asarray(reward)), mask=mask)
    own = SimpleNamespace(length=SimpleNamespace(begin=10.0, weight=2.0))
    for env_steps, weight in ((0.0, 0), (10.0, 2)):
        net: Any = SimpleNamespace(hyper=own, env_steps=env_steps)
        batch: Any = known
        found = shaped_reward(net, batch, 4)
        expected = np.array([[1, 1, 1, -1]]) + weight * np.array([[0.5, -0.5, 0, -0.5]])
        np.testing.assert_allclose(found, expected)


def test_minibatches_hold_whole_groups():
    with pytest.raises(UserError, match="groups of 4 sequences"):
        kimi_k1_5(ENV, SMALL | {"minibatches": 3})


def test_it_finds_the_best_words():
    settings = {"prompts": 16, "answers": 8, "minibatches": 2, "learning_rate": 0.01}
    algorithm = kimi_k1_5(ENV, SMALL | settings | {"temperature": 0.3})
    answers = enumerate_answers(ENV)
    best = answers.reward.max(-1).mean()

    def value(state):
        log_prob = answer_log_probs(network(), params_of(state), answers)
        return (jnp.exp(log_prob) * answers.reward).sum(-1).mean()

    @jax.jit
    def learn(key):
        run = start(algorithm, key)
        return value(run.state), value(train(algorithm, run, 60)[0].state)

    before, after = learn(random.key(0))
    assert before < 0.5 * best and after > 0.9 * best
