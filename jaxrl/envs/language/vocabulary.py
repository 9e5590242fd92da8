"""Vocabularies: texts as tokens, by characters, by words, or by the `tokenizer.json` of a model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxrl.core import plugins
from jaxrl.core.errors import UserError

EXTRA = "lm"  # of jaxrl, which brings the package tokenizers


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """Tokens 0 .. V - 1, and how texts become tokens and tokens texts.

    tokens: text of each token that there is, at most V.
    size: V; a model may have more tokens than its tokenizer, of which none is ever legal.
    end: the token that ends an answer.
    encode(text) -> tokens. decode(tokens) -> text, without special tokens.
    """

    tokens: tuple[str, ...]
    size: int
    end: int
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]


def characters(letters: str, end: str = ".") -> Vocabulary:
    """Return the vocabulary of the characters in `letters`, in this order, and `end` as the last.

    Raises `UserError` for a character that is there twice, and in `encode` for an unknown one.
    """
    tokens = (*letters, end)
    if len(set(tokens)) < len(tokens) or len(end) != 1:
        raise UserError(f"The characters {''.join(tokens)!r} must differ from each other.")
    number = {text: i for i, text in enumerate(tokens)}

    def encode(text: str) -> list[int]:
        unknown = set(text) - set(tokens)
        if unknown:
            raise UserError(f"The text {text!r} has {min(unknown)!r}, which is not in {letters!r}.")
        return [number[x] for x in text]

    decode = lambda ids: "".join(tokens[i] for i in ids)
    return Vocabulary(tokens, len(tokens), len(tokens) - 1, encode, decode)


def words(texts: Sequence[str], end: str = ".") -> Vocabulary:
    """Return the vocabulary of whole words, in this order, and `end` as the last; words of a text
    are separated by spaces.

    Raises `UserError` for a word that is there twice or has a space in it, and in `encode` for an
    unknown one.
    """
    tokens = (*texts, end)
    if len(set(tokens)) < len(tokens) or any(len(text.split()) != 1 for text in tokens):
        raise UserError(f"The words {tokens!r} must differ from each other, without spaces.")
    number = {text: i for i, text in enumerate(tokens)}

    def encode(text: str) -> list[int]:
        unknown = [word for word in text.split() if word not in number]
        if unknown:
            raise UserError(f"The text {text!r} has {unknown[0]!r}, which is not a known word.")
        return [number[word] for word in text.split()]

    decode = lambda ids: " ".join(tokens[i] for i in ids)
    return Vocabulary(tokens, len(tokens), len(tokens) - 1, encode, decode)


def tokenizer(folder: str | Path, end: str = "") -> Vocabulary:
    """Return the vocabulary of a language model, from `tokenizer.json` and `config.json` in a
    folder; nothing is downloaded.

    end: the token that ends an answer, such as `<|eot_id|>`; empty for `eos_token_id` of
        `config.json`.

    Raises `UserError` for files that are missing or cannot be read, a token that does not exist, an
    end that is not said or is one of several, and without the package tokenizers.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"The folder '{folder}' has no tokenizer.json.")
    package = plugins.package("tokenizers", EXTRA)
    try:
        made = package.Tokenizer.from_file(str(path))
    except Exception as error:  # whatever a damaged file leads to
        raise UserError(f"'{path}' is no file of tokenizers: {error}.") from error
    config = _config(folder / "config.json")
    known = made.get_vocab_size(with_added_tokens=True)
    size = config.get("vocab_size", known)
    if not isinstance(size, int) or size < known:
        raise UserError(
            f"'{path}' has {known} tokens, and config.json beside it says vocab_size {size!r}; the "
            "model needs at least as many as its tokenizer."
        )
    texts = tuple(made.id_to_token(i) or "" for i in range(known))
    encode = lambda text: made.encode(text).ids
    decode = lambda ids: made.decode([int(i) for i in ids], skip_special_tokens=True)
    return Vocabulary(texts, size, _end(made, config, end, path), encode, decode)


def _config(path: Path) -> dict[str, Any]:
    """Return what a `config.json` says; nothing if there is none."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' cannot be read: {error}.") from error
    return found if isinstance(found, dict) else {}


def _end(made: Any, config: dict[str, Any], end: str, path: Path) -> int:
    """Return the token that ends an answer."""
    if end:
        found = made.token_to_id(end)
        if found is None:
            raise UserError(f"'{path}' has no token {end!r} that could end an answer.")
        return found
    found = config.get("eos_token_id")
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    if isinstance(found, list):
        several = ", ".join(repr(made.id_to_token(i)) for i in found)
        raise UserError(f"eos_token_id beside '{path}' is one of {several}; say which by end=.")
    if isinstance(found, bool) or not isinstance(found, int) or made.id_to_token(found) is None:
        raise UserError(f"eos_token_id beside '{path}' is {found!r}; say the last token by end=.")
    return found
