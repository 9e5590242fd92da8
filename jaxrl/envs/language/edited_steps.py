"""Chains of sums and products of which one role spoils a step, and another one finds out."""

from __future__ import annotations

import functools
import string

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Prompt, Reply, Utterance, conversing

SIGNS = (*"+-*=,:!?@", *"rons", *"tf", ".")
PLUS, MINUS, TIMES, EQUALS, COMMA, COLON, EDIT, STEP, JUDGE = range(9)  # after the digits
RESULT, OPERATOR, NUMBER, START, TRUE, FALSE, END = range(9, len(SIGNS))
OPERATORS, KINDS = 3, 4  # of numbers; of errors
WIDTH = 5  # tokens of a step


@struct
class Params:
    """Choice of the steps that are judged."""

    given: bool  # whether the editor can only make the expert's errors
    edited: float  # share of texts in which a step is edited; in others it stays as it is


@struct
class Memory:
    """Problem, its step, and what is made of the step."""

    problem: Array  # int32 [2 S + 1]: a digit, then an operator and a digit for each step
    steps: Array  # int32 [S, 5]: the right steps
    number: Array  # int32: the step, from 0
    edits: Array  # bool: whether the step is edited
    draft: Array  # int32 [6]: the expert's error, its kind and the step; or no kind and no error
    shown: Array  # int32 [5]: the step that is judged
    given: Array  # bool


def apply(operator: Array, a: Array, b: Array, base: int) -> Array:
    """Return a + b, a - b or a * b modulo `base`, by the operator 0, 1 or 2."""
    return jnp.choose(operator, [a + b, a - b, a * b], mode="clip") % base


