"""Theorems of string rewriting that one role conjectures and another one proves by lemmas."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import string
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Prompt, Reply, Utterance, conversing

SIGNS = (*">:?!@-", ".")
TO, PROOF, POSE, GIVEN, PROVE, NONE, END = range(len(SIGNS))  # after letters, lemmas, inverses
LEMMA_PLACE = 1  # of a prompt: where the conjecturer reads a lemma
MOST_WORDS = 400
UNPROVABLE = 99  # steps


@struct
class Statements:
    """Given statements."""

    tokens: Any  # int32 [S, U]: as they are written, filled up with END
    proof: Any  # int32 [S, K]: a shortest proof, lemmas' places; 2 R where it is over


@struct
class Params:
    """Origin of a text's statement."""

    statements: Statements
    given: bool  # whether the statement is to be proved, not a seed of a conjecture
    statement: int  # place of the statement among the given ones; -1: drawn
    lemma: int  # lemma of a conjecture, from 0; R: none; -1: drawn from the seed's proof
    proof: (
        Any  # int32 [K]: the seed's proof as lemmas' places, 2 R where it is over; -1: a shortest
    )
    depth: int  # most steps of the shortest proof of a drawn statement


@struct
class Memory:
    """Statement that is posed or given, and what a conjecture is to be about."""

    posed: Array  # int32 [U]: the given statement, or the expert's conjecture; then what was posed
    lemma: Array  # int32: lemma of a conjecture, R for none
    given: Array  # bool


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """A system of string rewriting: all words, and where the lemmas lead.

    words: tuples of letters, the shortest first (W). lemmas: pairs of words (R); each may be
        applied forth or back (2 R steps, the inverses last).
    following: int32 [W, 2 R], the word after a step; -1 where it does not apply.
    length: int32 [W, W], the number of steps in the shortest proof; `UNPROVABLE` where none has at
        most K steps. first: int32 [W, W], the first step of a shortest proof; -1 without one.
    """

    words: tuple[tuple[int, ...], ...]
    lemmas: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    following: np.ndarray
    length: np.ndarray
    first: np.ndarray


