"""Sums that one role poses, another one solves and a third one judges, each by what it encloses."""

from __future__ import annotations

import dataclasses
import functools
import string

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing

SIGNS = (*"+-<>?!@#=:", ".")
PLUS, MINUS, OPEN, CLOSE, POSE, RATE, SOLVE, SCORE, EQUALS, COLON, END = range(len(SIGNS))
PROPOSAL, SOLUTION, SCORING, RATING = range(4)  # kinds of texts, by who writes first
DRAWN, NEUTRAL = -1, 0.5  # what is not given; the verdict of a judge who says none


@struct
class Params:
    """Role that writes first, and its subject."""

    kind: Array | int  # PROPOSAL, SOLUTION, SCORING or RATING; DRAWN: any of them
    question: Array | np.ndarray  # int32 [Q]: tokens, filled up with END; DRAWN: a drawn sum
    answer: Array | int  # token of the answer that is scored; DRAWN: right in half of the texts


@struct
class Memory:
    """Progress of a text."""

    kind: Array  # int32
    phase: Array  # int32: who writes, 0 to 3: the proposer, a judge, the solver, a judge
    question: Array  # int32 [Q]
    answer: Array  # int32
    draft: Array  # int32 [Q]: the sum that the expert poses
    quality: Array  # float32: verdict on the question
    form: Array  # float32: form of the first utterance
    posed: Array  # bool


@struct
class Enclosed:
    """Parts of an utterance between `<` and `>`.

    first, last: int32 [Q], the first and the last part, filled up with END. count: int32 [], the
        number of parts. form: float32 [], 1 for one part, 0.5 for several; 0 for none, and where a
        bracket lacks its other one.
    """

    first: Array
    last: Array
    count: Array
    form: Array


def read_enclosed(tokens: Array, longest: int, base: int) -> Enclosed:
    """Return the parts of 1 to `longest` tokens (Q) that brackets enclose in an utterance [U]."""
    size, end = len(tokens), base + END
    place = jnp.arange(size)
    opens, closes = tokens == base + OPEN, tokens == base + CLOSE
    later = (place > place[:, None]) & (opens | closes)
    following = jnp.where(later.any(1), jnp.argmax(later, 1), size)  # place of the next bracket
    length = following - place - 1
    closed = closes[jnp.minimum(following, size - 1)] & (following < size)
    pair = opens & closed & (length >= 1) & (length <= longest)
    count = pair.sum()

    def part(start: Array) -> Array:
        inside = jnp.arange(longest)
        found = tokens[jnp.clip(start + 1 + inside, 0, size - 1)]
        return jnp.where((inside < length[start]) & (count > 0), found, end)

    whole = (opens.sum() == count) & (closes.sum() == count)
    form = jnp.where(whole & (count > 0), jnp.where(count == 1, 1.0, 0.5), 0.0)
    return Enclosed(part(jnp.argmax(pair)), part(size - 1 - jnp.argmax(pair[::-1])), count, form)


def read_sum(tokens: Array, base: int) -> tuple[Array, Array]:
    """Return the value of a sum modulo `base`, and whether there is one: digits, two at least, with
    `+` or `-` between them. tokens: int32 [Q], filled up with END."""
    place, sign = jnp.arange(len(tokens)), tokens - base
    length = jnp.where((sign == END).any(), jnp.argmax(sign == END), len(tokens))
    joins = (sign == PLUS) | (sign == MINUS)
    before = jnp.where(place % 2 == 0, tokens < base, joins)
    valid = jnp.where(place < length, before, sign == END).all() & (length >= 3) & (length % 2 == 1)
    factor = jnp.where((jnp.roll(sign, 1) == MINUS) & (place > 0), -1, 1)
    terms = jnp.where((place < length) & (place % 2 == 0), factor * tokens, 0)
    return terms.sum() % base, valid


def read_verdict(said: Enclosed, base: int) -> Array:
    """Return the first digit that a judge enclosed, over the largest one; NEUTRAL without one."""
    digit = said.first[0]
    alone = (said.count > 0) & (digit < base)
    return jnp.where(alone, digit / (base - 1), NEUTRAL).astype(jnp.float32)


