"""A fixed dataset in the place of an environment, and mixtures of the two."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import hyper as hyperparameters
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.shared import Original
from jaxrl.core.types import REPLICATED, Array, Batch, Source, TimeStep, Transition, Tree, struct
from jaxrl.sources import ring
from jaxrl.sources.ring import Ring
from jaxrl.sources.rollouts import SPLIT, check_shards
from jaxrl.sources.samplers import UNIFORM, Sampler


@struct
class Drawn:
    """State of the draws from a dataset."""

    batches: Array
    """Batches so far: int32."""
    order: Array
    """Numbers of the items of a batch, split over devices: int32 [n]."""


def dataset(
    transitions: Transition,
    batch_size: int,
    length: int | None = None,
    sampler: Sampler = UNIFORM,
    updates: int = 1,
    name: str = "",
    num_shards: int = 1,
) -> Source:
    """Draw batches of `batch_size` (n) from a dataset of N `transitions`, for offline learning.

    transitions: [N], one step after the other, one episode after the other. Each has its own
        successor, so the last step of an episode is never joined to the first of the next.
    length: None for batches of single transitions [n]; otherwise batches are windows [length, n] of
        consecutive steps. Windows go on across the end of an episode, where `done` and the next
        step's `first` are set.
    sampler: which items are drawn; the `priority` [n] that an update feeds back goes to it.
    updates: batches drawn in one step of `learn`. Since no environment is played, these batches
        (gradient steps) count as steps: as `env_steps`, which drive budgets and schedules.
    name: the name of the dataset in messages.
    num_shards: logical shards of a batch. Every device draws from the whole dataset.

    The arrays are `Shared`: in memory once for all members of a run, and in no checkpoint.

    Raises `UserError` for sizes below 1, an empty dataset, arrays of different lengths, windows
    longer than the dataset, and a `batch_size` that the shards do not divide.
    """
    size = len(transitions.reward)
    sizes = {"batch_size": batch_size, "length": length, "updates": updates, "transitions": size}
    for what, value in sizes.items():
        if value is not None and value < 1:
            raise UserError(f"{what} must be at least 1, got {value}.")
    check_shards(num_shards, batch_size=batch_size)
    trees.check_rows(transitions, size, f"the rewards of the dataset '{name}'")
    if size < (length or 1):
        raise UserError(f"length is {length}; the dataset '{name}' has {size} steps.")
    column = jax.tree.map(lambda x: np.asarray(x)[:, None], transitions)
    original = Original(column, f"the dataset '{name}'")

    def init(key, hyper, policy):
        begin = lambda: sampler.overwrite(sampler.init(size, 1), jnp.int32(0), size)
        return Ring(
            Drawn(jnp.int32(0), jnp.arange(batch_size)),
            original.shared(),
            None,
            None,
            jnp.int32(0),
            jnp.int32(size),
            jax.vmap(begin, axis_size=1)(),
            {name: jnp.asarray(hyper[name], jnp.float32) for name in sampler.hyper},
        )

    def collect(state: Ring, policy, key):
        batches = state.source.batches + updates
        drawn = Drawn(batches, state.source.order)
        return dataclasses.replace(state, source=drawn), batches.astype(jnp.float32), {}

    def sample(state: Ring, fresh: Array, key) -> Batch:
        state = dataclasses.replace(state, transitions=state.transitions.value)
        return ring.draw(state, sampler, key, fresh, batch_size, length, order=state.source.order)

    def feedback(state: Ring, batch: Batch, feedback):
        return ring.update_priorities(state, sampler, batch, feedback.get("priority"))

    return Source(
        f"dataset({name})",
        init,
        collect,
        sample,
        feedback,
        env_steps=updates,
        hyper=dict(sampler.hyper),
        partition=Ring(Drawn(REPLICATED, SPLIT), *[REPLICATED] * 7),
    )


@struct
class Mixed:
    """States, or batches, of the two sources of a mixture."""

    offline: Tree
    online: Tree


def mixed(offline: Source, online: Source, num_shards: int = 1) -> Source:
    """Mix batches of two sources, the part of `offline` first. With equal batch sizes this is the
    symmetric sampling of Ball et al. (2023, "Efficient online reinforcement learning with offline
    data", section 4.1).

    Steps are counted by `online`, which plays. Channels of time steps and extras that only one
    source has are left out, as are masks, weights and memories. Each source hears the feedback
    about its part. With several logical shards (both sources must have as many) each shard has its
    parts of both.

    Raises `UserError` if the transitions of the two do not fit together.
    """

    def init(key, hyper, policy):
        keys = jax.random.split(key)
        return Mixed(offline.init(keys[0], hyper, policy), online.init(keys[1], hyper, policy))

    def collect(state, policy, key):
        keys = jax.random.split(key)
        data, old, _ = offline.collect(state.offline, policy, keys[0])
        played, new, metrics = online.collect(state.online, policy, keys[1])
        return Mixed(data, played), (old, new), metrics

    def sample(state, fresh, key):
        keys = jax.random.split(key)
        old = offline.sample(state.offline, fresh[0], keys[0])
        new = online.sample(state.online, fresh[1], keys[1])
        transitions = join(old.transitions, new.transitions, num_shards)
        return Batch(transitions, env_steps=new.env_steps, index=Mixed(old, new))

    def feedback(state, batch, feedback):
        sizes = tuple(
            x.transitions.reward.shape[-1] for x in (batch.index.offline, batch.index.online)
        )
        old, new = {}, {}
        for name, value in feedback.items():
            old[name], new[name] = split(value, sizes, num_shards)
        return Mixed(
            offline.feedback(state.offline, batch.index.offline, old),
            online.feedback(state.online, batch.index.online, new),
        )

    return Source(
        f"mixed({offline.name}, {online.name})",
        init,
        collect,
        sample,
        feedback,
        env_steps=online.env_steps,
        warmup=online.warmup,
        num_envs=online.num_envs,
        host_play=online.host_play,
        hyper=hyperparameters.merge(offline.hyper, online.hyper),
        partition=Mixed(offline.partition, online.partition),
    )


def split(value: Tree, sizes: tuple[int, int], num_shards: int = 1) -> tuple[Tree, Tree]:
    """Undo `join`: split arrays [..., n + m] of `sizes` (n, m), shard by shard, into [..., n] and
    [..., m]. Both parts have what is not an array of that length whole."""
    first = sizes[0] // num_shards

    def part(x: Array, *, of: slice) -> Array:
        if jnp.shape(x)[-1:] != (sum(sizes),):
            return x
        shards = x.reshape(*x.shape[:-1], num_shards, -1)[..., of]
        return shards.reshape(*x.shape[:-1], -1)

    before, after = slice(None, first), slice(first, None)
    return tuple(jax.tree.map(functools.partial(part, of=of), value) for of in (before, after))


def join(a: Transition, b: Transition, num_shards: int = 1) -> Transition:
    """Concatenate `a` [..., n] and `b` [..., m], shard by shard, without the channels and extras
    that only one of them has. Raises `UserError` if their observations or actions differ in
    structure or shape."""
    axis = a.reward.ndim - 1

    def alike(x: Tree, y: Tree) -> bool:
        same = jax.tree.structure(x) == jax.tree.structure(y)
        pairs = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=False)
        return same and all(p.shape[axis + 1 :] == q.shape[axis + 1 :] for p, q in pairs)

    def common(x: TimeStep, y: TimeStep) -> TimeStep:
        absent = {
            f.name: None
            for f in dataclasses.fields(TimeStep)
            if f.default is None and not alike(getattr(x, f.name), getattr(y, f.name))
        }
        return dataclasses.replace(x, **absent)

    def shared(x: Transition, y: Transition) -> Transition:
        return Transition(
            common(x.timestep, y.timestep),
            x.action,
            common(x.next_timestep, y.next_timestep),
            x.task if alike(x.task, y.task) else (),
            {k: v for k, v in x.extras.items() if alike(v, y.extras.get(k))},
        )

    a, b = shared(a, b), shared(b, a)
    if not alike(a, b):
        raise UserError("Two sources whose observations or actions differ cannot be mixed.")

    def beside(x, y):
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        parts = [z.reshape(*before, num_shards, -1, *after) for z in (x, y)]
        return jnp.concatenate(parts, axis + 1).reshape(*before, -1, *after)

    return trees.strong(jax.tree.map(beside, a, b))
