"""Questions about a hidden graph that one role searches for and poses, and another one answers by
searching."""

from __future__ import annotations

import functools
import itertools
import string

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import TOOL, Grade, Reply, Utterance, conversing

SIGNS = (*"!?@:=#", ".")
POSE, ASK, SOLVE, READ, ANSWER, ERROR, END = range(len(SIGNS))  # after entities and relations
MOST_WALKS = 10_000


@struct
class Params:
    """Origin of the questions, and what becomes of those that cannot be answered from evidence."""

    given: int  # number of relations of given questions; 0: the proposer poses them
    verified: bool  # whether a text ends where the question is not answered from the evidence


@struct
class Memory:
    """Hidden graph, the answer that a question is to have, and what was searched and posed."""

    successor: Array  # int32 [2 R, N]: where each relation, then each inverse one, leads
    answer: Array  # int32: the entity that the question is to be about
    calls: Array  # int32 [K, 2]: relation and entity of each search; END where there was none
    noise: Array  # int32 [D, 2]: relation and entity of documents that nobody searched for
    order: Array  # int32 [K + D]: order of the documents
    question: Array  # int32 [H + 2]: the question; before it is posed, the expert's
    walk: Array  # int32 [K]: relations by which the expert searches
    valid: Array  # bool: whether a question was posed by the rules
    verified: Array  # bool: whether it was answered from the evidence
    at: Array  # int32: entity that the expert has reached in answering
    done: Array  # int32: number of relations that the expert has followed in answering
    given: Array  # bool: whether the proposer can only do what the expert does


