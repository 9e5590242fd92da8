"""Questions that need a tool, against all tables."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.conversing import AGENT, ENVIRONMENT, TOOL
from tests.envs.language.play import follow_expert, player, reset, until_end

KEYS, HOPS = 3, 2
TABLES = np.array(list(itertools.product(range(KEYS), repeat=KEYS)), np.int32)  # [27, 3]
CALL, ANSWER, ERROR = (KEYS + HOPS + i for i in range(3))


def ask(env, start, hops):
    """Return states [27] in which `start` is asked for, one with each table."""
    state, _ = reset(env, len(TABLES))
    answer = np.full(len(TABLES), start)
    for _ in range(hops):
        answer = TABLES[np.arange(len(TABLES)), answer]
    full = lambda x: jnp.full(len(TABLES), x, jnp.int32)
    memory = dataclasses.replace(
        state.memory,
        table=jnp.asarray(TABLES),
        answer=jnp.asarray(answer, jnp.int32),
        following=full(start),
        left=full(hops),
    )
    text = state.text.at[:, 0].set(start).at[:, 1].set(KEYS + hops - 1)
    return dataclasses.replace(state, memory=memory, text=text)


def play(env, state, *utterances):
    """Return the successes [27] of utterances, each [2] or [27, 2]."""
    row = [np.zeros((len(TABLES), 1), int)]  # while the prompt is read
    for said in utterances:
        row += [np.broadcast_to(said, (len(TABLES), 2)), np.zeros((len(TABLES), 1), int)]
    actions = np.concatenate(row, 1)[:, : env.max_steps]
    actions = np.pad(actions, ((0, 0), (0, env.max_steps - actions.shape[1])))
    t = player(env)(state, jnp.asarray(actions))
    running = until_end(t)
    return np.asarray(jnp.where(running, t.metrics["success"], 0).sum(1)), t, running


def test_what_can_be_known_without_and_with_calls():
    """Two pointers from `a` lead to a key that no policy knows better than by (2 N - 1) / N^2 = 5/9
    from a single call, of any key; the tool says all."""
    env = envs.make("lookup", keys=KEYS, hops=HOPS)
    state, answer = ask(env, 0, 2), TABLES[np.arange(27), TABLES[:, 0]]
    bound = (2 * KEYS - 1) / KEYS**2
    blind = [play(env, state, [ANSWER, k])[0].mean() for k in range(KEYS)]
    np.testing.assert_allclose(blind, [np.mean(answer == k) for k in range(KEYS)])
    np.testing.assert_allclose(max(blind), bound)  # one guesses `a`
    for called in range(KEYS):
        seen = TABLES[:, called]
        best = [np.bincount(answer[seen == k], minlength=KEYS).argmax() for k in range(KEYS)]
        guess = np.stack([np.full(27, ANSWER), np.array(best)[seen]], 1)
        found, *_ = play(env, state, [CALL, called], guess)
        assert found.mean() <= bound + 1e-6
    seen = TABLES[:, :1]
    read = TABLES[np.arange(27), TABLES[:, 0]][:, None]
    asks = np.concatenate([np.full((27, 1), CALL), seen], 1)
    says = np.concatenate([np.full((27, 1), ANSWER), read], 1)
    found, t, running = play(env, state, [CALL, 0], asks, says)
    assert (found == 1).all()
    paid = np.asarray(jnp.where(running, t.reward, 0).sum(1))
    np.testing.assert_allclose(paid, 1 + 2 * 0.1, rtol=1e-6)
    # The tool said what the table holds, and no one else.
    np.testing.assert_array_equal(t.observation[:, 3], TABLES[:, 0])
    np.testing.assert_array_equal(t.observation[:, 6], read[:, 0])
    speakers = np.asarray(t.tokens["speaker"])[0, :9]
    a = AGENT
    np.testing.assert_array_equal(speakers[:8], [a, a, TOOL, a, a, TOOL, a, a])


def test_what_is_no_call_and_no_answer_is_said_to_be_wrong():
    env = envs.make("lookup", keys=KEYS, hops=HOPS)
    state = ask(env, 0, 1)
    end = KEYS + HOPS + 3
    for said in ([CALL, CALL], [0, 1], [ERROR, 0], [CALL, end]):
        success, t, _ = play(env, state, said, said, said)
        assert (np.asarray(t.observation)[:, [3, 6]] == ERROR).all() and not success.any()
        assert not np.asarray(t.reward).any() and np.asarray(t.done)[:, 8].all()
        assert not np.asarray(t.done)[:, :8].any()
    # A call that leads nowhere is counted and answered, but not paid.
    _, t, running = play(env, state, [CALL, 2], [CALL, 2], [CALL, 2])
    assert not np.asarray(t.reward).any()
    np.testing.assert_array_equal(t.observation[:, 3], TABLES[:, 2])
    assert (np.asarray(jnp.where(running, t.metrics["calls"], 0).sum(1)) == 3).all()


def test_the_expert_answers_all_questions():
    for held_out in (False, True):
        env = envs.make("lookup", held_out=held_out, call_reward=0.25)
        state, t = follow_expert(env, 64)
        running = until_end(t)
        hops = np.asarray(state.text[:, 1]) - 7  # of 8 keys
        np.testing.assert_allclose(
            jnp.where(running, t.reward, 0).sum(1), 1 + 0.25 * hops, rtol=1e-6
        )
        decisions = np.asarray(running & t.tokens["decision"])
        assert decisions.any() and set(hops.tolist()) <= {1, 2}
        assert (np.asarray(t.tokens["speaker"])[decisions] == AGENT).all()
    first = reset(env, 4)[1]
    assert (np.asarray(first.tokens["speaker"]) == ENVIRONMENT).all()


def test_sizes_are_checked():
    with pytest.raises(UserError, match="keys is 1 and hops 2"):
        envs.make("lookup", keys=1)
    with pytest.raises(UserError, match="hops 0"):
        envs.make("lookup", hops=0)
