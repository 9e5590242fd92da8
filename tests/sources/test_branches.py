"""Branches: what they are worth, against the sum over all answers; where they begin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.rloo import rloo
from jaxrl.algorithms.tokens.shared.answers import decisions
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start
from jaxrl.core.types import Policy
from jaxrl.exact.answers import answer_log_probs, enumerate_answers
from jaxrl.sources import episodes, with_branches

WORDS = envs.make("judged_words", letters=2, length=3)
EPISODES = 6


def each_decision(batch):
    return decisions(batch.transitions.timestep, batch.mask)


def collect(env, policy, points, branches, num_envs=EPISODES):
    played = episodes(env, num_envs, keep_states=True)
    source = with_branches(played, env, each_decision, points, branches)
    state = source.init(random.key(0), {}, policy)
    return source, jax.jit(source.collect)(state, policy, random.key(1))[1]


def value_of(answers, now, prompt, said):
    """Return the expected return of answers that begin with what was said."""
    begins = (np.asarray(answers.text)[:, : len(said)] == np.array(said, int)).all(1)
    share = np.where(begins, np.exp(np.asarray(now)[prompt]), 0)
    return (share * np.asarray(answers.reward)[prompt]).sum() / share.sum()


@pytest.mark.slow
@pytest.mark.parametrize("memory", [{"transformer": 0}, {"transformer": 1, "attention_heads": 2}])
def test_the_mean_of_branches_is_the_expected_return(memory):
    algorithm = rloo(WORDS, {"recurrent": 16} | memory)
    run = start(algorithm, random.key(3))
    count, config = 4000, algorithm.config
    _, batch = collect(WORDS, algorithm.policy(run.state), 3, count)
    answers = enumerate_answers(WORDS)
    network = policy_network(WORDS, config.torso, config.memory)
    now = answer_log_probs(network, run.state.agent.parts["actor_critic"].params, answers)
    t, decided = batch.transitions, np.asarray(each_decision(batch))
    np.testing.assert_array_equal(t.extras["cut"], decided)
    assert "env_state" not in t.extras
    prompts = np.asarray(answers.transitions.timestep.observation[0]).reshape(*now.shape)[:, 0]
    later = 0
    for b in range(EPISODES):
        prompt = int(np.flatnonzero(prompts == int(t.timestep.observation[0, b]))[0])
        said = []
        for step in np.flatnonzero(decided[:, b]):
            expected = value_of(answers, now, prompt, said)
            error = abs(float(t.extras["value"][step, b]) - expected)
            assert error < 5 * float(answers.reward.std()) / count**0.5
            later += len(said) > 0
            said.append(int(t.action[step, b]))
    assert later > EPISODES


def test_only_the_first_points_count_and_all_steps_are_counted():
    algorithm = rloo(WORDS, {"recurrent": 8, "transformer": 0})
    policy = algorithm.policy(start(algorithm, random.key(0)).state)
    source, batch = collect(WORDS, policy, 1, 2)
    decided = np.asarray(each_decision(batch))
    first = decided & (np.cumsum(decided, 0) == 1)
    np.testing.assert_array_equal(batch.transitions.extras["cut"], first)
    assert (np.asarray(batch.transitions.extras["value"])[~first] == 0).all()
    assert source.env_steps == batch.env_steps == EPISODES * (WORDS.max_steps or 0) * 3


def asks_and_answers(env, keys):
    """A policy that calls the tool of `lookup` with the letter of the prompt, and says the reply.

    It remembers the number of steps and the letter.
    """
    call, answer = keys + 1, keys + 2

    def act(state, timestep, memory, key, greedy):
        number, letter = memory[:, 0], memory[:, 1]
        letter = jnp.where((number == 0) | (number == 4), timestep.observation, letter)
        action = jnp.select([number == 1, number == 4], [call, answer], letter)
        return action, jnp.stack([number + 1, letter], 1), {}

    return Policy(act, lambda n: jnp.zeros((n, 2), jnp.int32), ())


def test_a_policy_without_chance_does_from_everywhere_what_it_did():
    """The hidden table, the memory and the rewards so far are those of the episode."""
    env = envs.make("lookup", keys=4, hops=1)
    _, batch = collect(env, asks_and_answers(env, 4), 8, 2, num_envs=8)
    t, mask = batch.transitions, np.asarray(batch.mask)
    returns = np.where(mask, t.reward, 0).sum(0)
    np.testing.assert_allclose(returns, 1.1, rtol=1e-6)  # for the call, and for the answer
    cut = np.asarray(t.extras["cut"])
    assert (cut.sum(0) == 4).all()
    expected = np.where(cut, np.broadcast_to(returns, cut.shape), 0)
    np.testing.assert_allclose(t.extras["value"], expected, rtol=1e-6)


def test_sizes_below_one_are_refused():
    with pytest.raises(UserError, match="points is 0 and branches 9; both must be at least 1"):
        with_branches(episodes(WORDS, 4, keep_states=True), WORDS, each_decision, 0, 9)
