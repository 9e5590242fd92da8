"""Kit for token environments with turns: the agent writes, the environment replies, and so on.

A step adds one token to the text. The observation is the text's last token, so a policy needs a
memory, such as the keys and values of a language model. While something is read that the agent does
not write, a prompt or a reply, its next token is the only legal action: such a step is no decision,
its log-probability and entropy are 0, and an agent learns nothing from it, as it should. An
utterance ends with the token END or at its maximum length; then the environment replies, may pay a
reward, and may end the text. `TimeStep.tokens` says of the token that follows:

decision: bool [], whether the agent writes it.
turn: int32 [], the utterance (from 0) that it belongs to, or leads to.
speaker: int32 [], who writes it: ENVIRONMENT, AGENT or TOOL.
restart: bool [], whether the token that is observed is the first one that its reader sees: what
    policies remember begins anew there. Only in environments with several readers.
reader: int32 [], the number of readers before the one whose part of the text it belongs to. Only
    there, too.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, Judge, Key, TimeStep, Tree, struct
from jaxrl.envs import timesteps
from jaxrl.envs.language.transcript import picture

ENVIRONMENT, AGENT, TOOL = range(3)


@struct
class Grade:
    """Grade of what the agent has written.

    reward: float32 [], paid at the end of the utterance.
    success: float32 [], 1 for a right answer and 0 for a wrong one; None where answers are neither.
    judged: what `Environment.judge` compares of a text, any tree; None without a judge.
    metrics: further scalars by name, float32 []; None for none.
    components: parts of the reward by name, float32 []; None for none.
    cost: what a constraint limits, float32 [], or [K] for K constraints; None for none.

    All but the reward are reported at the end of the text alone.
    """

    reward: Array
    success: Array | None = None
    judged: Tree = None
    metrics: dict[str, Array] | None = None
    components: dict[str, Array] | None = None
    cost: Array | None = None


@struct
class Prompt:
    """Prompt that may be shorter than others.

    tokens: int32 [P], of the longest prompt's length. count: int32 [], from 1; the first `count`
        tokens are said.
    """

    tokens: Array
    count: Array


@struct
class Utterance:
    """Utterance that the agent has just written.

    tokens: int32 [U], of the longest utterance's length, filled up with END.
    ended: bool [], whether it ended with END; if not, it was cut off.
    turn: int32 [], its number, from 0.
    over: bool [], whether it is complete: before, `respond` is called too, and its reply is unused.
    """

    tokens: Array
    ended: Array
    turn: Array
    over: Array | bool = True


@struct
class Reply:
    """Reply of the environment to an utterance.

    tokens: int32 [R], of which the first `count` are said. Nothing is said after the last turn.
    memory: the environment's own state, as `begin` returned it.
    grade: of the utterance, and of the text where it ends.
    done: bool [], whether the text ends here; it always does after the last turn.
    count: int32 []. speaker: int32 [], who says it.
    restart: bool [], whether another reader goes on, who sees the reply and nothing before it; None
        where this never happens. A reply that restarts has at least one token.
    """

    tokens: Array
    memory: Tree
    grade: Grade
    done: Array | bool = False
    count: Array | int = 0
    speaker: Array | int = ENVIRONMENT
    restart: Array | bool | None = None


@struct
class State:
    text: Array  # int32 [L]: what is written, then END
    speakers: Array  # int32 [L]: who wrote it
    position: Array  # int32: position of the last token that was observed
    known: Array  # int32: number of tokens that are written
    start: Array  # int32: position of the first token of the agent's utterance
    turn: Array  # int32
    memory: Tree
    begins: Array | None  # int32: position where the present reader begins; None if always 0
    reader: Array | None  # int32: number of earlier readers; None if always 0


class Begin(Protocol):
    """A function that begins a text."""

    def __call__(self, key: Key, params: Any, /) -> tuple[Array | Prompt, Tree]:
        """Return the prompt, int32 [P] or a `Prompt`, and the environment's own state, any
        tree."""
        ...


class Respond(Protocol):
    """A function that answers an utterance."""

    def __call__(self, key: Key, memory: Tree, said: Utterance, params: Any, /) -> Reply:
        """Return the environment's reply. memory: its own state. params: its parameters."""
        ...


