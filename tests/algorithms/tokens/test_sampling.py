"""Answers at a temperature and from a nucleus: their exact distribution, its record, and what
losses learn of it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.grpo import grpo
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.token_reinforce import token_reinforce
from jaxrl.algorithms.tokens.token_supervised import token_supervised
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import evaluation_policy
from jaxrl.core.settings import Static
from jaxrl.core.train import advance, start
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.exact.answers import enumerate_answers
from tests.kit.stub import losses_of, stub

ENV = envs.make("judged_words", letters=2, length=2)
TEMPERATURE, TOP_P = 0.7, 0.75
SMALL = {"recurrent": 8, "transformer": 0, "prompts": 256, "answers": 8}
SAMPLING = {"sampling.temperature": TEMPERATURE, "sampling.top_p": TOP_P, "nucleus": True}


@functools.cache
def begin(builder=grpo, **changes):
    """An algorithm and its state, whose policy is far from uniform."""
    algorithm = builder(
        ENV, SMALL | SAMPLING | {n.replace("__", "."): x for n, x in changes.items()}
    )
    run = start(algorithm, random.key(0))
    agent = run.state.agent
    part = agent.parts["actor_critic"]
    noisy = lambda x: x + 0.6 * jax.random.normal(jax.random.key(x.size), x.shape)
    part = dataclasses.replace(part, params=jax.tree.map(noisy, part.params))
    agent = dataclasses.replace(agent, parts={**agent.parts, "actor_critic": part})
    return algorithm, dataclasses.replace(run, state=dataclasses.replace(run.state, agent=agent))


def logits_of(algorithm, params, timestep):
    """Logits [T, N, V] of the network alone."""
    network = policy_network(ENV, algorithm.config.torso, algorithm.config.memory)
    memory = network.initial(timestep.first.shape[1])
    return network.apply(params, timestep, memory, method="unroll")[0].logits


def sampled_from(logits, temperature, top_p):
    """Probabilities [T, N, V] by NumPy, and which tokens are in the nucleus."""
    p = np.exp(np.where(logits > -1e8, logits / temperature, -np.inf))
    p = p / p.sum(-1, keepdims=True)
    order = np.argsort(-p, -1)
    likelier = np.cumsum(np.take_along_axis(p, order, -1), -1) - np.take_along_axis(p, order, -1)
    kept = np.zeros(p.shape, bool)
    np.put_along_axis(kept, order, likelier < top_p, -1)
    kept &= p > 0
    p = np.where(kept, p, 0)
    return p / p.sum(-1, keepdims=True), kept


@functools.cache
def exact():
    """All answers, their probabilities [P, A] and the nucleus [T, P * A, V]."""
    algorithm, run = begin()
    found = enumerate_answers(ENV)
    t = found.transitions
    logits = logits_of(algorithm, run.state.agent.parts["actor_critic"].params, t.timestep)
    p, kept = sampled_from(np.asarray(logits), TEMPERATURE, TOP_P)
    each = np.take_along_axis(p, np.asarray(t.action)[..., None], -1)[..., 0]
    whole = np.where(found.mask, each, 1).prod(0).reshape(found.reward.shape)
    return found, whole, kept


@functools.cache
def sample():
    algorithm, run = begin()
    policy = algorithm.policy(run.state)
    assert algorithm.source is not None
    return algorithm.source.collect(run.state.source, policy, random.key(5))[1]


def texts(t, mask):
    """A word for each column: its tokens where the policy decides."""
    action, mask = np.asarray(t.action), np.asarray(mask)
    return [tuple(column[own]) for column, own in zip(action.T, mask.T, strict=True)]


def test_answers_have_the_exact_probability_that_is_recorded_of_them():
    found, probability, kept = exact()
    assert (probability == 0).any() and not kept.all()
    np.testing.assert_allclose(probability.sum(-1), 1, rtol=1e-5)
    size = probability.shape[1]
    prompts = np.asarray(found.transitions.timestep.observation)[0].reshape(-1, size)
    names = np.array(texts(found.transitions, found.mask), object).reshape(-1, size)
    known = {
        (int(prompts[i, j]), names[i, j]): probability[i, j]
        for i in range(len(prompts))
        for j in range(size)
    }
    batch = sample()
    t, mask = batch.transitions, answers.decisions(batch.transitions.timestep, batch.mask)
    recorded = np.asarray(t.extras["log_prob"])
    begins, words = np.asarray(t.timestep.observation)[0], texts(t, mask)
    total = np.exp(np.where(mask, recorded, 0).sum(0))
    expected = [known[int(a), b] for a, b in zip(begins, words, strict=True)]
    np.testing.assert_allclose(total, expected, rtol=1e-4)
    for prompt in set(begins.tolist()):
        own = [w for a, w in zip(begins, words, strict=True) if a == prompt]
        for (a, word), p in known.items():
            if a == prompt:
                deviation = np.sqrt(p * (1 - p) / len(own))
                assert abs(own.count(word) / len(own) - p) <= 4.5 * deviation + 1e-9


def net_of(algorithm, run):
    """A function from parameters to a net with them, and the run's parameters."""
    agent = run.state.agent
    network = policy_network(ENV, algorithm.config.torso, algorithm.config.memory)

    def build(params):
        apply = functools.partial(network.apply, params)
        return stub(actor_critic=apply, network=lambda name: network, hyper=agent.hyper)

    return build, agent.parts["actor_critic"].params


