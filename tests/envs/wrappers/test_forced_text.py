"""Forced texts: what is said after them, against the sum over all answers, and what is learned."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.grpo import grpo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start
from jaxrl.core.types import Policy
from jaxrl.envs.policies import random_policy
from jaxrl.envs.wrappers import expert_channel, expert_prefix, forced_text, start_key
from jaxrl.envs.wrappers.forced_text import Forced
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.exact.answers import answer_log_probs, enumerate_answers
from jaxrl.kit.groups import LinearTorso, Memory
from jaxrl.sources import episodes
from jaxrl.tasks import each, repeat, starts
from tests.algorithms.tokens.test_holes import Shifted

WORDS = envs.make("judged_words", letters=2, length=3)
SUMS = envs.make("addition", digits=2)
A, B, END = range(3)


def forcing(env, tokens, begin=0):
    """Return parameters that force these tokens."""
    length = env.params.forced.tokens.shape[0]
    padded = np.array([*tokens, *[END] * (length - len(tokens))], np.int32)
    return dataclasses.replace(env.params, forced=Forced(padded, begin, len(tokens)))


def play(env, policy, tasks=None, num_envs=64):
    source = episodes(env, num_envs, tasks)

    @jax.jit
    def collect():
        state = source.init(random.key(0), {}, policy)
        return source.collect(state, policy, random.key(1))[1]

    batch = collect()
    show = lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)
    return jax.tree.map(show, (batch.transitions, batch.mask))


def test_what_follows_has_the_probabilities_given_the_forced_part():
    """All words that begin so, of probabilities p(word) / p(beginning), are what is left."""
    env = forced_text(WORDS, 2)
    network = policy_network(WORDS, LinearTorso(), Memory(recurrent=8))
    whole = enumerate_answers(WORDS)
    t = jax.tree.map(lambda x: x[0], whole.transitions.timestep)
    weights = network.init(random.key(3), t, network.initial(len(t.first)))
    all_words = np.asarray(answer_log_probs(network, weights, whole))
    for tokens in ((B,), (B, A)):
        found = enumerate_answers(env, forcing(env, tokens))
        now = np.asarray(answer_log_probs(network, weights, found))
        begins = (np.asarray(whole.text)[:, : len(tokens)] == np.array(tokens, int)).all(1)
        every = np.exp(all_words[:, begins])
        rest = every / every.sum(1, keepdims=True)
        text = [tuple(row) for row in np.asarray(whole.text)[begins, len(tokens) :]]
        order = [text.index(tuple(row)) for row in np.asarray(found.text)]
        np.testing.assert_allclose(np.exp(now), rest[:, order], rtol=1e-5)
        reward = np.asarray(whole.reward)[:, begins]
        np.testing.assert_array_equal(found.reward, reward[:, order])


def test_a_text_is_forced_in_the_middle():
    """The mask has a hole there, and the reward is that of the whole word."""
    env = start_key(forced_text(WORDS, 2))
    params = forcing(forced_text(WORDS, 2), (B,), begin=1)
    t, mask = play(env, random_policy(env), starts(params, Start))
    decision = t.timestep.tokens["decision"]
    long = mask.sum(0) == 3  # of a word that went on after its first letter, to the end
    assert long.any() and not long.all()
    np.testing.assert_array_equal(decision[:, long].T, [[True, False, True]] * long.sum())
    assert (t.next_timestep.observation[1] == B)[long].all()
    np.testing.assert_array_equal(
        t.timestep.legal_actions[1, long], [[False, True, False]] * sum(long)
    )
    assert t.timestep.legal_actions[decision & mask].all()
    # The same words in the environment itself.
    plain = start_key(WORDS)

    def again(key, actions):
        carry = plain.reset(key, Start(WORDS.params, key))
        paid = 0.0
        for action in actions:
            after = plain.step(key, carry[0], action, Start(WORDS.params, key))
            paid = paid + jnp.where(carry[1].done, 0, after[1].reward)
            carry = after
        return paid

    keys = t.task[0]
    expected = jax.vmap(again)(keys[long], t.next_timestep.observation[:, long].T)
    np.testing.assert_allclose(np.where(mask, t.reward, 0).sum(0)[long], expected, rtol=1e-6)


def test_texts_come_from_a_table():
    env = forced_text(WORDS, 2)
    table = [forcing(env, tokens) for tokens in ((), (A,), (B, B))]
    rows = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(one) for one in x]), *table)
    t, mask = play(env, random_policy(env), each(rows), 6)
    forced = mask & ~t.timestep.tokens["decision"]
    np.testing.assert_array_equal(forced.sum(0), [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(t.next_timestep.observation[:2, [2, 5]], B)
    assert (t.next_timestep.observation[0, [1, 4]] == A).all()


def test_an_expert_begins():
    longest = 2
    env = expert_prefix(expert_channel(SUMS), longest)
    guess = lambda state, timestep, memory, key, greedy: (
        jax.random.randint(key, timestep.first.shape, 0, 9, jnp.int32),
        memory,
        {},
    )
    policy = Policy(guess, lambda n: ())
    t, mask = play(start_key(env), policy, repeat(starts(env.params, Start), 2), 2000)
    reading = SUMS.max_steps - 4  # an answer has up to four tokens
    decision, expert = t.timestep.tokens["decision"], t.timestep.privileged["expert_action"]
    forced = mask & ~decision & (np.arange(len(mask))[:, None] >= reading)
    said = t.next_timestep.observation
    np.testing.assert_array_equal(said[forced], expert[forced])
    assert (said[forced] != SUMS.action_space.n - 1).all()
    count = forced.sum(0)
    np.testing.assert_array_equal(count[::2], count[1::2])  # one start, one prefix
    # Only one token of sums with one digit is forced, since the next one would end them.
    single = expert[reading + 1] == SUMS.action_space.n - 1
    np.testing.assert_allclose(np.bincount(count[~single]) / (~single).sum(), 1 / 3, atol=0.05)
    assert count[single].max(initial=0) <= 1


def forced_shifts(env):
    """Return by how much GRPO moves the logits [2, V] of forced tokens, and of decisions."""
    network = Shifted(env.observation_space, env.action_space, widths=())
    config = {"recurrent": 0, "transformer": 0, "prompts": 4, "answers": 8, "epochs": 1}
    config |= {"minibatches": 1, "kl.weight": 0.1, "optimizer.eps": 1e-8, "num_shards": 1}
    algorithm = grpo(env, config, networks={"actor_critic": network})
    state = start(algorithm, random.key(0)).state
    after, _ = jax.jit(algorithm.step)(state, random.key(1))
    return np.asarray(after.agent.parts["actor_critic"].params["params"]["logit_shift"])


@pytest.mark.slow
def test_forced_tokens_are_not_learned():
    shifts = forced_shifts(expert_prefix(envs.make("addition", digits=1, high=3), 1))
    assert not shifts[0].any() and (shifts[1] != 0).all()


def test_what_cannot_be_forced_is_refused():
    with pytest.raises(UserError, match=r"length of the forced text of .* is 0; it must be"):
        forced_text(WORDS, 0)
    with pytest.raises(UserError, match="'cartpole' has none; it needs a vocabulary"):
        forced_text(envs.make("cartpole"), 2)
    with pytest.raises(UserError, match="'judged_words' has no expert"):
        expert_prefix(WORDS, 2)
    silent = dataclasses.replace(SUMS, reset=lambda key, params: _without_tokens(SUMS, key, params))
    with pytest.raises(UserError, match="does not tell its decisions"):
        expert_prefix(silent, 2)
    assert forced_text(WORDS, 2) is forced_text(WORDS, 2)


def _without_tokens(env, key, params):
    state, timestep = env.reset(key, params)
    return state, dataclasses.replace(timestep, tokens=None)
