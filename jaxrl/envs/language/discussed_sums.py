"""Sums that several agents solve; they evaluate and score each other's solutions."""

from __future__ import annotations

import dataclasses
import functools
import string
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing
from jaxrl.envs.language.judged_sums import read_enclosed, read_sum

SIGNS = (*"+-<>@!#=:", ".")
PLUS, MINUS, OPEN, CLOSE, SOLVE, EVALUATE, SCORE, EQUALS, COLON, END = range(len(SIGNS))
SOLUTION, EVALUATION, SCORING = range(3)  # stages of a round
WORST, BEST = 1, 3  # scores
LENGTH = 4  # of an utterance


@struct
class Params:
    """Mistakes of the expert."""

    slips: float  # share of the expert's solutions that are wrong


@struct
class Memory:
    """Discussion of a sum by A agents in R rounds."""

    question: Array  # int32 [Q]
    agents: Array  # int32 [R * 3 * A]: who writes each utterance
    shown: Array  # int32 [R, S]: discussions of the last round that the solvers of a round read
    slips: Array  # int32 [R * A]: what the expert's solution is off by
    solutions: Array  # int32 [R, A]: answers, END for none
    evaluations: Array  # int32 [R, A]
    scores: Array  # int32 [R, A]: 1, 2 or 3; 0 for none