def test_before_a_gradient_step_the_policy_that_learns_is_the_one_that_sampled():
    """The probability ratio is 1, and the entropy that of the nucleus."""
    algorithm, run = begin()
    build, params = net_of(algorithm, run)
    t = sample().transitions
    x = answers.Sample(t.timestep, t.action, allowed=t.extras["allowed"])
    now = answers.evaluate(build(params), x)
    mask = np.asarray(sample().mask)
    np.testing.assert_allclose(
        np.asarray(now.log_prob)[mask], np.asarray(t.extras["log_prob"])[mask], atol=1e-5
    )
    logits = np.asarray(logits_of(algorithm, params, t.timestep))
    p, kept = sampled_from(logits, TEMPERATURE, TOP_P)
    np.testing.assert_array_equal(kept[mask], np.asarray(t.extras["allowed"])[mask])
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
    np.testing.assert_allclose(np.asarray(now.entropy)[mask], entropy[mask], atol=1e-4)
    plain = answers.evaluate(build(params), x, as_sampled=False)
    assert np.abs(plain.log_prob - now.log_prob)[mask].max() > 0.05


@pytest.mark.parametrize("aware", [True, False])
def test_the_policy_gradient_is_that_of_the_return_of_what_is_sampled(aware):
    """The expectation over all answers is exact; a loss that ignores the nucleus has another."""
    algorithm, run = begin(token_reinforce)
    build, params = net_of(algorithm, run)
    found, probability, kept = exact()
    t, reward = found.transitions, found.reward.reshape(-1)
    allowed = jnp.asarray(kept) if aware else None
    x = answers.Sample(t.timestep, t.action, advantage=reward[None] * jnp.ones(t.done.shape))
    x = dataclasses.replace(x, log_prob=x.advantage, reference=x.advantage, allowed=allowed)
    loss = losses_of(token_reinforce.recipe(ENV, Static(algorithm.config)))["loss"]

    def estimate(params):
        value = loss(build(params), x).value
        return (jnp.where(found.mask, value, 0).sum(0) * probability.reshape(-1)).sum()

    def objective(params):
        logits = logits_of(algorithm, params, t.timestep) / TEMPERATURE
        log_p = jax.nn.log_softmax(jnp.where(kept, logits, -1e9))
        each = jnp.take_along_axis(log_p, t.action[..., None], -1)[..., 0]
        total = jnp.where(found.mask, each, 0).sum(0)
        return -(jnp.exp(total) * reward).sum()

    ravel = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
    got, want = (ravel(jax.jit(jax.grad(f))(params)) for f in (estimate, objective))
    if aware:
        np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())
    else:
        assert np.abs(got - want).max() > 0.1 * np.abs(want).max()


@pytest.mark.slow
def test_evaluations_have_a_temperature_of_their_own():
    """Near 0 samples are greedy; training goes on at its own."""
    algorithm, run = begin(evaluation__temperature=1e-4, evaluation__top_p=1.0)
    greedy, sampled = (
        evaluate(ENV, evaluation_policy(algorithm, run.state), random.key(1), 64, greedy)
        for greedy in (True, False)
    )
    np.testing.assert_array_equal(greedy.returns, sampled.returns)
    training = evaluate(ENV, algorithm.policy(run.state), random.key(1), 64, False)
    assert (training.returns != greedy.returns).any()
    state = evaluation_policy(algorithm, run.state).state
    assert float(state.hyper["sampling.top_p"]) == 1
    assert float(run.state.agent.hyper["sampling.temperature"]) == np.float32(TEMPERATURE)


def test_tokens_of_the_prompt_are_forced_at_any_temperature():
    env = envs.make("addition", digits=1)
    settings = SMALL | SAMPLING | {"sampling.temperature": 5.0, "prompts": 2, "answers": 2}
    algorithm = grpo(env, settings)
    policy = algorithm.policy(start(algorithm, random.key(0)).state)
    _, timestep = jax.vmap(env.reset, in_axes=(0, None))(random.key(1)[None], env.params)
    action, _, extras = policy.act(policy.state, timestep, policy.memory(1), random.key(2), False)
    assert timestep.legal_actions.sum() == 1 and timestep.legal_actions[0, action[0]]
    assert float(extras["log_prob"][0]) == 0
    np.testing.assert_array_equal(extras["allowed"], timestep.legal_actions)


def test_sampling_that_has_no_effect_is_refused():
    with pytest.raises(UserError, match=r"sampling.top_p is 0.9, but sampling.nucleus is off"):
        grpo(ENV, SMALL | {"sampling.top_p": 0.9})
    with pytest.raises(UserError, match=r"evaluation.top_p is 0.5, but sampling.nucleus is off"):
        grpo(ENV, SMALL | {"evaluation.top_p": 0.5})
    with pytest.raises(UserError, match="no sampling to set for actions in"):
        grpo(envs.make("pendulum"), SMALL | {"sampling.temperature": 0.5})


@pytest.mark.slow
def test_cloning_learns_the_policy_itself_at_any_temperature():
    env = envs.make("addition", digits=1)
    ends = []
    for temperature in (1.0, 0.5):
        settings = {"recurrent": 8, "transformer": 0, "num_envs": 8, "learning_rate": 1e-2}
        algorithm = token_supervised(env, settings | {"sampling.temperature": temperature})
        run, _ = advance(algorithm, start(algorithm, random.key(0)))
        ends.append(run.state.agent.parts["actor_critic"].params)
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_array_equal(a, b)
