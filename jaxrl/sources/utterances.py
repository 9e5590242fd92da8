"""Conversations from a replay buffer, with one utterance of each said anew by the policy of today.

source = episodes(env, 128, keep_states=True)
source = renew_utterances(source, env, capacity=8192, batch_size=512)
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import (
    REPLICATED,
    Array,
    Batch,
    Environment,
    Key,
    Policy,
    Source,
    TimeStep,
    Transition,
    Tree,
    struct,
)
from jaxrl.sources.branches import play_on
from jaxrl.sources.rollouts import SPLIT, check_shards, window


@struct
class Conversations:
    """State of a replay buffer of conversations.

    data: transitions and mask of W windows of episodes, [T, W, B].
    windows: windows so far, int32.
    order: numbers of the conversations of a batch, split over devices, int32 [n].
    """

    source: Tree
    data: Tree
    windows: Array
    order: Array


def ends_of_utterances(t: Transition, mask: Array) -> Array:
    """Return which steps [T, B] are the last of an utterance of the agent.

    mask: bool [T, B], False after the ends of the episodes.
    """
    tokens, after = t.timestep.tokens, t.next_timestep.tokens
    return mask & tokens["decision"] & (t.done | (after["turn"] != tokens["turn"]))


def starts_of_utterances(t: Transition, mask: Array) -> Array:
    """Return which steps [T, B] are the first of an utterance of the agent; `mask` as above."""
    decides, ends = mask & t.timestep.tokens["decision"], ends_of_utterances(t, mask)
    before = jnp.concatenate([jnp.ones_like(ends[:1]), (ends | ~decides)[:-1]])
    return decides & before


def draw_start(key: Key, starts: Array) -> Array:
    """Draw one of the steps that are marked in each column of `starts` [T, B]: int32 [B]."""
    score = jax.random.uniform(key, starts.shape)
    return jnp.argmax(jnp.where(starts, score, -1), 0)


def utterance_from(t: Transition, mask: Array, begin: Array) -> Array:
    """Return which steps [T, B] are of the utterance that begins at the step `begin` [B]."""
    said = (jnp.arange(len(mask))[:, None] >= begin) & mask
    over = ends_of_utterances(t, mask) & said
    return said & (jnp.cumsum(over, 0) - over == 0)  # no end of the utterance before this step


def _side_by_side(a: Tree, b: Tree) -> Tree:
    """Return the columns of two trees in turns, leaves [T, B] -> [T, 2 B]."""
    stack = lambda x, y: jnp.stack([x, y], 2).reshape(len(x), -1, *x.shape[2:])
    return jax.tree.map(stack, a, b)


def _with_anew(t: Transition, anew: Array) -> Transition:
    return dataclasses.replace(t, extras={**t.extras, "anew": anew})


def renew_utterances(
    source: Source, env: Environment, capacity: int, batch_size: int, num_shards: int = 1
) -> Source:
    """Draw conversations from a replay buffer, and let the policy say one utterance of each anew.

    A batch holds whole episodes [T, 2 n] of n = `batch_size` conversations, drawn uniformly. The
    columns 0, 2, 4... are conversations as they were, also by earlier policies. Beside each one is
    a copy that goes as far as an utterance, drawn uniformly from those of the agent, which the
    policy that collects says again; the mask ends there, and the extra `anew` [T, 2 n] marks its
    tokens. So a policy is judged at states of the past for what it would say now.

    source: whole episodes of `env` with `keep_states`.
    env: what they are played in, which tells the turns of tokens. Where an utterance that is said
        anew ends, and which tokens are legal in it, is asked of copies of its states; no reply of
        theirs is used, so only the steps of `source` count.
    capacity: number of conversations that are kept, rounded up to windows of `source`.
    num_shards: logical shards of a batch.

    Batches have no memory and no tail. Raises `UserError` for sizes that do not fit, and for a
    source on the host.
    """
    _check_states(source)
    if capacity < 1 or batch_size < 1:
        raise UserError(
            f"capacity is {capacity} and batch_size {batch_size}; both must be at least 1."
        )
    check_shards(num_shards, batch_size=batch_size)
    room = -(-capacity // source.num_envs)

    def init(key, hyper, policy):
        state = source.init(key, hyper, policy)
        played = jax.eval_shape(functools.partial(window, source), state, policy, key)[1]
        widen = lambda x: jax.ShapeDtypeStruct((x.shape[0], room, *x.shape[1:]), x.dtype)
        shapes = dataclasses.replace(played.transitions, task=()), played.mask
        data = trees.zeros(jax.tree.map(widen, shapes))
        return Conversations(state, data, jnp.int32(0), jnp.arange(batch_size))

    def collect(state, policy, key):
        play_key, draw_key, turn_key, say_key = jax.random.split(key, 4)
        inner, batch, metrics = window(source, state.source, policy, play_key)
        fresh = dataclasses.replace(batch.transitions, task=()), batch.mask
        place, windows = state.windows % room, state.windows + 1
        data = jax.tree.map(lambda old, new: old.at[:, place].set(new), state.data, fresh)
        filled = jnp.minimum(windows, room) * source.num_envs
        drawn = jax.random.randint(draw_key, (batch_size,), 0, filled)[state.order]
        flat = lambda x: x.reshape(x.shape[0], -1, *x.shape[3:])[:, drawn]
        t, mask = jax.tree.map(flat, data)
        extras = dict(t.extras)
        states = extras.pop("env_state")
        t = dataclasses.replace(t, extras=extras)
        begin = draw_start(turn_key, starts_of_utterances(t, mask))
        old = Batch(t, batch.env_steps, mask=mask)
        own, running = play_on(env, policy, old, states, begin[None], say_key)
        anew = utterance_from(own, running, begin)
        until_its_end = running & (jnp.cumsum(anew[::-1], 0)[::-1] > 0)
        both, mask = _side_by_side((t, mask), (own, until_its_end))
        both = _with_anew(both, _side_by_side(jnp.zeros_like(anew), anew))
        state = Conversations(inner, data, windows, state.order)
        return state, Batch(both, batch.env_steps, mask=mask), metrics

    return dataclasses.replace(
        source,
        name=f"renew_utterances({source.name})",
        init=init,
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        feedback=lambda state, batch, feedback: state,
        partition=Conversations(source.partition, REPLICATED, REPLICATED, SPLIT),
    )


def branch_at_turns(source: Source, env: Environment) -> Source:
    """Play each conversation of `source` on once more, from the beginning of one utterance.

    A batch holds whole episodes [T, 2 B]. The columns 0, 2, 4... are those of `source`; beside each
    one is another that begins alike, up to an utterance drawn uniformly from those of the agent,
    and goes its own way from there. The extra `anew` [T, 2 B] marks that utterance in both.

    source: whole episodes of `env` with `keep_states`. env: what they are played in, which tells
        the turns of tokens.

    2 B episodes of T steps are simulated and counted. Batches have no memory and no tail. Raises
    `UserError` for a source on the host. Source: Gao et al., 2024, "Regressing the relative
    future", arXiv:2410.04612, algorithm 1.
    """
    _check_states(source)

    def collect(state, policy, key):
        play_key, turn_key, say_key = jax.random.split(key, 3)
        state, batch, metrics = window(source, state, policy, play_key)
        t, mask = batch.transitions, batch.mask
        assert mask is not None
        extras = dict(t.extras)
        states = extras.pop("env_state")
        t = dataclasses.replace(t, task=(), extras=extras)
        batch = dataclasses.replace(batch, transitions=t)
        begin = draw_start(turn_key, starts_of_utterances(t, mask))
        other, running = play_on(env, policy, batch, states, begin[None], say_key)
        anew = utterance_from(t, mask, begin), utterance_from(other, running, begin)
        both, mask = _side_by_side((t, mask), (other, running))
        both = _with_anew(both, _side_by_side(*anew))
        return state, Batch(both, 2 * batch.env_steps, mask=mask), metrics

    return dataclasses.replace(
        source,
        name=f"branch_at_turns({source.name})",
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        env_steps=2 * source.env_steps,
    )


def improve_utterances(
    source: Source, env: Environment, tries: int, enough: float, writer: Policy | None = None
) -> Source:
    """Replace one utterance of each conversation of `source` by the best of several new ones.

    The utterance is drawn uniformly from those of the agent that no utterance paid `enough`
    precedes. It is said `tries` (N) times anew, and the one that is paid most is handed out, the
    first of equal ones. What was said before it stays, and the mask ends with it; the extra `anew`
    [T, B] marks its tokens.

    source: whole episodes of `env` with `keep_states`. env: what they are played in, which tells
        the turns of tokens.
    enough: reward of an utterance after which none is improved.
    writer: who says it anew; None for the policy that plays `source`.

    B (1 + N) episodes of T steps are simulated and counted. Batches have no memory and no tail, and
    their transitions no other extras. Raises `UserError` without tries, and for a source on the
    host. Source: Qu et al., 2024, "Recursive introspection", arXiv:2407.18219, and its code.
    """
    _check_states(source)
    if tries < 1:
        raise UserError(f"tries is {tries}; an utterance must be said anew at least once.")

    def collect(state, policy, key):
        play_key, turn_key, say_key = jax.random.split(key, 3)
        state, batch, metrics = window(source, state, policy, play_key)
        t, mask = batch.transitions, batch.mask
        assert mask is not None
        extras = dict(t.extras)
        states = extras.pop("env_state")
        t = dataclasses.replace(t, task=(), extras=extras)
        right = ends_of_utterances(t, mask) & (t.reward >= enough)
        open_ = jnp.cumsum(right, 0) - right == 0
        begin = draw_start(turn_key, starts_of_utterances(t, mask) & open_)
        old = dataclasses.replace(batch, transitions=t)
        many = jnp.broadcast_to(begin, (tries, len(begin)))
        others, running = play_on(env, writer or policy, old, states, many, say_key)
        anew = utterance_from(others, running, jnp.repeat(begin, tries))
        paid = jnp.where(anew, others.reward, 0).sum(0).reshape(-1, tries)
        best = jnp.arange(len(begin)) * tries + jnp.argmax(paid, -1)
        others, anew = jax.tree.map(lambda x: x[:, best], (others, anew))
        until_its_end = jnp.cumsum(anew[::-1], 0)[::-1] > 0
        others = dataclasses.replace(others, extras={"anew": anew})
        steps = (1 + tries) * batch.env_steps
        return state, Batch(others, steps, mask=until_its_end), metrics

    return dataclasses.replace(
        source,
        name=f"improve_utterances({source.name})",
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        env_steps=(1 + tries) * source.env_steps,
    )


def said_by_turn(t: Transition, mask: Array, turns: int) -> Array:
    """Return the utterances of conversations, int32 [B, K, U], filled up with 0; U is T.

    t, mask: whole episodes [T, B]. turns: K, the most utterances.
    """
    decided = mask & t.timestep.tokens["decision"]
    turn = jnp.where(decided, t.timestep.tokens["turn"], turns)  # beyond the end, so dropped
    steps, size = decided.shape
    number = jnp.cumsum(decided, 0) - decided
    begins = jnp.full((turns, size), steps).at[turn, jnp.arange(size)].min(number, mode="drop")
    place = number - jnp.take_along_axis(begins, jnp.minimum(turn, turns - 1), 0)
    empty = jnp.zeros((size, turns, steps), t.action.dtype)
    return empty.at[jnp.arange(size), turn, place].set(t.action, mode="drop")


def recite(said: Array, order: Array) -> Policy:
    """Return a policy that says given utterances.

    said: int32 [N, K, U], utterances, as of `said_by_turn`, for each of N conversations.
    order: int32 [N, J], the number of the utterance that is said in each turn; the last one also in
        all turns after it.

    Its actions have no log-probability.
    """

    def act(
        state: Tree, timestep: TimeStep, memory: Tree, key: Key, greedy: bool
    ) -> tuple[Array, Tree, dict[str, Tree]]:
        said, order = state
        tokens, (turn, place) = timestep.tokens, memory
        assert tokens is not None and timestep.legal_actions is not None
        place = jnp.where(tokens["turn"] == turn, place, 0)
        row = jnp.arange(len(said))
        which = order[row, jnp.minimum(tokens["turn"], order.shape[1] - 1)]
        word = said[row, which, jnp.minimum(place, said.shape[2] - 1)]
        forced = jnp.argmax(timestep.legal_actions, -1)
        action = jnp.where(tokens["decision"], word, forced).astype(said.dtype)
        return action, (tokens["turn"], place + tokens["decision"]), {}

    return Policy(act, lambda n: (jnp.zeros(n, jnp.int32),) * 2, (said, order))


def compare_attempts(source: Source, env: Environment, attempts: int) -> Source:
    """Make two pairs of texts of each conversation of `source`, of its best and its worst attempt.

    An attempt is an utterance of the agent; the best and the worst have the highest and the lowest
    reward, the first of equal ones. Both are said anew: in the first turn, and in the second after
    the worst one. So the second pair has the same beginning, and says the worst one again or the
    best one instead of it.

    source: whole episodes of `env` with `keep_states`. env: what they are played in, which tells
        the turns of tokens; nothing in it may be random after the beginning.
    attempts: the most utterances of a conversation, at least 2.

    A batch holds whole episodes [T, 4 B]: of each conversation the best and the worst attempt as
    the first, then both as the second. The mask ends with the attempt that is compared; the extra
    `anew` [T, 4 B] marks its tokens, and `apart` [T, 4 B] says by how much the two attempts'
    rewards differ; 0 where one of the four texts would say what is not legal. Logs `first` and
    `last`, the mean rewards of the first and the last attempt, and `best`.

    5 B episodes of T steps are simulated and counted. Batches have no memory and no tail. Raises
    `UserError` for fewer than two attempts, and for a source on the host.
    """
    _check_states(source)
    if attempts < 2:
        raise UserError(f"attempts is {attempts}; there must be at least 2 to compare.")

    def collect(state, policy, key):
        play_key, say_key = jax.random.split(key)
        state, batch, metrics = window(source, state, policy, play_key)
        t, mask = batch.transitions, batch.mask
        assert mask is not None
        states = t.extras["env_state"]
        decided = mask & t.timestep.tokens["decision"]
        turn = jnp.where(decided, t.timestep.tokens["turn"], -1)
        paid = jnp.zeros((attempts, len(mask[0])))
        row = jnp.arange(mask.shape[1])
        place = jnp.where(turn < 0, attempts, turn)
        paid = paid.at[place, row].add(jnp.where(decided, t.reward, 0), mode="drop")
        made = jnp.arange(attempts)[:, None] <= turn.max(0)
        best = jnp.argmax(jnp.where(made, paid, -jnp.inf), 0)
        worst = jnp.argmin(jnp.where(made, paid, jnp.inf), 0)
        said = said_by_turn(t, mask, attempts)
        orders = jnp.stack([best, best, worst, worst, worst, best, worst, worst], -1)
        order = orders.reshape(-1, 2)  # of four texts, side by side
        writer = recite(jnp.repeat(said, 4, 0), order)
        t = dataclasses.replace(t, task=(), extras={})
        old = Batch(t, batch.env_steps, mask=mask)
        begin = jnp.zeros((4, mask.shape[1]), jnp.int32)
        texts, running = play_on(env, writer, old, states, begin, say_key)
        second = jnp.arange(running.shape[1]) % 4 >= 2
        spoken = running & texts.timestep.tokens["decision"]
        anew = spoken & (texts.timestep.tokens["turn"] == second)
        until_its_end = jnp.cumsum(anew[::-1], 0)[::-1] > 0
        legal = texts.timestep.legal_actions
        allowed = jnp.take_along_axis(legal, texts.action[..., None], -1)[..., 0] | ~anew
        allowed = allowed.all(0).reshape(-1, 4).all(-1)
        value = lambda which: paid[which, row]
        apart = jnp.repeat(jnp.where(allowed, value(best) - value(worst), 0), 4)
        extras = {"anew": anew, "apart": jnp.broadcast_to(apart, anew.shape)}
        texts = dataclasses.replace(texts, extras=extras)
        values = {"first": paid[0], "last": value(turn.max(0)), "best": value(best)}
        metrics = {**metrics, **{n: m.mean(x.mean()) for n, x in values.items()}}
        steps = 5 * batch.env_steps
        return state, Batch(texts, steps, mask=running & until_its_end), metrics

    return dataclasses.replace(
        source,
        name=f"compare_attempts({source.name})",
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        env_steps=5 * source.env_steps,
    )


def _check_states(source: Source) -> None:
    """Raise `UserError` for a source on the host."""
    if source.host_play:
        raise UserError(f"'{source.name}' is played on the host, whose states cannot be copied.")
