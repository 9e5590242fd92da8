"""Programs by examples: the table of programs, the user's strings, and guesses."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.regex_by_example import NONE, State, programs, speak, strings

ENV = envs.make("regex_by_example", length=3)
MEANINGS = ENV.params.meanings


def test_programs_are_all_meanings_and_the_first_of_each():
    texts, found = strings(3), programs(2, 3)
    assert texts[:4] == ("", "a", "b", "aa") and len(texts) == 15
    assert found[:4] == ("a", "a*", "a+", "a?")
    assert "aa*" not in found and len({tuple(row) for row in MEANINGS}) == len(found) == 88
    for program, row in zip(found, MEANINGS, strict=True):
        assert [bool(re.fullmatch(program, text)) for text in texts] == list(row)


@pytest.mark.parametrize("rationality", [0.0, 1.0, 3.0])
def test_users_speak_in_proportion_to_the_literal_listener(rationality):
    shown = [strings(3).index("aa"), strings(3).index("b"), NONE]
    program = programs(2, 3).index("a+")
    labels = MEANINGS[program, shown]
    possible = (MEANINGS[:, shown[:2]] == labels[:2]).all(1)
    expected = np.zeros(MEANINGS.shape[1])
    for x in set(range(len(expected))) - set(shown[:2]):
        left = (possible & (MEANINGS[:, x] == MEANINGS[program, x])).sum()
        expected[x] = (1 / left) ** rationality
    found = speak(jnp.asarray(MEANINGS), jnp.asarray(possible), jnp.asarray(shown), rationality)
    np.testing.assert_allclose(found[program], expected / expected.sum(), rtol=1e-5)


def test_episodes_end_with_the_right_guess_or_the_last_one():
    program, texts = programs(2, 3).index("ab*"), strings(3)
    shown = jnp.array([texts.index("ab"), NONE, NONE], jnp.int32)
    state = State(jnp.int32(program), shown, jnp.int32(0), jnp.bool_(False))
    wrong = programs(2, 3).index("ab")
    for count in (1, 2, 3):
        state, timestep = ENV.step(jax.random.key(count), state, jnp.int32(wrong), ENV.params)
        assert timestep.reward == 0 and timestep.terminated == (count == 3)
        assert timestep.legal_actions is not None
        seen = np.asarray(timestep.observation).reshape(3, -1)
        assert (np.abs(seen).sum(1) == (np.arange(3) < count + 1)).all()
        for row, string in zip(seen, np.asarray(state.strings), strict=True):
            if string != NONE:
                assert row[string] == (1 if MEANINGS[program, string] else -1)
        labels = [np.sign(row.sum()) > 0 for row in seen if row.any()]
        given = [s for s in np.asarray(state.strings) if s != NONE]
        assert len(set(given)) == len(given)
        legal = (MEANINGS[:, given] == labels).all(1)
        np.testing.assert_array_equal(timestep.legal_actions, legal)
        assert legal[program]
    assert ENV.expert is not None
    begin = State(jnp.int32(program), shown, jnp.int32(0), jnp.bool_(False))
    state, timestep = ENV.step(jax.random.key(0), begin, ENV.expert(begin, ENV.params), ENV.params)
    assert timestep.reward == 1 and timestep.terminated and timestep.metrics is not None
    assert timestep.metrics["success"] == 1 and timestep.metrics["shown"] == 1


def test_regex_by_example_is_a_sound_environment():
    envs.check_environment(ENV, steps=16)
    with pytest.raises(UserError, match="parts of 'regex_by_example' is 0"):
        envs.make("regex_by_example", parts=0)
    with pytest.raises(UserError, match="number of strings of 'regex_by_example' is 3"):
        envs.make("regex_by_example", length=1, examples=3)
