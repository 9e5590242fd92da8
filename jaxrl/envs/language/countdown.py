"""Numbers to be combined to a target, on a scratchpad of free length whose steps can be checked."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing
from jaxrl.envs.language.prompts import split_prompts

SIGNS = ("+", "-", "*")
OPERATIONS = (np.add, np.subtract, np.multiply)
MARKS = (*SIGNS, "=", "<", ":", ".")


@struct
class Params:
    """Choice of the problems, and how the expert's texts go."""

    held_out: bool  # whether to ask held-out problems instead of those for training
    failures: int  # failed attempts that the expert writes and takes back before its last one
    right: float  # probability that the expert's last attempt is right


@struct
class Memory:
    """Problem, and the attempts that the expert would write."""

    numbers: Array  # int32 [K]
    target: Array  # int32
    solution: Array  # int32: number of a chain that is right
    failed: Array  # int32 [B]: numbers of chains that are wrong
    right: Array  # bool: whether the expert's last attempt is the solution


class Problems(NamedTuple):
    """All N problems: numbers [N, K], targets [N], and what each of the C chains leads to [N, C],
    -1 where a step leaves the range."""

    numbers: np.ndarray
    target: np.ndarray
    result: np.ndarray


@functools.cache
def all_chains(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the orders of `count` (K) numbers [C, K] and the signs between them [C, K - 1], of
    every chain, a calculation from left to right."""
    orders = itertools.permutations(range(count))
    signs = itertools.product(range(len(SIGNS)), repeat=count - 1)
    pairs = list(itertools.product(orders, signs))
    return np.array([x for x, _ in pairs]), np.array([x for _, x in pairs])


@functools.cache
def all_problems(count: int, largest: int) -> Problems:
    """Return all problems of `count` numbers from 1 to 9, in ascending order, that have a solution:
    targets that some chain of all numbers leads to, with every step from 0 to `largest`."""
    order, sign = all_chains(count)
    combos = np.array(list(itertools.combinations_with_replacement(range(1, 10), count)))
    used = combos[:, order]  # [N, C, K]
    value, valid = used[..., 0], np.ones(used.shape[:2], bool)
    for k in range(count - 1):
        options = np.stack([f(value, used[..., k + 1]) for f in OPERATIONS])
        value = np.take_along_axis(options, sign[None, None, :, k], 0)[0]
        valid &= (value >= 0) & (value <= largest)
        value = np.where(valid, value, 0)
    result = np.where(valid, value, -1)
    found = [(i, t) for i, row in enumerate(result) for t in np.unique(row[row > 0])]
    row = np.array([i for i, _ in found])
    return Problems(combos[row], np.array([t for _, t in found]), result[row])


@functools.cache
def countdown(numbers: int = 3, largest: int = 20, attempts: int = 3) -> Environment:
    """Combine `numbers` (K, 3) numbers to a target, in up to `attempts` (B, 3) attempts.

    The prompt is `2 3 5 = 11 :`, numbers from 1 to 9 in ascending order, and a target. An attempt
    is a chain of K - 1 steps, each with its result, that uses every number once: `2 * 3 = 6 + 5 =
    11`. The sign `.` ends the answer there, and `<` takes the attempt back and begins another; a
    `<` after the last attempt that fits cuts the answer off. So an answer has 4 K - 2 tokens for
    each attempt. Observation: the last token, 0 .. M + 7 (the numbers 0 .. M, `largest` (20), and
    `+`, `-`, `*`, `=`, `<`, `:`, `.`). Action: the next token; only those that make such chains are
    legal, whether or not they are right.

    Reward: 1 at the end if the last attempt is right, else 0; `success` is the same. A step is
    right if its result is and its numbers are given and not used before. `partial` is the share of
    the last attempt's steps that are right before the first that is not. Measures of behavior:
    `attempts` counts attempts, and `verified` is the share of them that were taken back or not as
    their last number, other than the target or equal, asks for.

    Problems are all those that a chain with results from 0 to M solves; a fifth is held out:
    `held_out` (False) asks for these instead of the others. The expert solves by search, and may
    show it: it writes `failures` (0) failed attempts at random, takes them back, and ends with a
    right one, or with the probability 1 - `right` (1) with another failed one. In the manner of the
    countdown tasks of Gandhi et al., 2025, "Cognitive behaviors that enable self-improving
    reasoners", arXiv:2503.01307. Raises `UserError` unless 2 <= numbers <= 4, 9 <= largest <= 99
    and 1 <= attempts <= 9.
    """
    if not 2 <= numbers <= 4 or not 9 <= largest <= 99 or not 1 <= attempts <= 9:
        raise UserError(
            f"numbers is {numbers}, largest {largest} and attempts {attempts}; there must be 2 to "
            "4 numbers, a largest one of 9 to 99, and 1 to 9 attempts."
        )
    vocabulary = tuple(f"{text} " for text in (*range(largest + 1), *MARKS))
    plus, equals, back, colon, end = (largest + 1 + MARKS.index(x) for x in "+=<:.")
    size, steps = 4 * numbers - 2, numbers - 1
    problems = all_problems(numbers, largest)
    order, sign = all_chains(numbers)
    split = split_prompts(len(problems.target))
    token = np.arange(len(vocabulary))
    is_number, is_sign = token <= largest, (token >= plus) & (token < equals)
    kinds = [is_number, *[is_sign, is_number, token == equals, is_number] * steps]
    allowed = np.stack([*kinds, (token == back) | (token == end)])  # [size, V]

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        keys = jax.random.split(key, 4)
        problem = split.draw(keys[0], params.held_out)
        given, target, result = (jnp.asarray(x, jnp.int32)[problem] for x in problems)
        draw = lambda key, mask, shape: jax.random.categorical(
            key, jnp.where(mask, 0.0, -jnp.inf), shape=shape
        ).astype(jnp.int32)
        prompt = jnp.concatenate([given, jnp.stack([equals, target, colon])])
        solution = draw(keys[1], result == target, ())
        failed = draw(keys[2], (result >= 0) & (result != target), (attempts,))
        right = jax.random.bernoulli(keys[3], params.right)
        return prompt, Memory(given, target, solution, failed, right)

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        blocks = said.tokens.reshape(attempts, size)
        written = (jnp.cumsum((blocks == end).any(1)) - (blocks == end).any(1)) == 0
        last = written.sum() - 1
        value, sound = blocks[:, 4:-1:4], blocks[:, 0] <= largest
        used = jnp.concatenate([blocks[:, :1], blocks[:, 2:-1:4]], 1)  # [B, K]
        before = jnp.concatenate([blocks[:, :1], value[:, :-1]], 1)
        marked = blocks[:, 1:-1:4] - plus
        options = jnp.stack([jnp.add(before, used[:, 1:]), before - used[:, 1:]], -1)
        options = jnp.concatenate([options, (before * used[:, 1:])[..., None]], -1)
        found = jnp.take_along_axis(options, jnp.clip(marked, 0, 2)[..., None], -1)[..., 0]
        written_well = (marked >= 0) & (marked <= 2) & (blocks[:, 3:-1:4] == equals)
        written_well &= (value <= largest) & (used[:, 1:] <= largest)
        # How often each number was used up to itself, and how often it is given.
        count = ((used[:, :, None] == used[:, None, :]) & np.tri(numbers, dtype=bool)).sum(-1)
        given = (used[..., None] == memory.numbers).sum(-1)
        free = jnp.cumprod(count <= given, 1).astype(bool)
        right = written_well & (found == value) & free[:, 1:] & (sound & free[:, 0])[:, None]
        prefix = jnp.cumprod(right, 1).sum(1)  # [B], steps before the first error
        hit = blocks[:, -2] == memory.target
        solved = (prefix == steps) & hit & (blocks[:, -1] == end)
        success = (said.ended & solved[last]).astype(jnp.float32)
        fits = jnp.where(hit, blocks[:, -1] == end, blocks[:, -1] == back)
        metrics = {
            "partial": (prefix[last] / steps).astype(jnp.float32),
            "attempts": written.sum().astype(jnp.float32),
            "verified": ((fits & written).sum() / written.sum()).astype(jnp.float32),
        }
        grade = Grade(success, success=success, metrics=metrics)
        return Reply(jnp.zeros(0, jnp.int32), memory, grade, done=True)

    def write(memory: Memory, chain: Array, mark: Array) -> Array:
        """Write an attempt [size] by a chain, followed by a mark."""
        used = memory.numbers[jnp.asarray(order)[chain]]
        value, text = used[0], [used[0]]
        for k in range(steps):
            which = jnp.asarray(sign)[chain, k]
            options = jnp.stack([value + used[k + 1], value - used[k + 1], value * used[k + 1]])
            value = options[which]
            text += [plus + which, used[k + 1], jnp.int32(equals), value]
        return jnp.stack([*text, mark]).astype(jnp.int32)

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        final = jnp.minimum(params.failures, attempts - 1)
        place = jnp.arange(attempts)
        chain = jnp.where((place == final) & memory.right, memory.solution, memory.failed)
        mark = jnp.where(place == final, end, back)
        text = jax.vmap(functools.partial(write, memory))(chain, mark)
        return jnp.where((place <= final)[:, None], text, end).reshape(-1)

    def legal(memory: Memory, turn: Array, place: Array) -> Array:
        return jnp.asarray(allowed)[place % size]

    return conversing(
        "countdown",
        vocabulary,
        (attempts * size,),
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        params=Params(held_out=False, failures=0, right=1.0),
    )
