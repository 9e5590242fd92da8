"""Sequence-to-sequence reward models: what they read, feedback against loops, and the optimum."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.preferences.seq2seq_reward_model import correction_loss, seq2seq_reward_model
from jaxrl.algorithms.preferences.seq2seq_rm import seq2seq_rm
from jaxrl.algorithms.preferences.shared.correctors import (
    correct,
    corrector_of,
    feedback_of,
    given_texts,
    token_feedback,
)
from jaxrl.algorithms.preferences.shared.reward_models import PART, Reading
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Discrete
from jaxrl.core.train import start, train
from jaxrl.exact.answers import answer_log_probs, enumerate_answers
from jaxrl.kit import Minibatch
from jaxrl.networks.heads import Categorical
from tests.kit.stub import stub

ENV = envs.make("judged_words", letters=2, length=2)
FOUND = enumerate_answers(ENV)  # of 2 prompts, 7 words each
V, END = 3, 2
SIZES = {"recurrent": 16, "transformer": 1}


def reading(found):
    t = found.transitions
    return Reading(jax.tree.map(lambda x: x[:1], t.timestep), t.next_timestep)


def net_of(logits):
    """A net whose corrector is a table of logits [N, B, V]; it remembers the tokens it read."""
    read = types.SimpleNamespace()

    def reward(timestep, memory, method):
        read.tokens, read.first = timestep.observation, timestep.first
        return Categorical(jax.nn.log_softmax(jnp.asarray(logits))), None, ()

    known = types.SimpleNamespace(
        observation_space=Discrete(V + 2), action_space=Discrete(V), initial=lambda n: ()
    )
    return stub(reward=reward, network=lambda name: known), read


def test_a_corrector_reads_the_text_and_then_an_answer():
    given = given_texts(reading(FOUND), FOUND.within, V)
    words = np.asarray(FOUND.text)
    columns = len(words) * 2
    assert given.source.shape == (3, columns) and given.answer.shape == (2, columns)
    for b in range(columns):
        word, prompt = words[b % len(words)], b // len(words)
        said = list(word[: list(word).index(END) + 1] if END in word else word)
        assert list(np.asarray(given.source[:, b])) == [prompt, *said, *[V] * (2 - len(said))]
        assert list(np.asarray(given.answer[: len(said), b])) == said
        assert given.count[b] == len(said) == np.asarray(given.valid[:, b]).sum()
    other = jnp.roll(given.answer, 1, 1)
    logits = np.random.default_rng(0).normal(size=(5, columns, V)).astype(np.float32)
    net, read = net_of(logits)
    policy = correct(net, given, other)
    np.testing.assert_array_equal(read.tokens[:3], given.source)
    assert (read.tokens[3] == V + 1).all() and (read.tokens[4] == other[0]).all()
    assert read.first[0].all() and not read.first[1:].any()
    np.testing.assert_allclose(policy.logits, jax.nn.log_softmax(logits[3:]), rtol=1e-6)


def test_tokens_are_paid_until_they_differ_and_cost_where_they_do():
    rng = np.random.default_rng(0)
    agrees, count = rng.random((6, 300)) < 0.7, rng.integers(1, 7, 300)
    written = np.arange(6)[:, None] < count
    found = np.asarray(token_feedback(jnp.asarray(agrees), jnp.asarray(written), 2.0, 3.0))
    for b in range(300):
        alike = True
        for t in range(6):
            alike &= bool(agrees[t, b])
            value = 2.0 if alike else (0.0 if agrees[t, b] else -3.0)
            assert found[t, b] == (value if written[t, b] else 0)


def test_feedback_stands_at_the_tokens_that_were_written():
    columns = FOUND.within.shape[1]
    logits = np.random.default_rng(1).normal(size=(5, columns, V)).astype(np.float32)
    net, _ = net_of(logits)
    paid = np.asarray(feedback_of(net, reading(FOUND), FOUND.within, 1.0, 1.0))
    best, mask = logits[3:].argmax(-1), np.asarray(FOUND.mask)
    said = np.asarray(FOUND.transitions.action)
    for b in range(columns):
        alike, k = True, 0
        for t in range(2):
            if mask[t, b]:
                agrees = best[k, b] == said[t, b]
                alike, k = alike and agrees, k + 1
                assert paid[t, b] == (1 if alike else 0 if agrees else -1)
            else:
                assert paid[t, b] == 0


def test_the_loss_is_the_cross_entropy_of_the_preferred_answer_after_both():
    columns = FOUND.within.shape[1]
    logits = np.random.default_rng(2).normal(size=(5, columns, V)).astype(np.float32)
    net, read = net_of(logits)
    out = correction_loss.function(net, Minibatch(reading(FOUND), FOUND.within))
    given = given_texts(reading(FOUND), FOUND.within, V)
    answer, count = np.asarray(given.answer), np.asarray(given.count)
    log_p = np.asarray(jax.nn.log_softmax(logits[3:]))
    np.testing.assert_array_equal(read.tokens[4], np.repeat(answer[0, ::2], 2))
    for pair in range(columns // 2):
        each = []
        for b in (2 * pair, 2 * pair + 1):
            size = count[2 * pair]
            tokens = answer[:size, 2 * pair]
            each.append(-log_p[np.arange(size), b, tokens].mean())
        np.testing.assert_allclose(out.value[pair], np.mean(each), rtol=1e-5)
        np.testing.assert_allclose(out.metrics["correction_loss"][pair], each[1], rtol=1e-5)


@pytest.mark.slow
def test_the_optimum_writes_answers_by_how_often_they_are_preferred():
    """After an answer: what is preferred to it, or itself where it is preferred to another."""
    env = envs.make("judged_words", letters=2, length=1)
    found = enumerate_answers(env)  # of 2 prompts, 3 words of a token each
    sizes = {"recurrent": 16, "transformer": 1, "count": 16384, "batch_size": 256}
    algorithm = seq2seq_reward_model(env, sizes | {"optimizer.learning_rate": 5e-3})
    run, _ = train(algorithm, start(algorithm, random.key(0)), 300)
    parts, config = run.state.agent.parts, algorithm.config
    writer = policy_network(env, config.torso, config.memory)
    share = np.exp(answer_log_probs(writer, parts["actor_critic"].params, found))  # [P, A]
    network = corrector_of(env, config)
    net = types.SimpleNamespace(
        network=lambda name: network,
        reward=lambda *x, method: network.apply(parts[PART].params, *x, method=method),
    )
    given = given_texts(reading(found), found.within, V)
    learned = np.exp(correct(net, given, given.answer).logits[0]).reshape(2, 3, 3)
    word = np.asarray(found.text)[:, 0]
    for p in range(2):
        wins = np.where(np.eye(3), 0.5, np.asarray(found.preference[p]))
        rate = share[p] * wins.T + np.diag((share[p] * wins).sum(1))  # [text, answer]
        expected = rate / rate.sum(1, keepdims=True)
        np.testing.assert_allclose(learned[p][:, word], expected, atol=0.06)


def test_what_does_not_fit_is_refused():
    for builder in (seq2seq_rm, seq2seq_reward_model):
        with pytest.raises(UserError, match="A corrector reads and writes tokens"):
            builder(envs.make("signed_sums", numbers=2, largest=2), SIZES)