def rewrite(
    word: tuple[int, ...], old: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the word with its leftmost `old` replaced by `new`; None if there is none."""
    for i in range(len(word) - len(old) + 1):
        if word[i : i + len(old)] == old:
            return word[:i] + new + word[i + len(old) :]
    return None


@functools.cache
def make_system(letters: int, length: int, lemmas: int, steps: int, seed: int) -> System:
    """Draw lemmas and find the shortest proofs of at most `steps` (K) steps between all words of up
    to `length` letters, by breadth-first search.

    A lemma's sides are different words of one or two letters, the left one of two. There are at
    least 14 lemmas.
    """
    all_words = lambda most: tuple(
        w for n in range(1, most + 1) for w in itertools.product(range(letters), repeat=n)
    )
    words, sides = all_words(length), all_words(min(length, 2))
    number = {word: i for i, word in enumerate(words)}
    pairs = [(x, y) for x in sides if len(x) == 2 for y in sides if (len(y), y) < (2, x)]
    drawn = np.random.default_rng(seed).permutation(len(pairs))[:lemmas]
    chosen = tuple(pairs[i] for i in drawn)
    both = chosen + tuple(pair[::-1] for pair in chosen)
    after = lambda word, pair: number.get(rewrite(word, *pair) or (), -1)
    following = np.array([[after(word, pair) for pair in both] for word in words], np.int32)
    shortest = np.where(np.eye(len(words), dtype=bool), 0, UNPROVABLE).astype(np.int32)
    first = np.full(shortest.shape, -1, np.int32)
    for start in range(len(words)):
        border = [start]
        for count in range(1, steps + 1):
            border, last = [], border
            for word, step in itertools.product(last, range(len(both))):
                there = following[word, step]
                if there >= 0 and shortest[start, there] == UNPROVABLE:
                    shortest[start, there] = count
                    first[start, there] = step if word == start else first[start, word]
                    border.append(int(there))
    return System(words, chosen, following, shortest, first)


def lemma_of(vocabulary: tuple[str, ...]) -> np.ndarray:
    """Return the lemma that each token applies, forth or back, int32 [V]; -1 for other tokens."""
    names = [token for token in vocabulary if token.isupper() and len(token) == 1]
    return np.array(
        [names.index(token[0]) if token[0] in names else -1 for token in vocabulary], np.int32
    )


def find_proof(system: System, start: int, goal: int, steps: int) -> list[int]:
    """Return the steps of a shortest proof, filled up to `steps` with 2 R."""
    proof: list[int] = []
    while start != goal:
        proof.append(int(system.first[start, goal]))
        start = system.following[start, proof[-1]]
    return proof + [2 * len(system.lemmas)] * (steps - len(proof))


def write(system: System, start: int, goal: int, end: int) -> list[int]:
    """Return the statement that word `start` becomes word `goal`, filled up with `end`."""
    longest = 2 * len(system.words[-1]) + 2
    to = end - END + TO
    text = [*system.words[start], to, *system.words[goal]]
    return text + [end] * (longest - len(text))


@functools.cache
def posed_theorems(
    letters: int = 3,
    length: int = 4,
    lemmas: int = 5,
    steps: int = 5,
    count: int = 200,
    seed: int = 0,
) -> Environment:
    """Conjecture a theorem about strings like one that is proved, then prove it without having seen
    where it came from.

    Words have 1 to `length` (N, 4) of `letters` (3) letters. A lemma says that two short words are
    equal; there are `lemmas` (R, 5), drawn by `seed`. A step of a proof applies a lemma forth, `A`,
    or back, `A'`, to the leftmost place of a word where it fits; the new word must not be longer
    than N. A proof of the statement `ab>ca` has up to `steps` (K, 5) steps that lead from `ab` to
    `ca`. So the checker is exact, and which statements have a proof is known by search.

    There are `count` (S, 200) given statements, drawn by `seed` from those that take one step or
    more. Two readers go on after one another:

    0, the conjecturer, reads `?Aab>ca:AB'`, a lemma, a given statement and a proof of it, and poses
      a statement, `abc>cac.`; it is to need the lemma. `-` stands for no lemma. With the parameter
      `given` (False) it reads `!` and can only write the given statement.
    1, the prover, reads `@abc>cac:` alone and writes a proof, `AAB.`.

    A text that poses no statement ends there. Observation: the last token (the letters, the lemmas,
    their inverses, `>`, `:`, `?`, `!`, `@`, `-`, `.`). Action: the next token.

    Reward: 1 at the end for a right proof, as `success` says too. `valid` says whether a statement
    was posed, `provable` whether it has a proof, `listed` whether it is a given one, `invokes`
    whether the right proof applies the lemma. Parameters: `statement`, the place of the given
    statement (-1: drawn from those with a proof of at most `depth` (K) steps), `lemma` (-1: drawn
    from the proof, R: none), `proof` (-1: a shortest one), and `statements`, the given ones. The
    expert conjectures a given statement of at most `depth` steps whose shortest proof applies the
    lemma, if there is one, and proves by shortest proofs.

    A small system in place of Lean, for Dong and Ma, 2025, "STP: self-play LLM theorem provers with
    iterative conjecturing and proving", arXiv:2502.00212. Raises `UserError` unless 2 <= letters <=
    10, 1 <= R <= 10, 1 <= K <= 10, at most 400 words, and for more given statements than there are.
    """
    if not 2 <= letters <= 10 or not 1 <= lemmas <= 10 or not 1 <= steps <= 10 or length < 2:
        raise UserError(
            f"letters is {letters}, length {length}, lemmas {lemmas} and steps {steps}; there can "
            "be 2 to 10 letters, words of 2 letters or more, 1 to 10 lemmas and 1 to 10 steps."
        )
    if sum(letters**n for n in range(1, length + 1)) > MOST_WORDS:
        raise UserError(f"{letters} letters and length {length} make more than {MOST_WORDS} words.")
    system = make_system(letters, length, lemmas, steps, seed)
    names = string.ascii_uppercase[:lemmas]
    vocabulary = (
        *string.ascii_lowercase[:letters],
        *names,
        *(f"{name}'" for name in names),
        *SIGNS,
    )
    sign = letters + 2 * lemmas
    to, proof_sign, pose, given_sign, prove, none, end = (sign + i for i in range(len(SIGNS)))
    longest, over = 2 * length + 2, 2 * lemmas
    starts, goals = np.nonzero((system.length > 0) & (system.length < UNPROVABLE))
    if not 1 <= count <= len(starts):
        raise UserError(f"count is {count}; there are {len(starts)} statements with a proof.")
    order = np.random.default_rng(seed + 1).permutation(len(starts))[:count]
    pairs = [(int(starts[i]), int(goals[i])) for i in order]
    statements = Statements(
        np.array([write(system, *pair, end) for pair in pairs], np.int32),
        np.array([find_proof(system, *pair, steps) for pair in pairs], np.int32),
    )
    following, first = jnp.asarray(system.following), jnp.asarray(system.first)
    shortest = jnp.asarray(system.length)
    offset = jnp.asarray(np.cumsum([0, 0] + [letters**n for n in range(1, length)]), jnp.int32)
    place = jnp.arange(longest)

    def word_at(tokens: Array, start: Array, stop: Array) -> Array:
        """Return the number of the word between two places of tokens [U]; -1 if it is none."""
        inside = (place >= start) & (place < stop)
        size = stop - start
        digit = jnp.where(inside, tokens * letters ** jnp.clip(stop - 1 - place, 0, length - 1), 0)
        fits = (size >= 1) & (size <= length) & jnp.where(inside, tokens < letters, True).all()
        return jnp.where(fits, offset[jnp.clip(size, 1, length)] + digit.sum(), -1)

    def read(tokens: Array) -> tuple[Array, Array, Array]:
        """Return both words of a statement [U], -1 if there is none, and its number of tokens."""
        arrow = jnp.argmax(tokens == to)
        size = (jnp.cumsum(tokens == end) == 0).sum()
        begun, goal = word_at(tokens, jnp.int32(0), arrow), word_at(tokens, arrow + 1, size)
        valid = (tokens[arrow] == to) & (begun >= 0) & (goal >= 0)
        return jnp.where(valid, begun, -1), jnp.where(valid, goal, -1), size

    def follow(word: Array, moves: Array) -> Array:
        """Return the word after moves [L]; -1 where one does not apply. Moves from 2 R on stop."""
        for i in range(len(moves)):
            goes_on = moves[i] < over
            there = following[jnp.maximum(word, 0), jnp.clip(moves[i], 0, over - 1)]
            there = jnp.where((word >= 0) & (moves[i] >= 0), there, -1)
            word = jnp.where(goes_on, there, word)
        return word

    def prove_shortest(word: Array, goal: Array) -> Array:
        """Return the moves of a shortest proof, int32 [K], filled up with 2 R."""
        moves = []
        for _ in range(steps):
            move = first[word, goal]
            moves.append(jnp.where(move < 0, over, move))
            word = jnp.where(move < 0, word, following[word, jnp.maximum(move, 0)])
        return jnp.stack(moves)

    lemma_in = lambda moves, lemma: ((moves < over) & (moves % lemmas == lemma)).any(-1)

    def begin(key: Key, params: Params) -> tuple[Prompt, Memory]:
        seed_key, lemma_key, pose_key = jax.random.split(key, 3)
        listed = jnp.asarray(params.statements.tokens, jnp.int32)
        proofs = jnp.asarray(params.statements.proof, jnp.int32)
        easy = (proofs < over).sum(-1) <= params.depth
        draw = lambda key, among: jax.random.categorical(key, jnp.where(among, 0.0, -jnp.inf))
        drawn = draw(seed_key, easy | ~easy.any())
        at = jnp.where(params.statement < 0, drawn, params.statement)
        own = jnp.asarray(params.proof, jnp.int32)
        moves = jnp.where(own[0] < 0, proofs[at], own)
        in_proof = jax.vmap(lambda lemma: lemma_in(moves, lemma))(jnp.arange(lemmas))
        from_proof = draw(lemma_key, in_proof | ~in_proof.any())
        lemma = jnp.where(params.lemma < 0, from_proof, params.lemma).astype(jnp.int32)
        fits = easy & (lemma_in(proofs, lemma) | (lemma == lemmas))
        expert = listed[draw(pose_key, fits | ~fits.any())]
        given = jnp.asarray(params.given, bool)
        # `?`, the lemma, the statement, `:` and its proof; or `!` alone.
        size, spots = (listed[at] != end).sum(), jnp.arange(longest + steps + 2)
        text = jnp.concatenate([jnp.zeros(2, jnp.int32), listed[at], jnp.zeros(steps, jnp.int32)])
        text = text.at[LEMMA_PLACE].set(jnp.where(lemma < lemmas, letters + lemma, none))
        text = text.at[0].set(jnp.where(given, given_sign, pose))
        behind = spots - size - 3
        told = letters + moves[jnp.clip(behind, 0, steps - 1)]
        text = jnp.where(behind == -1, proof_sign, jnp.where(behind >= 0, told, text))
        spoken = jnp.where(given, 1, size + 3 + (moves < over).sum())
        posed = jnp.where(given, listed[at], expert)
        return Prompt(text, spoken), Memory(posed, lemma, given)

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        poses = said.turn == 0
        tokens = jnp.concatenate([said.tokens, jnp.full(longest, end, jnp.int32)])[:longest]
        posed = jnp.where(poses, tokens, memory.posed)
        begun, goal, size = read(posed)
        valid = (begun >= 0) & (said.ended | ~poses)
        moves = said.tokens[: steps + 1] - letters
        moves = jnp.where(said.tokens[: steps + 1] == end, over, jnp.where(moves < over, moves, -1))
        right = ~poses & valid & said.ended & (follow(begun, moves) == goal)
        as_number = lambda x: x.astype(jnp.float32)
        listed = (jnp.asarray(params.statements.tokens) == posed).all(-1).any()
        metrics = {
            "valid": as_number(valid),
            "provable": as_number(valid & (shortest[begun, goal] <= steps)),
            "listed": as_number(valid & listed),
            "invokes": as_number(right & lemma_in(moves, memory.lemma)),
        }
        shown = jnp.concatenate([posed, jnp.full(1, end, jnp.int32)])
        shown = jnp.where(jnp.arange(longest + 1) == size, proof_sign, shown)
        return Reply(
            jnp.concatenate([jnp.array([prove], jnp.int32), shown]),
            Memory(posed, memory.lemma, memory.given),
            Grade(as_number(right), as_number(right), metrics=metrics),
            done=~valid,
            count=size + 2,
            restart=True,
        )

    def legal(memory: Memory, turn: Array, spot: Array) -> Array:
        only = jnp.arange(len(vocabulary)) == memory.posed[jnp.minimum(spot, longest - 1)]
        return jnp.where((turn == 0) & memory.given, only, True)

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        begun, goal, _ = read(memory.posed)
        moves = prove_shortest(jnp.maximum(begun, 0), jnp.maximum(goal, 0))
        told = jnp.where(moves < over, letters + moves, end)
        told = jnp.concatenate([told, jnp.full(longest, end, jnp.int32)])[: max(longest, steps + 1)]
        pad = jnp.full(max(longest, steps + 1) - longest, end, jnp.int32)
        return jnp.where(turn == 0, jnp.concatenate([memory.posed, pad]), told)

    return conversing(
        "posed_theorems",
        vocabulary,
        (longest, steps + 1),
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        reply_lengths=(longest + 2,),
        params=Params(
            statements=statements,
            given=False,
            statement=-1,
            lemma=-1,
            proof=np.full(steps, -1, np.int32),
            depth=steps,
        ),
    )
