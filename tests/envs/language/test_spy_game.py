"""Spy game: what readers see, what may be said, and what a vote pays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.spy_game import Params, number_of_clues, payoffs, spy_token

ENV = envs.make("spy_game")
WORDS = ENV.vocabulary


def play(env, say, seed=0):
    """Return the text of a game in words, and the time steps; say(state, legal words) -> word."""
    state, timestep = env.reset(jax.random.key(seed), env.params)
    step = jax.jit(env.step)
    steps = [timestep]
    while not steps[-1].done:
        legal = [env.vocabulary[i] for i in np.flatnonzero(steps[-1].legal_actions)]
        word = say(state, legal) if steps[-1].tokens["decision"] else legal[0]
        action = jnp.int32(env.vocabulary.index(word))
        state, timestep = step(jax.random.key(len(steps)), state, action, env.params)
        steps.append(timestep)
    return [env.vocabulary[int(s.observation)] for s in steps], steps, state.memory


def views(words, steps):
    """Return the words that each reader sees, and says."""
    begins = [i for i, step in enumerate(steps) if step.tokens["restart"]]
    return [words[a:b] for a, b in zip(begins, [*begins[1:], None], strict=True)]


@pytest.mark.parametrize("rounds", [1, 2])
def test_readers_see_their_own_scene_and_the_clues_before(rounds):
    env = envs.make("spy_game", attributes=6, rounds=rounds, edits=3)
    count = 3 * rounds
    assert number_of_clues(env) == count
    for seed in range(4):
        words, steps, memory = play(env, lambda state, legal: legal[-1], seed)
        assert (memory.scene != memory.edited).sum() == 3
        texts = views(words, steps)
        clues = [text[-1] for text in texts[:count]]
        assert len(texts) == count + 1 and len(set(clues)) == count
        for k, text in enumerate(texts):
            spy = k < count and k % 3 == memory.spy
            seen = memory.edited if spy else memory.scene
            scene = [f"{a}{v}" for a, v in zip("abcdef", seen, strict=True)]
            assert text[0] == ("@" if k == count else "!" if spy else "=")
            assert text[1:7] == scene and text[7:-1] == clues[:k]
            if spy:
                assert env.vocabulary.index(text[0]) == spy_token(env)
        assert [s.tokens["turn"] for s in steps[:: len(steps) - 1]] == [0, count]


def test_payoffs_sum_to_zero_and_are_those_of_the_formula():
    rng = np.random.default_rng(0)
    for _ in range(10):
        votes, spy = rng.integers(0, 5, 4).astype(np.float32), rng.integers(4)
        paid = payoffs(jnp.asarray(votes), jnp.asarray(spy), Params(shared=0.2, own=0.3))
        civilians = np.delete(votes, spy)
        suspicion = votes[spy] - civilians.mean()
        expected = 0.2 * suspicion / 3 - 0.3 * (civilians - civilians.mean())
        np.testing.assert_allclose(paid[spy], -0.2 * suspicion, rtol=1e-5)
        np.testing.assert_allclose(np.delete(np.asarray(paid), spy), expected, atol=1e-6)
        np.testing.assert_allclose(paid.sum(), 0, atol=1e-6)


def test_a_vote_is_paid_by_whether_it_names_the_spy():
    for seed in range(3):
        for vote in "123?":
            _, steps, memory = play(
                ENV, lambda _, legal, v=vote: v if v in legal else legal[0], seed
            )
            last, spy = steps[-1], str(int(memory.spy) + 1)
            assert last.reward == (1 if vote == spy else -0.5 if vote == "?" else -1)
            assert last.metrics is not None
            assert last.metrics["success"] == (vote == spy)
            assert last.metrics["unsure"] == (vote == "?")
            votes = jnp.array([float(vote == x) for x in "123"])
            paid = [last.reward_components[f"player_{i}"] for i in range(3)]
            np.testing.assert_allclose(paid, payoffs(votes, memory.spy, ENV.params), atol=1e-6)
            assert all(step.reward == 0 for step in steps[:-1])


def test_the_expert_tells_the_truth_and_votes_by_contradictions():
    assert ENV.expert is not None
    expert, found = ENV.expert, []
    for seed in range(12):
        say = lambda state, legal: WORDS[int(expert(state, ENV.params))]
        words, steps, memory = play(ENV, say, seed)
        assert steps[-1].metrics is not None and steps[-1].metrics["true"] == 1
        spy = int(memory.spy)  # who names the attribute of its own number
        own = memory.edited[spy] != memory.scene[spy]
        assert words[-1] == (str(spy + 1) if own else "?")
        found.append(own)
    assert any(found) and not all(found)


def test_spy_game_is_a_sound_environment():
    envs.check_environment(ENV, steps=16)
    for settings, message in (({"attributes": 2}, "attributes 2"), ({"edits": 5}, "edits 5")):
        with pytest.raises(UserError, match=message):
            envs.make("spy_game", **settings)