class Solve(Protocol):
    """A function that knows what to say."""

    def __call__(self, memory: Tree, turn: Array, params: Any, /) -> Array:
        """Return a good utterance of this turn, int32 [U], filled up with END."""
        ...


class Legal(Protocol):
    """A function that restricts utterances."""

    def __call__(self, memory: Tree, turn: Array, place: Array, /) -> Array:
        """Return the tokens, bool [V], that may stand at this place (from 0) of an utterance."""
        ...


def conversing(
    name: str,
    vocabulary: tuple[str, ...],
    lengths: tuple[int, ...],
    *,
    begin: Begin,
    respond: Respond,
    params: Tree,
    solve: Solve | None = None,
    legal: Legal | None = None,
    judge: Judge | None = None,
    end: int | None = None,
    reply_lengths: tuple[int, ...] | None = None,
) -> Environment:
    """Build an environment with as many turns as there are `lengths`, each an utterance of up to so
    many tokens, at most U.

    vocabulary: texts of the tokens 0 .. V - 1.
    begin: the prompt, and the environment's own state. respond: a reply to each utterance.
    params: the environment's parameters.
    solve: a good utterance; None without an expert.
    legal: the tokens that an utterance may consist of; None: all.
    judge: the preference between two texts with one prompt, by what their grades say is `judged`,
        which becomes the channel `TimeStep.privileged["judged"]`.
    end: the token END; None for the last one of the vocabulary.
    reply_lengths: the most tokens of the reply to each utterance but the last, which has none; None
        for R each.

    Raises `UserError` without turns, and for utterances or prompts without tokens.
    """
    if min(lengths, default=0) < 1:
        raise UserError(f"'{name}' has turns of {lengths} tokens; each must be at least 1.")
    size, turns, longest = len(vocabulary), len(lengths), max(lengths)
    shapes = jax.eval_shape(_first_reply(begin, respond, longest), jax.random.key(0), params)
    (prompt_length,), (replies,) = shapes[0].tokens.shape, shapes[1].tokens.shape
    if prompt_length < 1:
        raise UserError(f"'{name}' begins with no token; a prompt must have at least one.")
    key = jax.random.key(0)
    varies = isinstance(jax.eval_shape(begin, key, params)[0], Prompt)  # in its length
    reply_lengths = (replies,) * (turns - 1) if reply_lengths is None else reply_lengths
    assert len(reply_lengths) == turns - 1 and max(reply_lengths, default=0) <= replies
    total = prompt_length + sum(lengths) + sum(reply_lengths)
    end = size - 1 if end is None else end
    places = np.arange(total)

    def channels(grade: Grade, done: Array) -> dict[str, Any]:
        """Return the channels of a grade, zeros before the end."""
        grade = jax.tree.map(lambda x: jnp.where(done, x, jnp.zeros_like(x)), grade)
        metrics = {} if grade.success is None else {"success": grade.success}
        found: dict[str, Any] = {"metrics": {**metrics, **(grade.metrics or {})}}
        found = {} if not found["metrics"] else found
        more = {"reward_components": grade.components, "cost": grade.cost}
        if grade.judged is not None:
            more["privileged"] = {"judged": grade.judged}
        return found | {name: value for name, value in more.items() if value is not None}

    def emit(state: State) -> dict[str, Any]:
        place = state.position + 1
        decision, place = place >= state.known, jnp.minimum(place, total - 1)
        legal_actions = jnp.arange(size) == state.text[place]
        within = jnp.minimum(place - state.start, longest - 1)
        free = jnp.ones(size, bool) if legal is None else legal(state.memory, state.turn, within)
        speaker = jnp.where(decision, AGENT, state.speakers[place])
        tokens = {"decision": decision, "turn": state.turn, "speaker": speaker}
        if state.begins is not None:
            assert state.reader is not None
            tokens |= {"restart": state.position == state.begins, "reader": state.reader}
        return {"legal_actions": jnp.where(decision, free, legal_actions), "tokens": tokens}

    def reset(key: Key, params: Tree) -> tuple[State, TimeStep]:
        prompt, memory = _begin(begin, key, params)
        zero, known = jnp.zeros((), jnp.int32), jnp.asarray(prompt.count, jnp.int32)
        said = jnp.where(places[:prompt_length] < known, prompt.tokens.astype(jnp.int32), end)
        text = jnp.full(total, end, jnp.int32).at[:prompt_length].set(said)
        speakers = jnp.full(total, ENVIRONMENT, jnp.int32)
        begins = None if shapes[1].restart is None else zero
        state = State(
            text, speakers, zero, known, known, zero, trees.strong(memory), begins, begins
        )
        empty = channels(trees.zeros(shapes[1].grade), jnp.zeros((), bool))
        return state, timesteps.first(text[0], **empty, **emit(state))

    def step(key: Key, state: State, action: Array, params: Tree) -> tuple[State, TimeStep]:
        position = state.position + 1
        decision = position >= state.known
        token = jnp.where(decision, action, state.text[position]).astype(jnp.int32)
        here = decision & (places == position)
        text = jnp.where(here, token, state.text)
        speakers = jnp.where(here, AGENT, state.speakers)
        ended = decision & (token == end)
        limit = state.start + jnp.asarray(lengths)[state.turn]
        over = ended | (decision & (position + 1 >= limit))
        within = state.start + jnp.arange(longest)
        tokens = jnp.where(within <= position, text[jnp.minimum(within, total - 1)], end)
        said = respond(key, state.memory, Utterance(tokens, ended, state.turn, over), params)
        done = over & (jnp.asarray(said.done) | (state.turn == turns - 1))
        goes_on = over & ~done
        known = jnp.where(decision, position + 1, state.known)
        replied = known + jnp.where(goes_on, said.count, 0).astype(jnp.int32)
        if replies:
            inside = (places >= known) & (places < replied)
            line = said.tokens[jnp.clip(places - known, 0, replies - 1)].astype(jnp.int32)
            text = jnp.where(inside, line, text)
            speakers = jnp.where(inside, said.speaker, speakers)
        start, turn = jnp.where(goes_on, replied, state.start), state.turn + goes_on
        memory = trees.where(over, trees.strong(said.memory), state.memory)
        begins, reader = state.begins, state.reader
        if begins is not None and reader is not None and said.restart is not None:
            anew = goes_on & said.restart
            begins, reader = jnp.where(anew, known, begins), reader + anew
        state = State(text, speakers, position, replied, start, turn, memory, begins, reader)
        reward = jnp.where(over, said.grade.reward, 0)
        more = channels(said.grade, done)
        return state, timesteps.following(token, reward, done, **more, **emit(state))

    def expert(state: State, params: Tree) -> Array:
        assert solve is not None
        place = jnp.minimum(state.position + 1, total - 1)
        within = jnp.clip(place - state.start, 0, longest - 1)
        spoken = solve(state.memory, state.turn, params)[within].astype(jnp.int32)
        return jnp.where(state.position + 1 >= state.known, spoken, state.text[place])

    return Environment(
        name=name,
        reset=reset,
        step=step,
        params=params,
        observation_space=Discrete(size),
        action_space=Discrete(size),
        max_steps=total - 1,
        render=lambda state, params: picture(
            vocabulary, state.text, state.speakers, int(state.position) + 1
        ),
        expert=None if solve is None else expert,
        judge=judge,
        vocabulary=vocabulary,
        forced_steps=0 if varies else prompt_length - 1,
    )


def _begin(begin: Begin, key: Key, params: Tree) -> tuple[Prompt, Tree]:
    """Return the prompt, and the environment's own state."""
    prompt, memory = begin(key, params)
    if not isinstance(prompt, Prompt):
        prompt = Prompt(prompt, jnp.asarray(prompt.shape[0], jnp.int32))
    return prompt, memory


def _first_reply(begin: Begin, respond: Respond, longest: int) -> Any:
    """Build a function (key, params) that returns a prompt and the reply to a first utterance."""

    def first_reply(key: Key, params: Tree) -> tuple[Prompt, Reply]:
        prompt, memory = _begin(begin, key, params)
        tokens, no = jnp.zeros(longest, jnp.int32), jnp.zeros((), bool)
        said = Utterance(tokens, no, jnp.zeros((), jnp.int32), no)
        return prompt, trees.strong(respond(key, trees.strong(memory), said, params))

    return first_reply
