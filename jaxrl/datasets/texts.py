"""Texts of one's own: prompts and answers, in the tokens of an environment."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment

FIELDS = ("prompt", "answer", "turns", "weight")


@dataclasses.dataclass(frozen=True)
class Texts:
    """N texts of at most L tokens, as NumPy arrays.

    tokens: int32 [N, L], filled up with END, the last token of the vocabulary.
    utterance: int32 [N, L], the agent's utterance (from 0) that a token belongs to; -1 for what the
        agent reads.
    length: int32 [N], tokens of each text.
    weight: float32 [N], how often each is drawn, relative to the others.
    """

    tokens: np.ndarray
    utterance: np.ndarray
    length: np.ndarray
    weight: np.ndarray


def make_texts(
    env: Environment,
    turns: Sequence[Sequence[Sequence[int]]],
    weight: Sequence[float] | None = None,
) -> Texts:
    """Return texts that some function of one's own wrote.

    turns: of each text what was said in turns, as token numbers: the prompt, the agent's utterance,
        the reply to it, the agent's next utterance, and so on. An utterance includes its END.
    weight: how often each text is drawn, relative to the others; all alike by default.

    Raises `UserError` for what is no text of `env`; see `read_texts`.
    """
    weights = [1.0] * len(turns) if weight is None else list(weight)
    if len(weights) != len(turns):
        raise UserError(f"There are {len(turns)} texts and {len(weights)} weights.")
    wheres = [f"Text {i}" for i in range(len(turns))]
    for where, text, value in zip(wheres, turns, weights, strict=True):
        _check(env, text, value, where)
    return _texts(env, turns, weights, "The list of texts")


def read_texts(path: str | Path, env: Environment) -> Texts:
    """Read texts from a file with one text in each line; empty lines are skipped.

    `.jsonl`: an object with `prompt` and `answer`, or with `turns`, a list of what was said in
    turns, the prompt first; and perhaps a `weight`, how often the text is drawn relative to others
    (1). Else: the same turns, separated by tabs.

    What is said is a list of tokens, as they are called in `env.vocabulary`, or a string of them:
    one after the other if each has a single letter, else separated by spaces. An utterance of the
    agent includes its END, the last token of the vocabulary.

    Raises `UserError` with the number of the line and the token, for what is not such a line, a
    token that is not in the vocabulary, an END before the end of an utterance, a text that `env` is
    too short for, a weight that is not a positive number; and for a file without texts.
    """
    path = Path(path)
    if not env.vocabulary:
        raise UserError(f"'{env.name}' has no vocabulary; it is not an environment of texts.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The texts '{path}' cannot be read: {error}.") from error
    number_of = {token: i for i, token in enumerate(env.vocabulary)}
    turns, weights = [], []
    for i, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"Line {i} of '{path.name}'"
        said, weight = _parse(line, path.suffix == ".jsonl", where)
        text = [_numbers(part, number_of, env, where) for part in said]
        _check(env, text, weight, where)
        turns.append(text)
        weights.append(weight)
    return _texts(env, turns, weights, f"The file '{path.name}'")


def _parse(line: str, is_json: bool, where: str) -> tuple[list[Any], float]:
    """Return what is said in turns, and the weight."""
    if not is_json:
        return list(line.split("\t")), 1.0
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise UserError(f"{where} is {line.strip()}; it must be an object.")
    if other := found.keys() - set(FIELDS):
        raise UserError(f"{where} has a '{min(other)}'; it may have {', '.join(FIELDS)}.")
    asked = {"turns"} if "turns" in found else {"prompt", "answer"}
    if found.keys() - {"weight"} != asked:
        raise UserError(f"{where} must have a prompt and an answer, or else turns.")
    said = found["turns"] if "turns" in found else [found["prompt"], found["answer"]]
    if not isinstance(said, list):
        raise UserError(f"{where} has the turns {said!r}; they must be a list.")
    return said, found.get("weight", 1.0)


def _numbers(said: Any, number_of: dict[str, int], env: Environment, where: str) -> list[int]:
    """Return the numbers of the tokens that are said."""
    if isinstance(said, str):
        said = list(said) if max(map(len, number_of)) == 1 else said.split()
    if not isinstance(said, list) or not all(isinstance(token, str) for token in said):
        raise UserError(f"{where} says {said!r}; it must be a string, or a list of tokens.")
    for place, token in enumerate(said, 1):
        if token not in number_of:
            raise UserError(
                f"{where}: token {place} of '{' '.join(said)}' is '{token}'; '{env.name}' has only "
                f"{' '.join(env.vocabulary)}."
            )
    return [number_of[token] for token in said]


def _check(env: Environment, turns: Sequence[Sequence[int]], weight: Any, where: str) -> None:
    """Raise `UserError` for what is no text of `env`."""
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not (number and 0 < weight < math.inf):
        raise UserError(f"{where} has the weight {weight!r}; it must be a positive number.")
    if len(turns) < 2 or len(turns) % 2:
        raise UserError(
            f"{where} has {len(turns)} turns; it must have a prompt and an answer, and as many "
            "replies as further answers."
        )
    size, longest = len(env.vocabulary), (env.max_steps or 0) + 1
    for i, said in enumerate(turns):
        if not len(said) and (i == 0 or i % 2):
            raise UserError(f"{where} has no token in {'its prompt' if i == 0 else 'an answer'}.")
        for token in said:
            if not 0 <= token < size:
                raise UserError(f"{where} has the token {token}; it must be below {size}.")
        if i % 2 and size - 1 in list(said)[:-1]:
            raise UserError(
                f"{where} goes on after '{env.vocabulary[-1]}', which ends an answer, in token "
                f"{list(said).index(size - 1) + 2}."
            )
    if (total := sum(map(len, turns))) > longest:
        raise UserError(
            f"{where} has {total} tokens; the longest text of '{env.name}' has {longest}."
        )


def _texts(
    env: Environment, turns: Sequence[Sequence[Sequence[int]]], weight: Sequence[float], what: str
) -> Texts:
    """Return checked texts as arrays."""
    if not turns:
        raise UserError(f"{what} has no texts.")
    lengths = [sum(map(len, text)) for text in turns]
    shape, end = (len(turns), max(lengths)), len(env.vocabulary) - 1
    tokens, utterance = np.full(shape, end, np.int32), np.full(shape, -1, np.int32)
    for i, text in enumerate(turns):
        tokens[i, : lengths[i]] = [token for said in text for token in said]
        writers = [k // 2 if k % 2 else -1 for k, said in enumerate(text) for _ in said]
        utterance[i, : lengths[i]] = writers
    return Texts(tokens, utterance, np.array(lengths, np.int32), np.array(weight, np.float32))
