"""Credit of tokens, against sums over all answers one by one."""

import jax
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core.examples import example_timestep
from jaxrl.exact.answers import answer_log_probs, enumerate_answers
from jaxrl.exact.token_credit import is_decided, token_advantages, token_log_probs
from jaxrl.kit.groups import LinearTorso, Memory

ENV = envs.make("judged_words", letters=2, length=2)
FOUND = enumerate_answers(ENV)
NETWORK = policy_network(ENV, LinearTorso(hidden=(), activation="tanh"), Memory(recurrent=8))
PARAMS = NETWORK.init(jax.random.key(3), example_timestep(ENV), NETWORK.initial(1))
WORDS = ["".join("ab"[i] for i in text if i < 2) for text in np.asarray(FOUND.text)]


def test_tokens_are_decisions_up_to_the_end_of_an_answer():
    expected = [[t <= len(word) for t in range(2)] for word in WORDS]
    np.testing.assert_array_equal(is_decided(FOUND), [expected, expected])


def test_log_probabilities_of_tokens_add_up_to_those_of_answers():
    each = token_log_probs(NETWORK, PARAMS, FOUND)
    assert each.shape == (2, 7, 2)
    np.testing.assert_allclose(each.sum(-1), answer_log_probs(NETWORK, PARAMS, FOUND), rtol=1e-5)
    assert (np.asarray(each)[~np.asarray(is_decided(FOUND))] == 0).all()
    # The first token has the probability of all words that begin with it.
    p = np.exp(np.asarray(each).sum(-1))
    for answer, word in enumerate(WORDS):
        begins = [i for i, x in enumerate(WORDS) if x[:1] == word[:1]]
        np.testing.assert_allclose(np.exp(each[:, answer, 0]), p[:, begins].sum(-1), rtol=1e-4)


def test_advantages_are_differences_of_expected_rewards():
    log_prob = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (2, 7)))
    found, p = np.asarray(token_advantages(FOUND, log_prob)), np.exp(np.asarray(log_prob))
    reward = np.asarray(FOUND.reward)
    total = reward - (p * reward).sum(-1, keepdims=True)
    np.testing.assert_allclose(found.sum(-1), total, atol=1e-5)
    for prompt in range(2):
        for answer, word in enumerate(WORDS):
            begins = [i for i, x in enumerate(WORDS) if x[:1] == word[:1]]
            share = p[prompt, begins] / p[prompt, begins].sum()
            after = (share * reward[prompt, begins]).sum()
            before = (p[prompt] * reward[prompt]).sum()
            np.testing.assert_allclose(found[prompt, answer, 0], after - before, atol=1e-5)