@functools.cache
def edited_steps(steps: int = 3, base: int = 5, thoughts: int = 1) -> Environment:
    """Edit a step of a calculation so that its result is wrong, or judge whether this was done.

    The prompt is `!3+4*2-1:3+4=2,?2*2=4`: a problem of `steps` (S, 3) operators on digits below
    `base` (N, 5), from left to right and modulo N, its right steps before a drawn one, and this
    one. In turn 0, the editor's, the step is written anew, `o2+2=4.`: the kind of error that is
    meant (`r`esult, `o`perator, `n`umber or `s`tart), and a digit, an operator, a digit, `=` and a
    digit. Then another reader goes on, the critic, who sees `@3+4*2-1:3+4=2,?2+2=4`, and after
    `thoughts` (T, 1) digits says `t` for a right step or `f` for a wrong one. A step counts as
    wrong if the problem's answer is wrong when all others are done right after it; a text in which
    the editor wrote none that does ends there. In half of the texts (`edited`, 0.5) the editor can
    only pass on the right step. Observation: the last token, 0 .. N + 15 (the digits, `+`, `-`,
    `*`, `=`, `,`, `:`, `!`, `?`, `@`, `r`, `o`, `n`, `s`, `t`, `f`, `.`). Action: the next token.

    Reward: at the end the critic's, 1 for a right verdict and -1 for a wrong one; 0 if there was
    none. The component `critic` is the same, `editor` 1 if the critic was deceived and -1 if it was
    not, or if no wrong step was written; 0 where the step was passed on. `success` says whether the
    verdict is right, `wrong` whether a wrong step was judged, `deceived` whether it passed. With
    the parameter `given` (False), the editor can only make errors that are drawn: of a kind that is
    possible, then of this kind. The expert makes these, and its verdicts are right.

    In the manner of Chen et al., 2025, "SPC: evolving self-play critic via adversarial games for
    LLM reasoning", arXiv:2504.19162, where a model completes the right and the edited step to see
    whether the answer suffers. Raises `UserError` unless 1 <= S <= 8, N is 3, 5 or 7, and
    0 <= T <= 8. (N is a prime and no factor is 0, so that every wrong result can matter.)
    """
    if not 1 <= steps <= 8 or base not in (3, 5, 7) or not 0 <= thoughts <= 8:
        raise UserError(
            f"steps is {steps}, base {base} and thoughts {thoughts}; there must be 1 to 8 steps, a "
            "base of 3, 5 or 7, and at most 8 thoughts."
        )
    vocabulary = (*string.digits[:base], *SIGNS)
    token = lambda sign: base + sign
    end = token(END)
    is_digit = np.arange(len(vocabulary)) < base
    is_verdict = np.isin(np.arange(len(vocabulary)), (token(TRUE), token(FALSE)))
    size = 2 * steps + 1  # of a problem

    def write(start: Array, operator: Array, number: Array, result: Array) -> Array:
        """Return the tokens [5] of a step."""
        equals = jnp.full_like(result, token(EQUALS))
        return jnp.stack([start, token(operator), number, equals, result], -1)

    def errors(start: Array, operator: Array, number: Array) -> tuple[Array, Array]:
        """Return all errors of each kind, int32 [4, N, 5], and which of them have another result,
        bool [4, N]."""
        right = apply(operator, start, number, base)
        others = jnp.arange(base)
        same = lambda x: jnp.broadcast_to(x, (base,))
        changed = jnp.minimum(others, OPERATORS - 1)
        starts = jnp.stack([same(start), same(start), same(start), others])
        operators = jnp.stack([same(operator), changed, same(operator), same(operator)])
        numbers = jnp.stack([same(number), same(number), others, same(number)])
        results = apply(operators, starts, numbers, base).at[RESULT - RESULT].set(others)
        once = jnp.ones((KINDS, base), bool).at[OPERATOR - RESULT].set(others < OPERATORS)
        return write(starts, operators, numbers, results), once & (results != right)

    def begin(key: Key, params: Params) -> tuple[Prompt, Memory]:
        keys = jax.random.split(key, 6)
        start = jax.random.randint(keys[0], (), 0, base)
        operator = jax.random.randint(keys[1], (steps,), 0, OPERATORS)
        number = jax.random.randint(keys[2], (2, steps), jnp.array([[0], [1]]), base)
        number = jnp.where(operator == TIMES, number[1], number[0])
        value, right = start, []
        for i in range(steps):
            result = apply(operator[i], value, number[i], base)
            right.append(write(value, operator[i], number[i], result))
            value = result
        right = jnp.stack(right)
        parts = jnp.stack([token(operator), number], -1).reshape(-1)
        problem = jnp.concatenate([start[None], parts])
        chosen = jax.random.randint(keys[3], (), 0, steps)
        before, chosen_operator = right[chosen, 0], operator[chosen]
        edits = jax.random.bernoulli(keys[4], params.edited)
        every, wrong = errors(before, chosen_operator, number[chosen])
        kind_key, error_key = jax.random.split(keys[5])
        draw = lambda key, x: jax.random.categorical(key, jnp.where(x, 0.0, -jnp.inf))
        kind = draw(kind_key, wrong.any(-1))
        error = every[kind, draw(error_key, wrong[kind])]
        draft = jnp.concatenate([token(RESULT + kind)[None], error])
        same = jnp.concatenate([jnp.array([token(RESULT)]), right[chosen]])
        draft = jnp.where(edits, draft, same).astype(jnp.int32)
        memory = Memory(
            problem.astype(jnp.int32),
            right.astype(jnp.int32),
            chosen,
            edits,
            draft,
            right[chosen].astype(jnp.int32),
            jnp.asarray(params.given),
        )
        return page(token(EDIT), memory, memory.shown), memory

    def page(sign: int, memory: Memory, step: Array) -> Prompt:
        """Return the problem, the steps before, and a step [5]."""
        commas = jnp.full((steps, 1), token(COMMA))
        earlier = jnp.concatenate([memory.steps, commas], -1).reshape(-1)
        known = (WIDTH + 1) * memory.number
        last = jnp.concatenate([jnp.array([token(STEP)]), step])
        place = jnp.arange((WIDTH + 1) * steps)
        after = jnp.where(place < known, earlier, last[jnp.clip(place - known, 0, len(last) - 1)])
        head = [jnp.array([sign]), memory.problem, jnp.array([token(COLON)])]
        text = jnp.concatenate([*head, after]).astype(jnp.int32)
        return Prompt(text, size + 2 + known + WIDTH + 1)

    def is_wrong(memory: Memory, step: Array) -> Array:
        """Return whether the answer of the problem is wrong after this step [5]."""
        written, right = step[-1], memory.steps[memory.number, -1]
        for i in range(steps):
            operator, number = memory.problem[2 * i + 1] - base, memory.problem[2 * i + 2]
            later = i > memory.number
            written, right = (
                jnp.where(later, apply(operator, x, number, base), x) for x in (written, right)
            )
        return written != right

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        edits = said.turn == 0
        kind, step = said.tokens[0], said.tokens[1 : WIDTH + 1]
        digit, operator = step < base, (step >= base) & (step < token(OPERATORS))
        formed = digit[0] & operator[1] & digit[2] & (step[3] == token(EQUALS)) & digit[4]
        formed &= (kind >= token(RESULT)) & (kind <= token(START))
        shown = jnp.where(edits, step, memory.shown)
        spoiled = is_wrong(memory, shown)
        fails = edits & memory.edits & ~(formed & spoiled)
        right = (said.tokens[thoughts] == token(FALSE)) == spoiled
        memory = Memory(
            memory.problem,
            memory.steps,
            memory.number,
            memory.edits,
            memory.draft,
            shown,
            memory.given,
        )
        as_number = lambda x: x.astype(jnp.float32)
        critic = jnp.where(edits, 0.0, jnp.where(right, 1.0, -1.0))
        editor = jnp.where(fails, -1.0, jnp.where(memory.edits & ~edits, -critic, 0.0))
        reply = page(token(JUDGE), memory, shown)
        return Reply(
            reply.tokens,
            memory,
            Grade(
                critic,
                as_number(right & ~edits),
                metrics={
                    "wrong": as_number(memory.edits & ~fails),
                    "deceived": as_number(memory.edits & ~edits & ~right),
                },
                components={"editor": editor, "critic": critic},
            ),
            done=fails,
            count=reply.count,
            restart=True,
        )

    def legal(memory: Memory, turn: Array, place: Array) -> Array:
        draft = memory.draft[jnp.minimum(place, WIDTH)]
        only = jnp.arange(len(vocabulary)) == draft
        passes_on = memory.given | ~memory.edits
        judges = jnp.where(place < thoughts, is_digit, is_verdict)
        return jnp.where(turn > 0, judges, jnp.where(passes_on, only, True))

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        verdict = jnp.where(is_wrong(memory, memory.shown), token(FALSE), token(TRUE))
        thought = jnp.full(thoughts, memory.steps[memory.number, -1])
        judged = jnp.concatenate([thought, verdict[None]])
        pad = lambda x: jnp.concatenate([x, jnp.full(longest - len(x), end)])
        return jnp.where(turn == 0, pad(memory.draft), pad(judged))

    longest = max(WIDTH + 1, thoughts + 1)
    return conversing(
        "edited_steps",
        vocabulary,
        (WIDTH + 1, thoughts + 1),
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        params=Params(given=False, edited=0.5),
    )
