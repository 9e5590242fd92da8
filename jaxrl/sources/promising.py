"""Episodes that did better than their group, kept beside fresh ones to be imitated later."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import REPLICATED, Array, Source, Tree, struct
from jaxrl.sources.rollouts import window

FILL = 1.5  # so many times the episodes that are handed out must be worth it: SPEAR's code


@struct
class Promising:
    """State of a source that keeps promising episodes.

    data: transitions and mask of W windows, [T, W, B].
    kept: which of their episodes are kept, bool [W, B]. returns: [W, B].
    means: mean return of each group of H windows, [H, P]; NaN where there is none yet.
    windows: windows so far, int32.
    """

    source: Tree
    data: Tree
    kept: Array
    returns: Array
    means: Array
    windows: Array


def with_promising(source: Source, size: int, count: int, windows: int, history: int) -> Source:
    """Hand out promising episodes of the last `windows` (W) windows behind fresh ones.

    After each update the source hears, by `feedback`, the returns of the fresh episodes [B]
    (`returns`) and which of them are `promising`, bool [B]: these are kept. Once more than 1.5
    times `count` (N) of them are still above the median of the mean returns of all groups in the
    last `history` (H) windows, N of those are handed out, drawn at random, and all are forgotten.

    source: whole episodes [T, B] in groups of `size` neighbors.

    A batch holds transitions [T, B + N]: fresh ones, then those that are kept, masked out unless
    they are handed out. The extra `recalibrated` [T, B + N] is how much the return of an episode
    that is handed out exceeds that median; 0 for fresh ones. Batches have no memory and no tail.
    Raises `UserError` for sizes that do not fit. Source: Qin et al., 2025, arXiv:2509.22601.
    """
    if min(count, windows, history) < 1:
        raise UserError(
            f"count is {count}, windows {windows} and history {history}; all must be at least 1."
        )
    fresh_count = source.num_envs
    if fresh_count % size or count > windows * fresh_count / FILL:
        raise UserError(
            f"{fresh_count} episodes must divide into groups of {size}, and {windows} windows of "
            f"them must hold more than {FILL:g} times {count}."
        )

    def init(key, hyper, policy):
        state = source.init(key, hyper, policy)
        played = jax.eval_shape(functools.partial(window, source), state, policy, key)[1]
        widen = lambda x: jax.ShapeDtypeStruct((x.shape[0], windows, *x.shape[1:]), x.dtype)
        data = trees.zeros(jax.tree.map(widen, (played.transitions, played.mask)))
        none = jnp.zeros((windows, fresh_count))
        means = jnp.full((history, fresh_count // size), jnp.nan)
        return Promising(state, data, none > 0, none, means, jnp.int32(0))

    def collect(state, policy, key):
        play_key, draw_key = jax.random.split(key)
        inner, batch, metrics = window(source, state.source, policy, play_key)
        median = jnp.where(state.windows > 0, jnp.nanmedian(state.means), jnp.inf)
        worth = state.kept & (state.returns > median)
        due = worth.sum() > FILL * count
        score = jnp.where(worth, jax.random.uniform(draw_key, worth.shape), -1).reshape(-1)
        chosen = jnp.argsort(-score)[:count]
        take = lambda x: x.reshape(x.shape[0], -1, *x.shape[3:])[:, chosen]
        old, old_mask = jax.tree.map(take, state.data)
        excess = jnp.where(due, state.returns.reshape(-1)[chosen] - median, 0.0)
        beside = lambda x, y: jnp.concatenate([x, y], 1)
        t = jax.tree.map(beside, batch.transitions, old)
        mask = beside(batch.mask, old_mask & due)
        excess = jnp.concatenate([jnp.zeros(fresh_count), excess])
        extras = {**t.extras, "recalibrated": jnp.broadcast_to(excess, mask.shape)}
        t = dataclasses.replace(t, extras=extras)
        batch = dataclasses.replace(batch, transitions=t, mask=mask)
        state = dataclasses.replace(state, source=inner, kept=state.kept & ~due)
        return state, batch, metrics

    def feedback(state, batch, feedback):
        first = lambda tree: jax.tree.map(lambda x: x[:, :fresh_count], tree)
        extras = {n: x for n, x in batch.transitions.extras.items() if n != "recalibrated"}
        t, mask = first((dataclasses.replace(batch.transitions, extras=extras), batch.mask))
        rest = {n: x for n, x in feedback.items() if n not in ("returns", "promising")}
        fresh = dataclasses.replace(batch, transitions=t, mask=mask)
        inner = source.feedback(state.source, fresh, rest)
        returns, place = feedback["returns"], state.windows % windows
        data = jax.tree.map(lambda old, new: old.at[:, place].set(new), state.data, (t, mask))
        group_means = returns.reshape(-1, size).mean(-1)
        return Promising(
            inner,
            data,
            state.kept.at[place].set(feedback["promising"]),
            state.returns.at[place].set(returns),
            state.means.at[state.windows % history].set(group_means),
            state.windows + 1,
        )

    return dataclasses.replace(
        source,
        name=f"with_promising({source.name})",
        init=init,
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        feedback=feedback,
        partition=Promising(source.partition, *[REPLICATED] * 5),
    )
