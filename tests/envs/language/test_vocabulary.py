"""Vocabularies of words: texts and tokens, and what is refused."""

import pytest

from jaxrl.core.errors import UserError
from jaxrl.envs.language.vocabulary import words


def test_words_become_tokens_and_tokens_words():
    made = words(("go", "to", "red"))
    assert made.tokens == ("go", "to", "red", ".") and made.size == 4 and made.end == 3
    assert made.encode("to red  go .") == [1, 2, 0, 3]
    assert made.decode([1, 2, 0, 3]) == "to red go ."
    assert made.encode("") == []


@pytest.mark.parametrize("texts", [("go", "go"), ("go to",), ("",), (".",)])
def test_words_that_are_not_apart_are_refused(texts):
    with pytest.raises(UserError, match="must differ from each other"):
        words(texts)


def test_an_unknown_word_is_refused():
    with pytest.raises(UserError, match="has 'gone', which is not a known word"):
        words(("go",)).encode("go gone")