@functools.cache
def posed_lookups(
    entities: int = 6, relations: int = 2, hops: int = 2, searches: int = 2, noise: int = 2
) -> Environment:
    """Search a hidden graph for a question with a given answer, then answer it by searching.

    Each of `relations` (R, 2) relations leads from each of `entities` (N, 6) entities to another
    one, in a circle through all of them that is drawn anew in each episode. Three readers go on
    after one another, and none sees what stood before it (`tokens["reader"]`):

    0, the proposer, reads `!a`, the answer that its question is to have. In `searches` (K, 2)
      utterances of two tokens it calls a tool: `F'a` asks what leads to `a` by the relation F, and
      `Fa` where F leads from `a`; the reply is that entity. `.` does not search; to anything else
      the reply is `#`. Then it poses a question, `?cF.`: an entity and 1 to `hops` (H, 2) relations
      to follow from there.
    1, the verifier, reads the question and the evidence, `@cF:` and documents: `cFa` for each
      search, and `noise` (D, 2) further ones, in a drawn order. It writes entities; the last one
      before the `.` is its answer.
    2, the solver, reads `@cF:` alone. It calls the tool as the proposer does, or answers, `=a`,
      in at most H + 1 utterances.

    A question counts if it is well-formed, does not begin with its answer, and was posed after at
    least two different searches, none of them made twice. A text ends where it does not count, and
    where the verifier's answer is another one than the given, unless the parameter `verified`
    (True) is off. Observation: the last token, 0 .. N + 2 R + 6 (the entities, the relations, their
    inverses, `!`, `?`, `@`, `:`, `=`, `#`, `.`). Action: the next token.

    Reward: 1 at the end if the solver's answer is the given one, which `success` says too. `valid`
    says whether the question counts, `verified` whether it was also answered from the evidence,
    `true` whether it counts and leads to the given answer, `hops` how many relations it has (0:
    none counts). With the parameter `given`, 1 .. H (0), the proposer can only search and pose a
    drawn question with so many relations, which is then not verified. The expert finds such
    questions by walking back from the answer, and answers them right.

    The game is that of Lu et al., 2025, "Search self-play", arXiv:2510.18821: its rules on
    questions, evidence and irrelevant documents by the authors' code. There the proposer may search
    as often as it likes, and the further documents come from other questions. Raises `UserError`
    unless 3 <= N <= 20, 1 <= R <= 5, 1 <= H <= K, 2 <= K < N, at most 10,000 walks (2 R)^K, and
    0 <= D <= 20.
    """
    if not 3 <= entities <= 20 or not 1 <= relations <= 5 or not 0 <= noise <= 20:
        raise UserError(
            f"entities is {entities}, relations {relations} and noise {noise}; there must be 3 to "
            "20 entities, 1 to 5 relations, and at most 20 further documents."
        )
    if not 1 <= hops <= searches or not 2 <= searches < entities:
        raise UserError(
            f"hops is {hops} and searches {searches}; a question can have 1 to {searches} "
            f"relations, with at least 2 searches and fewer than the {entities} entities."
        )
    walks = np.array(list(itertools.product(range(2 * relations), repeat=searches)), np.int32)
    if len(walks) > MOST_WALKS:
        raise UserError(f"{2 * relations} relations make more than {MOST_WALKS} walks.")
    names = string.ascii_uppercase[5 : 5 + relations]
    vocabulary = (
        *string.ascii_lowercase[:entities],
        *names,
        *(f"{name}'" for name in names),
        *SIGNS,
    )
    first_sign = entities + 2 * relations
    pose, ask, solve_sign, read, answer_sign, error, end = (
        first_sign + sign for sign in range(len(SIGNS))
    )
    inverse = lambda relation: (relation + relations) % (2 * relations)
    longest = hops + 2  # of a question, with its end
    asked, shown = longest + 1, longest + 1 + 3 * (searches + noise)  # with its signs and evidence
    place = jnp.arange(longest)

    def follow(successor: Array, start: Array, path: Array, count: Array) -> Array:
        """Return the entities [L + 1] from `start` on along the first `count` relations [L]."""
        reached = [start]
        for i in range(len(path)):
            there = successor[path[i], reached[-1]]
            reached.append(jnp.where(i < count, there, reached[-1]))
        return jnp.stack(reached)

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        keys = jax.random.split(key, 7)

        def circle(key: Key) -> Array:
            order = jax.random.permutation(key, entities)
            return jnp.zeros(entities, jnp.int32).at[order].set(jnp.roll(order, -1))

        forth = jax.vmap(circle)(jax.random.split(keys[0], relations))
        back = jnp.argsort(forth, axis=-1).astype(jnp.int32)
        successor = jnp.concatenate([forth, back])
        answer = jax.random.randint(keys[1], (), 0, entities)
        count = jax.random.randint(keys[2], (), 1, hops + 1)
        count = jnp.where(params.given > 0, params.given, count)
        # The expert searches back along a walk that makes no search twice, and whose question does
        # not begin with its answer.
        trail = jax.vmap(lambda walk: follow(successor, answer, walk, jnp.int32(searches)))(walks)
        made = walks * entities + trail[:, :-1]
        twice = (made[:, :, None] == made[:, None]).sum((1, 2)) > searches
        possible = ~twice & (jnp.take(trail, count, axis=1) != answer)
        chosen = jax.random.categorical(keys[3], jnp.where(possible, 0.0, -jnp.inf))
        walk, trail = jnp.asarray(walks)[chosen], trail[chosen]
        step = entities + inverse(walk[jnp.clip(count - place, 0, searches - 1)])
        question = jnp.where(place <= count, step, end).at[0].set(trail[count])
        unsought = jax.random.choice(
            keys[4], 2 * relations * entities, (noise,), replace=2 * relations * entities < noise
        )
        order = jax.random.permutation(keys[5], searches + noise)
        none, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        memory = Memory(
            successor,
            answer,
            jnp.full((searches, 2), end, jnp.int32),
            jnp.stack([unsought // entities, unsought % entities], -1).astype(jnp.int32),
            order,
            question,
            walk,
            valid=no,
            verified=no,
            at=answer,
            done=none,
            given=jnp.asarray(params.given > 0),
        )
        return jnp.stack([jnp.int32(pose), answer]), memory

    def look_up(successor: Array, tokens: Array) -> tuple[Array, Array]:
        """Return whether an utterance calls the tool, and the entity that it replies."""
        relation, entity = tokens[0] - entities, tokens[1]
        calls = (relation >= 0) & (relation < 2 * relations) & (entity < entities)
        known = jnp.clip(relation, 0, 2 * relations - 1), jnp.minimum(entity, entities - 1)
        return calls, successor[known]

    def length_of(question: Array) -> Array:
        """Return the number of tokens of a question before its end."""
        return jnp.argmax(question == end)

    def read_question(question: Array) -> tuple[Array, Array]:
        """Return whether a question [H + 2] is well-formed, and its relations [H]."""
        length, relation = length_of(question), question[1:-1] - entities
        named = (relation >= 0) & (relation < 2 * relations) | (place[:-2] >= length - 1)
        ends = (question == end).any() & jnp.where(place >= length, question == end, True).all()
        return (question[0] < entities) & (length >= 2) & ends & named.all(), relation

    def documents(memory: Memory) -> tuple[Array, Array]:
        """Return the evidence, int32 [3 (K + D)], and how many tokens it has."""
        sought = memory.calls[:, 0] < 2 * relations
        call = jnp.concatenate([memory.calls, memory.noise])
        there = jnp.concatenate([sought, jnp.ones(noise, bool)])
        relation, entity = jnp.minimum(call[:, 0], 2 * relations - 1), call[:, 1]
        entity = jnp.minimum(entity, entities - 1)
        other = memory.successor[relation, entity]
        line = jnp.stack([other, entities + inverse(relation), entity], -1)
        shuffled = memory.order[jnp.argsort(~there[memory.order], stable=True)]
        return line[shuffled].reshape(-1), 3 * there.sum()

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        searches_now, poses = said.turn < searches, said.turn == searches
        verifies, solves = said.turn == searches + 1, said.turn > searches + 1
        calls, found = look_up(memory.successor, said.tokens)
        # What is searched.
        made = jnp.stack([said.tokens[0] - entities, said.tokens[1]])
        here = (jnp.arange(searches) == said.turn)[:, None] & searches_now & calls
        searched = jnp.where(here, made, memory.calls)
        # What is posed.
        question = jnp.where(poses, said.tokens[1 : longest + 1], memory.question)
        formed, relation = read_question(question)
        length = length_of(question)
        path = jnp.clip(relation, 0, 2 * relations - 1)
        trail = follow(memory.successor, jnp.minimum(question[0], entities - 1), path, length - 1)
        number = searched[:, 0] * entities + searched[:, 1]
        sought = searched[:, 0] < 2 * relations
        same = (number[:, None] == number) & sought[:, None] & sought
        unlike = same.sum() == sought.sum()
        counts = (said.tokens[0] == ask) & formed & (question[0] != memory.answer)
        valid = jnp.where(poses, counts & unlike & (sought.sum() >= 2), memory.valid)
        # What is read in the evidence, and what is answered.
        written = (said.tokens != end).sum()
        last = said.tokens[jnp.maximum(written - 1, 0)]
        agrees = said.ended & (written > 0) & (last == memory.answer)
        verified = jnp.where(verifies, agrees & memory.valid, memory.verified)
        answers = solves & (said.tokens[0] == answer_sign)
        right = answers & (said.tokens[1] == memory.answer)
        useful = calls & (said.tokens[1] == memory.at)
        useful &= made[0] == path[jnp.minimum(memory.done, hops - 1)]
        ends = poses | verifies
        at = jnp.where(ends, trail[0], jnp.where(solves & useful, found, memory.at))
        done_now = jnp.where(ends, 0, memory.done + (solves & useful))
        memory = Memory(
            memory.successor,
            memory.answer,
            searched,
            memory.noise,
            memory.order,
            question,
            memory.walk,
            valid,
            verified,
            at,
            done_now,
            memory.given,
        )
        # What is replied.
        text, evidence = jnp.full(shown, end, jnp.int32), documents(memory)
        text = text.at[0].set(solve_sign).at[1 : longest + 1].set(question)
        written_by = jnp.arange(shown)
        text = jnp.where(written_by == length + 1, read, text)
        after = jnp.clip(written_by - length - 2, 0, len(evidence[0]) - 1)
        text = jnp.where(written_by > length + 1, evidence[0][after], text)
        count = length + 2 + jnp.where(poses, evidence[1], 0)
        skips = searches_now & (said.tokens[0] == end)
        told = jnp.where(calls, found, error)
        as_number = lambda x: x.astype(jnp.float32)
        true = valid & (trail[-1] == memory.answer)
        metrics = {
            "valid": as_number(valid),
            "verified": as_number(verified),
            "true": as_number(true),
            "hops": as_number(jnp.where(valid, length - 1, 0)),
        }
        passes = verified | memory.given | ~jnp.asarray(params.verified)
        return Reply(
            jnp.where(ends, text, told),
            memory,
            Grade(as_number(right), as_number(right), metrics=metrics),
            done=(poses & ~valid) | (verifies & ~passes) | answers,
            count=jnp.where(ends, count, 1 - skips),
            speaker=jnp.where(ends, 0, TOOL),
            restart=ends,
        )

    def expert_call(memory: Memory, turn: Array) -> Array:
        trail = follow(memory.successor, memory.answer, memory.walk, jnp.int32(searches))
        turn = jnp.minimum(turn, searches - 1)
        return jnp.stack([entities + memory.walk[turn], trail[turn]])

    def legal(memory: Memory, turn: Array, at: Array) -> Array:
        only = solve(memory, turn, None)[jnp.minimum(at, asked - 1)]
        only = jnp.arange(len(vocabulary)) == only
        return jnp.where(memory.given & (turn <= searches), only, True)

    def solve(memory: Memory, turn: Array, params: Params | None) -> Array:
        question, length = memory.question, length_of(memory.question)
        path = jnp.clip(question[1:-1] - entities, 0, 2 * relations - 1)
        start = jnp.minimum(question[0], entities - 1)
        trail = follow(memory.successor, start, path, length - 1)
        pad = lambda x: jnp.concatenate([x, jnp.full(asked - len(x), end, jnp.int32)])
        chain = jnp.where(jnp.arange(hops) < length - 1, trail[1:], end)
        left = memory.done < length - 1
        step = entities + path[jnp.minimum(memory.done, hops - 1)]
        says = jnp.stack([jnp.where(left, step, answer_sign), memory.at])
        posed = jnp.concatenate([jnp.array([ask]), question])
        return jnp.select(
            [turn < searches, turn == searches, turn == searches + 1],
            [pad(expert_call(memory, turn)), posed, pad(chain)],
            pad(says),
        )

    return conversing(
        "posed_lookups",
        vocabulary,
        (*((2,) * searches), asked, hops + 1, *((2,) * (hops + 1))),
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        reply_lengths=(*((1,) * searches), shown, longest + 1, *((1,) * hops)),
        params=Params(given=0, verified=True),
    )
