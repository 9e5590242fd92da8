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
from jaxrl.core.types import REPLICATED, Array, Batch, Environment, Source, Transition, Tree, struct
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
    if source.host_play:
        raise UserError(f"'{source.name}' is played on the host, whose states cannot be copied.")
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
        starts = starts_of_utterances(t, mask)
        score = jax.random.uniform(turn_key, starts.shape)[:, state.order]
        begin = jnp.argmax(jnp.where(starts, score, -1), 0)
        old = Batch(t, batch.env_steps, mask=mask)
        own, running = play_on(env, policy, old, states, begin[None], say_key)
        said = jnp.arange(len(mask))[:, None] >= begin
        over = ends_of_utterances(own, running) & said
        before = jnp.cumsum(over, 0) - over == 0  # no end of the utterance before this step
        anew = said & before & running
        side_by_side = lambda x, y: jnp.stack([x, y], 2).reshape(len(x), -1, *x.shape[2:])
        both = jax.tree.map(side_by_side, (t, mask), (own, running & before))
        marked = side_by_side(jnp.zeros_like(anew), anew)
        both_t = dataclasses.replace(both[0], extras={**both[0].extras, "anew": marked})
        state = Conversations(inner, data, windows, state.order)
        return state, Batch(both_t, batch.env_steps, mask=both[1]), metrics

    return dataclasses.replace(
        source,
        name=f"renew_utterances({source.name})",
        init=init,
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        feedback=lambda state, batch, feedback: state,
        partition=Conversations(source.partition, REPLICATED, REPLICATED, SPLIT),
    )
