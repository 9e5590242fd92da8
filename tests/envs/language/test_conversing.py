"""The kit of token environments with turns, against a conversation in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment
from jaxrl.envs.language.conversing import (
    AGENT,
    ENVIRONMENT,
    TOOL,
    Grade,
    Reply,
    conversing,
)
from jaxrl.envs.language.prompts import split_prompts
from tests.envs.language.play import player, reset

VOCABULARY, END = (*"abc", "."), 3
LENGTHS, PROMPT, REPLIES = (2, 3, 1), (2, 0), 2
STOPS = 1  # an utterance whose first token this is ends the text


def begin(key, params):
    return jnp.array(PROMPT), jnp.zeros((), jnp.int32)


def respond(key, memory, said, params):
    """Say the number of the turn modulo 2 as often; pay for each token `a`, more in later turns."""
    letters = (said.tokens == 0).sum()
    memory = memory + letters
    reward = (params * letters * 10.0**said.turn).astype(jnp.float32)
    return Reply(
        jnp.full(REPLIES, said.turn % 2),
        memory,
        Grade(reward, said.ended.astype(jnp.float32), metrics={"letters": memory * 1.0}),
        done=said.tokens[0] == STOPS,
        count=said.turn,
        speaker=jnp.where(said.turn == 1, TOOL, ENVIRONMENT),
    )


def legal(memory, turn, place):
    """No `c` at the beginning."""
    return (jnp.arange(len(VOCABULARY)) != 2) | (place > 0)


ENV = conversing(
    "echo",
    VOCABULARY,
    LENGTHS,
    begin=begin,
    respond=respond,
    legal=legal,
    params=2.0,
    solve=lambda memory, turn, params: jnp.array([0, 0, END]),
)


def converse(actions):
    """Yield (observation, reward, done, letters, decision, turn, speaker, legal) of each step."""
    text, speakers, turn, letters = list(PROMPT), [ENVIRONMENT] * 2, 0, 0
    utterance, every = [], [True] * len(VOCABULARY)
    for position, action in enumerate(actions, start=1):
        reward, done = 0.0, False
        if position == len(text):
            text.append(action)
            speakers.append(AGENT)
            utterance.append(action)
            if action == END or len(utterance) == LENGTHS[turn]:
                count = utterance.count(0)
                letters += count
                reward = 2.0 * count * 10**turn
                done = utterance[0] == STOPS or turn == len(LENGTHS) - 1
                if not done:
                    text += [turn % 2] * turn
                    speakers += [TOOL if turn == 1 else ENVIRONMENT] * turn
                    turn, utterance = turn + 1, []
        decision = position + 1 == len(text)
        follows = None if decision else text[position + 1]
        allowed = [i == follows for i in range(len(VOCABULARY))]
        if decision:
            allowed = every if utterance else [True, True, False, True]
        speaker = AGENT if decision else speakers[position + 1]
        yield text[position], reward, done, letters * done, decision, turn, speaker, allowed
        if done:
            return


def test_conversations_are_those_of_plain_python():
    number = 64
    actions = np.random.default_rng(0).integers(0, len(VOCABULARY), (number, ENV.max_steps or 0))
    state, first = reset(ENV, number)
    assert (np.asarray(first.observation) == PROMPT[0]).all()
    assert not np.asarray(first.tokens["decision"]).any()
    t = player(ENV)(state, jnp.asarray(actions))
    ends = set()
    for i, row in enumerate(actions.tolist()):
        steps = list(converse(row))
        n = len(steps)
        observed, reward, done, letters, decision, turn, speaker, allowed = map(
            np.array, zip(*steps, strict=True)
        )
        assert done[-1] and not done[:-1].any()
        np.testing.assert_array_equal(t.observation[i, :n], observed)
        np.testing.assert_array_equal(t.reward[i, :n], reward)
        np.testing.assert_array_equal(t.terminated[i, :n], done)
        np.testing.assert_array_equal(t.metrics["letters"][i, :n], letters)
        running = slice(n - 1)  # the last step leads to no token
        np.testing.assert_array_equal(t.tokens["decision"][i, running], decision[running])
        np.testing.assert_array_equal(t.tokens["turn"][i, :n], turn)
        np.testing.assert_array_equal(t.tokens["speaker"][i, running], speaker[running])
        np.testing.assert_array_equal(t.legal_actions[i, running], allowed[running])
        success = np.where(done, row[n - 1] == END, 0)
        np.testing.assert_array_equal(t.metrics["success"][i, :n], success)
        ends.add((n, int(turn[-1])))
    assert {turn for _, turn in ends} == {0, 1, 2} and len(ends) > 5


def test_the_longest_conversation_is_as_long_as_it_says():
    total = len(PROMPT) + sum(LENGTHS) + REPLIES * (len(LENGTHS) - 1)
    assert ENV.max_steps == total - 1 == 11
    check_environment(ENV, 24)


def test_the_expert_reads_what_is_forced_and_says_what_it_knows():
    state, _ = reset(ENV, 1)
    t = player(ENV)(state, jnp.full((1, ENV.max_steps), -1))
    # Two tokens are said of three, then three; the second reply is one token, 1.
    np.testing.assert_array_equal(t.observation[0, :8], [0, 0, 0, 0, 0, END, 1, 0])
    assert t.done[0, 7] and float(t.reward[0, :8].sum()) == 2 * (2 + 20 + 100)


def test_a_text_is_drawn_in_lines_and_by_speakers():
    long = conversing("long", VOCABULARY, (40,), begin=begin, respond=respond, params=1.0)
    for env, height, width in ((ENV, 120, 13), (long, 200, 20)):
        state, _ = env.reset(jax.random.key(0), env.params)
        assert env.render is not None
        assert env.render(state, env.params).shape == (height, width * 24, 3)


@pytest.mark.parametrize(
    ("lengths", "prompt", "message"),
    [
        ((), PROMPT, r"has turns of \(\) tokens"),
        ((2, 0), PROMPT, r"has turns of \(2, 0\) tokens"),
        ((2,), (), "begins with no token"),
    ],
)
def test_conversations_without_tokens_are_refused(lengths, prompt, message):
    opens = lambda key, params: (jnp.array(prompt, jnp.int32), jnp.zeros((), jnp.int32))
    with pytest.raises(UserError, match=message):
        conversing("empty", VOCABULARY, lengths, begin=opens, respond=respond, params=1.0)


def test_prompts_are_held_out_once_and_for_all():
    split = split_prompts(10, share=0.3)
    keys = jax.random.split(jax.random.key(0), 300)
    train, held_out = (
        set(np.asarray(jax.vmap(lambda key: split.draw(key, x))(keys)).tolist())  # noqa: B023
        for x in (False, True)
    )
    assert len(held_out) == 3 and train == set(range(10)) - held_out
    assert split_prompts(10, share=0.3).order.tolist() == split.order.tolist()
    with pytest.raises(UserError, match="1 of 1 prompts would be held out"):
        split_prompts(1)


@pytest.mark.parametrize("name", ["lookup", "second_try", "text_maze"])
def test_held_out_prompts_are_one_keyword(name):
    """No prompt is both in training and held out, and the expert knows what to say to either."""
    prompts = []
    for held_out in (False, True):
        env = envs.make(name, held_out=held_out)
        state, _ = reset(env, 512)
        known = int(state.known[0])
        prompts.append({tuple(row) for row in np.asarray(state.text[:, :known]).tolist()})
    assert min(map(len, prompts)) >= 3 and not prompts[0] & prompts[1]
