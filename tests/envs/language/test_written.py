"""Texts as episodes: from tokens alone, the same as from playing them."""

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.language.written import written_episodes
from jaxrl.envs.policies import add_noise, expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.sources import episodes, played_by

CASES = {"addition": {"digits": 1}, "lookup": {"keys": 3, "hops": 2}, "second_try": {"digits": 1}}


@pytest.mark.parametrize("name", CASES)
def test_a_text_is_the_episode_in_which_it_was_written(name):
    env = envs.make(name, **CASES[name])
    advised = expert_channel(env)
    noisy = add_noise(env, expert_policy(advised), 0.2)
    source = played_by(episodes(advised, 16), noisy)
    start, play = jax.random.split(random.key(0))
    state = source.init(start, source.hyper, noisy)
    batch = jax.jit(lambda: source.collect(state, noisy, play)[1])()
    played, running = jax.tree.map(np.asarray, (batch.transitions, batch.mask))
    length = running.sum(0) + 1
    assert len(set(length.tolist())) > 1 or name == "second_try"

    said = played.next_timestep.observation  # the action, or what was read in its place
    tokens = np.concatenate([played.observation[:1], said]).T
    decision, turn = (played.timestep.tokens[key] for key in ("decision", "turn"))
    utterance = np.concatenate([np.full((1, 16), -1), np.where(decision, turn, -1)]).T
    after = np.arange(tokens.shape[1]) >= length[:, None]
    tokens, utterance = (
        np.where(after, len(env.vocabulary) - 1, tokens),
        np.where(after, -1, utterance),
    )
    ours, mask = written_episodes(env, tokens, utterance, length)

    np.testing.assert_array_equal(mask, running)
    within = lambda x: np.where(mask.reshape(mask.shape + (1,) * (x.ndim - 2)), x, 0)
    same = lambda x, y: np.testing.assert_array_equal(within(x), within(y))
    same(ours.action, said)
    same(ours.next_timestep.terminated, played.terminated)
    for mine, theirs in (
        (ours.timestep, played.timestep),
        (ours.next_timestep, played.next_timestep),
    ):
        same(mine.observation, theirs.observation)
        same(mine.first, theirs.first)
    for key in ("decision", "turn"):
        same(ours.timestep.tokens[key], played.timestep.tokens[key])
    read = mask & ~decision
    legal = (x.timestep.legal_actions[read] for x in (ours, played))
    np.testing.assert_array_equal(*legal)
    assert ours.timestep.legal_actions[mask & decision].all()
    assert jax.tree.structure(ours.timestep) == jax.tree.structure(
        jax.eval_shape(env.reset, random.key(0), env.params)[1]
    )


def test_noise_replaces_a_share_of_the_tokens_by_others():
    """Prompts have no other token. Half of the answers' tokens are not the expert's."""
    env = expert_channel(envs.make("addition", digits=2))
    noisy = add_noise(env, expert_policy(env), 0.5)
    source = played_by(episodes(env, 2048), noisy)
    state = source.init(random.key(0), source.hyper, noisy)
    batch = jax.jit(lambda: source.collect(state, noisy, random.key(1))[1])()
    t, decision = batch.transitions, batch.mask & batch.transitions.timestep.tokens["decision"]
    wrong = t.action != t.timestep.privileged["expert_action"]
    assert not wrong[batch.mask & ~decision].any()
    np.testing.assert_allclose(wrong[decision].mean(), 0.5, atol=0.03)
    assert len(np.unique(t.action[decision & wrong])) == 13
    assert t.extras == {}


def test_noise_that_cannot_be_is_refused():
    env = expert_channel(envs.make("addition", digits=1))
    with pytest.raises(UserError, match=r"is 1\.5"):
        add_noise(env, expert_policy(env), 1.5)
