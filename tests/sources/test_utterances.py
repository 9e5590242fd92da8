"""Utterances that are said anew: what is copied, where they begin and end, and who says them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.sources import branch_at_turns, episodes, renew_utterances

LETTERS = 3
ENV = envs.make("guess_letter", letters=LETTERS, turns=3)
BEFORE, EQUALS = LETTERS, LETTERS + 1


def act(state, timestep, memory, key, greedy):
    """Say `state["sign"]`, and any letter."""
    legal = timestep.legal_actions
    wish = jnp.where(jnp.arange(legal.shape[-1]) == state["sign"], 9.0, 0.0)
    logits = jnp.where(legal, wish, -1e9)
    action = jax.random.categorical(key, logits)
    return action, memory, {"log_prob": jax.nn.log_softmax(logits).max(-1)}


def policy(sign):
    return Policy(act, lambda n: (), {"sign": jnp.float32(sign)})


def collect(source, signs):
    state = source.init(random.key(0), {}, policy(signs[0]))
    play = jax.jit(source.collect)
    for i, sign in enumerate(signs):
        state, batch, _ = play(state, policy(sign), random.key(i + 1))
    return batch


def check_pairs(batch, same_length):
    """Check that the columns of each pair are alike up to the utterance; return its place."""
    t, mask = batch.transitions, np.asarray(batch.mask)
    anew, action = np.asarray(t.extras["anew"]), np.asarray(t.action)
    turn = np.asarray(t.timestep.tokens["turn"])
    decides = np.asarray(t.timestep.tokens["decision"])
    begins = []
    for b in range(0, mask.shape[1], 2):
        steps = np.flatnonzero(anew[:, b + 1])
        first, last = steps[0], steps[-1]
        begins.append(turn[first, b + 1])
        np.testing.assert_array_equal(steps, [first, first + 1])
        assert decides[steps, b + 1].all() and (turn[steps, b + 1] == begins[-1]).all()
        before = slice(first)
        seen = np.asarray(t.observation)
        np.testing.assert_array_equal(seen[: first + 1, b], seen[: first + 1, b + 1])
        np.testing.assert_array_equal(action[before, b], action[before, b + 1])
        assert mask[: last + 1, b + 1].all() and mask[first, b]
        if same_length:
            np.testing.assert_array_equal(anew[:, b], anew[:, b + 1])
        else:
            assert not anew[:, b].any() and not mask[last + 1 :, b + 1].any()
    return np.array(begins)


def test_an_old_conversation_is_gone_on_with_by_todays_policy():
    source = renew_utterances(episodes(ENV, 64, keep_states=True), ENV, 128, 512)
    batch = collect(source, [BEFORE, BEFORE, EQUALS])
    begins = check_pairs(batch, same_length=False)
    # Questions never end a conversation, so there the three turns are equally likely.
    t = batch.transitions
    action, anew = np.asarray(t.action), np.asarray(t.extras["anew"])
    signs = action[:, 1::2].T[np.cumsum(anew[:, 1::2].T, 1) * anew[:, 1::2].T == 1]
    assert (signs == EQUALS).mean() > 0.99
    asked = action[0, ::2] == BEFORE
    assert 0.3 < asked.mean() < 0.7  # of two windows, the older one was overwritten by the newest
    counts = np.bincount(begins[asked], minlength=3)
    assert abs(counts / counts.sum() - 1 / 3).max() < 0.12
    assert source.env_steps == 64 * (ENV.max_steps or 0) and "env_state" not in t.extras


def test_a_branch_goes_its_own_way_from_an_utterance_to_the_end():
    source = branch_at_turns(episodes(ENV, 256, keep_states=True), ENV)
    batch = collect(source, [BEFORE])
    begins = check_pairs(batch, same_length=True)
    counts = np.bincount(begins, minlength=3)
    assert abs(counts / counts.sum() - 1 / 3).max() < 0.12
    t, mask = batch.transitions, np.asarray(batch.mask)
    np.testing.assert_array_equal((np.asarray(t.done) & mask).sum(0), 1)  # both are whole
    action = np.asarray(t.action)
    assert (action[:, ::2] != action[:, 1::2]).any(0).mean() > 0.5
    assert source.env_steps == batch.env_steps == 2 * 256 * (ENV.max_steps or 0)


def test_sizes_are_checked():
    with pytest.raises(UserError, match="capacity is 0"):
        renew_utterances(episodes(ENV, 4, keep_states=True), ENV, 0, 4)