@functools.cache
def judged_sums(terms: int = 2, base: int = 5) -> Environment:
    """Pose a sum, judge it, solve it without having seen how it was posed, and judge the answer.

    Four readers go on after one another, and none sees what stood before it (`tokens["reader"]`):

    the proposer reads `?3+4=.:`, a sum for example, or `?...=.:` without one, and poses another;
    a judge reads `!4-1=.:` and says how good the question is, a digit below `base` (N, 5);
    the solver reads `@4-1=.:` and answers;
    another judge reads `#4-1=3:` and says how good the answer is.

    Each writes up to 2 `terms` + 2 tokens and encloses what it means: `<4-1>.`, `<4>.`, `<3>.` and
    `<0>.`, say. The question is the last part between brackets, of at most 2 `terms` - 1 tokens, of
    any kind; a judge's verdict is the first one, over N - 1, and 1/2 where this is no digit, and
    the answer its first token. Texts begin in four kinds (`kind`; -1, the default, draws one): 0
    with the proposer, who ends them if it encloses nothing, 1 with the solver, 2 with the judge of
    an answer, and 3 with that of a question, after whom they end. `question` (tokens, filled up
    with `.`) is what proposers are shown and others read; where its first token is -1, it is a
    drawn sum, in half of kind 0 none, and in half of kind 3 one with a token changed. `answer` is
    what kind 2 reads; -1 draws one, right in half of the texts. Sums are modulo N. Observation: the
    last token, 0 .. N + 10 (the digits, `+`, `-`, `<`, `>`, `?`, `!`, `@`, `#`, `=`, `:`, `.`).
    Action: the next token.

    Reward: at the end 1 if the solver's answer is right, in the kinds 2 and 3 if the verdict is: 1
    on right answers and on sums, 0 on all else; `success` is the same. No role sees it. `quality`
    and `score` are the verdicts, `form` says of the first utterance whether it encloses one part
    (1), several (0.5), or none or by odd brackets (0), `posed` whether there is a question,
    `valid` whether it is a sum, `agrees` whether the last verdict is right.
    `privileged["judged"]` has the question and the answer. The expert poses drawn sums, answers
    them and judges right.

    In the manner of Chen et al., 2025, "Multi-agent evolve", arXiv:2510.23595, where a language
    model has the roles. Raises `UserError` unless 2 <= terms <= 6 and 2 <= base <= 10.
    """
    if not 2 <= terms <= 6 or not 2 <= base <= 10:
        raise UserError(
            f"terms is {terms} and base {base}; a sum can have 2 to 6 terms, in a base of 2 to 10."
        )
    longest, vocabulary = 2 * terms - 1, (*string.digits[:base], *SIGNS)
    length = longest + 3
    open_sign, close_sign, equals, colon, end = (
        base + sign for sign in (OPEN, CLOSE, EQUALS, COLON, END)
    )
    nothing = np.full(longest, end, np.int32)
    by_kind = np.array([0, 2, 3, 1], np.int32)  # phase that a text begins with
    signs = base + np.array([POSE, RATE, SOLVE, SCORE], np.int32)

    def page(phase: Array, question: Array, answer: Array) -> Array:
        """Return what a role reads."""
        answer = jnp.where(phase == 3, answer, end)
        before, after = jnp.asarray(signs)[phase][None], jnp.stack([answer, jnp.full((), colon)])
        return jnp.concatenate([before, question, jnp.array([equals]), after]).astype(jnp.int32)

    def draw_sum(key: Key) -> Array:
        keys = jax.random.split(key, 3)
        place = jnp.arange(longest)
        count = jax.random.randint(keys[0], (), 2, terms + 1)
        digits = jax.random.randint(keys[1], (longest,), 0, base)
        joins = base + jax.random.randint(keys[2], (longest,), PLUS, MINUS + 1)
        said = jnp.where(place % 2 == 0, digits, joins)
        return jnp.where(place < 2 * count - 1, said, end).astype(jnp.int32)

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        keys = jax.random.split(key, 7)
        kind = jnp.where(params.kind < 0, jax.random.randint(keys[0], (), 0, 4), params.kind)
        spared, spoiled = jax.random.bernoulli(keys[1], 0.5, (2,))
        drawn = draw_sum(keys[2])
        place, token = jax.random.randint(keys[3], (2,), 0, jnp.array([longest, len(vocabulary)]))
        changed = drawn.at[place].set(token)
        drawn = jnp.where((kind == RATING) & spoiled, changed, drawn)
        drawn = jnp.where((kind == PROPOSAL) & spared, nothing, drawn)
        asked = jnp.asarray(params.question, jnp.int32)
        question = jnp.where(asked[0] < 0, drawn, asked)
        value, _ = read_sum(question, base)
        shift = jnp.where(jax.random.bernoulli(keys[4], 0.5), 0, 1)
        wrong = value + shift * jax.random.randint(keys[5], (), 1, base)
        given = jnp.asarray(params.answer, jnp.int32)
        answer = jnp.where(given < 0, wrong % base, given)
        answer = jnp.where(kind == SCORING, answer, end).astype(jnp.int32)
        zero, phase = jnp.zeros(()), jnp.asarray(by_kind)[kind]
        memory = Memory(
            kind.astype(jnp.int32),
            phase,
            question,
            answer,
            draw_sum(keys[6]),
            quality=zero,
            form=zero,
            posed=kind != PROPOSAL,
        )
        return page(phase, question, answer), memory

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        part, phase = read_enclosed(said.tokens, longest, base), memory.phase
        poses, rates, solves = (phase == p for p in range(3))
        posed = memory.posed | (poses & (part.count > 0))
        question = jnp.where(poses, part.last, memory.question)
        answer = jnp.where(solves, part.first[0], memory.answer).astype(jnp.int32)
        verdict = read_verdict(part, base)
        quality = jnp.where(rates, verdict, memory.quality)
        form = jnp.where(said.turn == 0, part.form, memory.form)
        value, valid = read_sum(question, base)
        valid &= posed
        right, rating = valid & (answer == value), memory.kind == RATING
        agrees = verdict == jnp.where(rating, valid, right)
        agrees &= rates | (phase == 3)
        success = jnp.where((memory.kind == PROPOSAL) | (memory.kind == SOLUTION), right, agrees)
        as_number = lambda x: x.astype(jnp.float32)
        memory = dataclasses.replace(
            memory,
            phase=jnp.minimum(phase + 1, 3),
            question=question,
            answer=answer,
            quality=quality,
            form=form.astype(jnp.float32),
            posed=posed,
        )
        return Reply(
            page(memory.phase, question, answer),
            memory,
            Grade(
                as_number(success) * as_number((phase == 3) | rating),
                as_number(success),
                judged={"question": question, "answer": answer},
                metrics={
                    "quality": quality,
                    "score": jnp.where(phase == 3, verdict, 0.0),
                    "form": memory.form,
                    "posed": as_number(posed),
                    "valid": as_number(valid),
                    "agrees": as_number(agrees),
                },
            ),
            done=(phase == 3) | ~posed | (rates & rating),
            count=longest + 4,
            restart=True,
        )

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        value, valid = read_sum(memory.question, base)
        fair = jnp.where(memory.phase == 1, valid, valid & (memory.answer == value))
        digit = jnp.where(memory.phase == 2, value, jnp.where(fair, base - 1, 0))
        one = jnp.where(jnp.arange(longest) == 0, digit, end)
        meant = jnp.where(memory.phase == 0, memory.draft, one)
        place, count = jnp.arange(length), (meant != end).sum()
        inside = meant[jnp.clip(place - 1, 0, longest - 1)]
        inside = jnp.where(place == count + 1, close_sign, inside)
        return jnp.where(place == 0, open_sign, jnp.where(place > count + 1, end, inside))

    return conversing(
        "judged_sums",
        vocabulary,
        (length,) * 4,
        begin=begin,
        respond=respond,
        solve=solve,
        params=Params(DRAWN, np.full(longest, DRAWN, np.int32), DRAWN),
    )
