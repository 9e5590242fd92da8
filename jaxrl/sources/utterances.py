"""Conversations from a replay buffer, with one utterance of each said anew by the policy of today.

source = episodes(env, 128, keep_states=True)
source = renew_utterances(source, env, capacity=8192, batch_size=512)
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

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


def _check_states(source: Source) -> None:
    """Raise `UserError` for a source on the host."""
    if source.host_play:
        raise UserError(f"'{source.name}' is played on the host, whose states cannot be copied.")
