"""Texts of one's own: what lines mean, and what is no line."""

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.datasets.texts import make_texts, read_texts

SUMS = envs.make("addition", digits=1)
CALLS = envs.make("lookup", keys=3, hops=1)


def read(tmp_path, text, env=SUMS, name="own.jsonl"):
    path = tmp_path / name
    path.write_text(text)
    return read_texts(path, env)


def test_lines_are_prompts_and_answers(tmp_path):
    lines = '{"prompt": "1+2=", "answer": "3."}\n\n'
    lines += '{"prompt": ["9", "+", "9", "="], "answer": "18.", "weight": 2}\n'
    found = read(tmp_path, lines)
    end = 12
    np.testing.assert_array_equal(
        found.tokens, [[1, 10, 2, 11, 3, end, end], [9, 10, 9, 11, 1, 8, end]]
    )
    np.testing.assert_array_equal(found.utterance, [[-1] * 4 + [0, 0, -1], [-1] * 4 + [0, 0, 0]])
    np.testing.assert_array_equal(found.length, [6, 7])
    np.testing.assert_array_equal(found.weight, [1, 2])
    own = make_texts(SUMS, [([1, 10, 2, 11], [3, 12]), ([9, 10, 9, 11], [1, 8, 12])], [1.0, 2.0])
    tabs = read(tmp_path, "1+2=\t3.\n9+9=\t18.\n", name="own.txt")
    for other in (own, tabs):
        for name in ("tokens", "utterance", "length"):
            np.testing.assert_array_equal(getattr(other, name), getattr(found, name))


def test_a_reply_is_read_and_not_written(tmp_path):
    ask, call, value, answer = CALLS.vocabulary[0], *CALLS.vocabulary[1:3], CALLS.vocabulary[-1]
    said = [[ask], [call, value], [ask], [value, answer]]
    found = read(tmp_path, '{"turns": ' + str(said).replace("'", '"') + "}", CALLS)
    np.testing.assert_array_equal(found.utterance, [[-1, 0, 0, -1, 1, 1]])
    again = read(tmp_path, "\t".join(map("".join, said)), CALLS, "own.txt")
    np.testing.assert_array_equal(again.tokens, found.tokens)


GOOD = '{"prompt": "1+2=", "answer": "3."}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"prompt": "1-2=", "answer": "3."}',
            r"Line 2 of 'own.jsonl': token 2 of '1 - 2 =' is '-'",
        ),
        (
            '{"prompt": "1+2=", "answer": "3x"}',
            r"Line 2 .* token 2 of '3 x' is 'x'; 'addition' has",
        ),
        ('{"prompt": "1+2="', "Line 2 of 'own.jsonl' is no JSON"),
        ("[1]", r"Line 2 .* is \[1\]; it must be an object"),
        ('{"prompt": "1+2="}', "must have a prompt and an answer, or else turns"),
        ('{"prompt": "1+2=", "answer": "3.", "wieght": 1}', "has a 'wieght'; it may have"),
        ('{"prompt": "1+2=", "answer": 3}', "says 3; it must be a string"),
        ('{"prompt": "1+2=", "answer": ""}', "no token in an answer"),
        ('{"prompt": "", "answer": "3."}', "no token in its prompt"),
        (
            '{"prompt": "1+2=", "answer": "3.3"}',
            "goes on after '.', which ends an answer, in token 3",
        ),
        ('{"prompt": "1+2=", "answer": "3333"}', "has 8 tokens; the longest text .* has 7"),
        ('{"turns": ["1+2=", "3.", "1"]}', "has 3 turns"),
        ('{"turns": "1"}', "has the turns '1'; they must be a list"),
        (
            '{"prompt": "1+2=", "answer": "3.", "weight": 0}',
            "weight 0; it must be a positive number",
        ),
        ('{"prompt": "1+2=", "answer": "3.", "weight": "a"}', "weight 'a'; it must be"),
    ],
)
def test_a_line_that_is_no_text_is_refused_in_one_sentence(tmp_path, line, message):
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path, GOOD + line)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


def test_what_is_no_file_of_texts_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"'own\.jsonl' has no texts"):
        read(tmp_path, "\n")
    with pytest.raises(UserError, match="cannot be read"):
        read_texts(tmp_path / "absent.jsonl", SUMS)
    with pytest.raises(UserError, match="has no vocabulary"):
        read(tmp_path, GOOD, envs.make("cartpole"))
    with pytest.raises(UserError, match="Text 0 has the token 13; it must be below 13"):
        make_texts(SUMS, [([1], [13])])
    with pytest.raises(UserError, match="1 texts and 2 weights"):
        make_texts(SUMS, [([1], [2])], [1, 1])