@functools.cache
def discussed_sums(
    agents: int = 2, rounds: int = 2, shown: int = 2, terms: int = 2, base: int = 5
) -> Environment:
    """Solve a sum, evaluate each other's solutions, and score them after their evaluations.

    In each of `rounds` (R, 2) rounds each of `agents` (A, 2) agents writes a solution, then each
    solution is evaluated, then scored, by agents in a drawn order, each of them once. Each is a new
    reader (`tokens["reader"]`), who sees nothing but this:

    a solver      `@3+4:` and, for `shown` (S, 2) discussions of the last round, drawn without
                  replacement, solution and evaluation, `23`, or `..` in the first round;
    an evaluator  `!3+4=2:`, the sum and the solution;
    a scorer      `#3+4=23:`, with the evaluation behind it.

    Each writes up to 4 tokens and encloses a digit: `<2>.`. A score is 1, 2 or 3; anything else is
    no score. Sums have 2 to `terms` (2) digits below `base` (N, 5), and are modulo N. Observation:
    the last token, 0 .. N + 9 (the digits, `+`, `-`, `<`, `>`, `@`, `!`, `#`, `=`, `:`, `.`).
    Action: the next token. `tokens["agent"]` says which agent writes, or is read to.

    Reward: at the end the share of right solutions in the last round. `first` is that of the first
    round, `score` the mean score, `scored` the share of scores that are there, and `agrees` the
    share that is 3 for a right solution or 1 for a wrong one. `privileged["judged"]` has all
    scores, [R, A], 0 for none. The expert's solutions are wrong with the probability `slips` (0.3);
    its evaluations name the right answer, and its scores agree.

    The workflow is that of Xue et al., 2025, "CoMAS: co-evolving multi-agent systems via
    interaction rewards", arXiv:2510.08529, by the authors' code, where four language models solve
    problems of mathematics, programming and science. Raises `UserError` unless 1 <= S <= A <= 8,
    1 <= R <= 4, 2 <= terms <= 6 and 4 <= base <= 10.
    """
    if not 1 <= shown <= agents <= 8 or not 1 <= rounds <= 4:
        raise UserError(
            f"agents is {agents}, shown {shown} and rounds {rounds}; there must be up to 8 agents, "
            "of whose discussions at least one is shown, and 1 to 4 rounds."
        )
    if not 2 <= terms <= 6 or not 4 <= base <= 10:
        raise UserError(
            f"terms is {terms} and base {base}; a sum can have 2 to 6 terms, in a base of 4 to 10."
        )
    longest, vocabulary = 2 * terms - 1, (*string.digits[:base], *SIGNS)
    token = lambda sign: jnp.array([base + sign], jnp.int32)
    end, turns = base + END, 3 * agents * rounds

    def place_of(turn: Array) -> tuple[Array, Array, Array]:
        """Return round, stage and discussion of an utterance."""
        return turn // (3 * agents), turn // agents % 3, turn % agents

    def page(memory: Memory, turn: Array) -> tuple[Array, Array]:
        """Return what is read before an utterance, and its length."""
        number, stage, one = place_of(jnp.minimum(turn, turns - 1))
        last, seen = jnp.maximum(number - 1, 0), memory.shown[number]
        pairs = jnp.stack([memory.solutions[last][seen], memory.evaluations[last][seen]], -1)
        pairs = jnp.where(number > 0, pairs, end).reshape(-1)
        solution, evaluation = (
            x[number, one][None] for x in (memory.solutions, memory.evaluations)
        )
        pad = lambda x: jnp.concatenate([x, jnp.full(size - len(x), end, jnp.int32)])
        pages = [
            jnp.concatenate([token(SOLVE), memory.question, token(COLON), pairs]),
            jnp.concatenate(
                [token(EVALUATE), memory.question, token(EQUALS), solution, token(COLON)]
            ),
            jnp.concatenate(
                [token(SCORE), memory.question, token(EQUALS), solution, evaluation, token(COLON)]
            ),
        ]
        counts = jnp.array([len(x) for x in pages])
        return jnp.stack([pad(x) for x in pages])[stage], counts[stage]

    first = longest + 2 + 2 * shown
    size = max(first, longest + 5)

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        keys = jax.random.split(key, 7)
        place = jnp.arange(longest)
        count = jax.random.randint(keys[0], (), 2, terms + 1)
        digits = jax.random.randint(keys[1], (longest,), 0, base)
        joins = base + jax.random.randint(keys[2], (longest,), PLUS, MINUS + 1)
        question = jnp.where(place % 2 == 0, digits, joins)
        question = jnp.where(place < 2 * count - 1, question, end).astype(jnp.int32)
        order = lambda key: jax.random.permutation(key, agents)
        drawn = jax.vmap(order)(jax.random.split(keys[3], 2 * rounds)).reshape(rounds, 2, agents)
        own = jnp.broadcast_to(jnp.arange(agents), (rounds, 1, agents))
        writers = jnp.concatenate([own, drawn], 1).reshape(-1).astype(jnp.int32)
        seen = jax.vmap(order)(jax.random.split(keys[4], rounds))[:, :shown].astype(jnp.int32)
        slips = jax.random.bernoulli(keys[5], params.slips, (rounds * agents,))
        off = jax.random.randint(keys[6], (rounds * agents,), 1, base)
        none = jnp.full((rounds, agents), end, jnp.int32)
        memory = Memory(
            question,
            writers,
            seen,
            jnp.where(slips, off, 0).astype(jnp.int32),
            none,
            none,
            jnp.zeros((rounds, agents), jnp.int32),
        )
        return page(memory, jnp.int32(0))[0][:first], memory

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        number, stage, one = place_of(said.turn)
        part = read_enclosed(said.tokens, 1, base)
        digit = jnp.where((part.count > 0) & (part.first[0] < base), part.first[0], end)
        score = jnp.where((digit >= WORST) & (digit <= BEST), digit, 0)

        def write(table: Array, value: Array, written: int) -> Array:
            new = jnp.where(stage == written, value, table[number, one])
            return table.at[number, one].set(new.astype(jnp.int32))

        memory = dataclasses.replace(
            memory,
            solutions=write(memory.solutions, digit, SOLUTION),
            evaluations=write(memory.evaluations, digit, EVALUATION),
            scores=write(memory.scores, score, SCORING),
        )
        right = (memory.solutions == read_sum(memory.question, base)[0]).astype(jnp.float32)
        fair = memory.scores == jnp.where(right > 0, BEST, WORST)
        tokens, count = page(memory, said.turn + 1)
        return Reply(
            tokens,
            memory,
            Grade(
                jnp.where(said.turn == turns - 1, right[-1].mean(), 0.0),
                judged=memory.scores,
                metrics={
                    "first": right[0].mean(),
                    "score": memory.scores.mean(dtype=jnp.float32),
                    "scored": (memory.scores > 0).mean(dtype=jnp.float32),
                    "agrees": fair.mean(dtype=jnp.float32),
                },
            ),
            done=said.turn == turns - 1,
            count=count,
            restart=True,
        )

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        number, stage, one = place_of(turn)
        value = read_sum(memory.question, base)[0]
        wrong = (value + memory.slips[number * agents + one]) % base
        score = jnp.where(memory.solutions[number, one] == value, BEST, WORST)
        digit = jnp.stack([wrong, value, score])[stage].astype(jnp.int32)
        return jnp.concatenate([token(OPEN), digit[None], token(CLOSE), token(END)])

    env = conversing(
        "discussed_sums",
        vocabulary,
        (LENGTH,) * turns,
        begin=begin,
        respond=respond,
        solve=solve,
        params=Params(slips=0.3),
    )
    return _name_agents(env)


def _name_agents(env: Environment) -> Environment:
    """Return `env` with `tokens["agent"]`."""

    def name(state: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        assert timestep.tokens is not None
        agent = state.memory.agents[timestep.tokens["turn"]]
        return state, dataclasses.replace(timestep, tokens=timestep.tokens | {"agent": agent})

    return dataclasses.replace(
        env,
        reset=lambda key, params: name(*env.reset(key, params)),
        step=lambda key, state, action, params: name(*env.step(key, state, action, params)),
    )
