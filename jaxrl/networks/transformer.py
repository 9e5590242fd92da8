"""A transformer, whose memory is the keys and values of the episode so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.memory import Memory
from jaxrl.core.types import Array, struct
from jaxrl.networks.compute import module_again, product
from jaxrl.networks.dense import hidden_dense

HIDDEN = -1e9  # finite, so that a row of logits with nothing visible does not become NaN


def contract(equation: str, x: Array, y: Array) -> Array:
    """Return `einsum` of two arrays, in bfloat16 if networks compute so."""
    return product(lambda x, y: jnp.einsum(equation, x, y), x, y)


def attention(query: Array, keys: Array, values: Array, visible: Array, axes: str) -> Array:
    """Return the mean of the visible values, weighted by the softmax of query times keys.

    query: scaled, with the `axes` and d: `bh` in one step, `tbh` in a window. Where several heads
        share keys (Ainslie et al., 2023, "GQA", arXiv:2305.13245), `g` follows `h`.
    keys, values: [B, heads, slots, d]. visible: bool [B, slots], in a window [B, T, slots].
    """
    heads = axes.removeprefix("tb").removeprefix("b")
    scores = f"b{heads}ts" if axes[0] == "t" else f"b{heads}s"
    logits = contract(f"{axes}d,bhsd->{scores}", query, keys)
    visible = jnp.expand_dims(visible, range(1, 1 + len(heads)))
    weights = jax.nn.softmax(jnp.where(visible, logits, HIDDEN))
    return contract(f"{scores},bhsd->{axes}d", weights, values)


@struct
class Cache(Memory):
    """Keys and values of an episode so far, for later steps to attend to: slot s holds step s.

    Slots from `position` on are hidden, whatever finite numbers they contain. So position 0 is an
    empty memory, and a new episode that starts there cannot see an old one's keys.
    """

    keys: tuple[Array, ...]  # of each layer: [B, heads, length, d]
    values: tuple[Array, ...]  # shaped like keys
    position: Array  # int32 [B]: number of steps so far

    def restart(self, first: Array) -> Cache:
        """Return the cache with position 0 where `first`."""
        position = trees.where(first, jnp.zeros_like(self.position), self.position)
        return dataclasses.replace(self, position=position)

    def shrink(self) -> Cache:
        """Return this empty cache without slots."""
        keys, values = jax.tree.map(lambda x: x[:, :, :0], (self.keys, self.values))
        return Cache(keys, values, self.position)


class Block(nn.Module):
    """A transformer block: attention and a two-layer perceptron, each with a residual connection.

    Layer normalization comes first in each (Xiong et al., 2020, "On layer normalization in the
    transformer architecture").
    """

    width: int
    heads: int

    axes = "h"  # of queries, between those of time and batch and d; see `attention`

    def setup(self):
        init = nn.initializers.lecun_normal()
        self.norms = [nn.LayerNorm(), nn.LayerNorm()]
        self.projections = hidden_dense(3 * self.width, init)
        self.mix = hidden_dense(self.width, init)
        self.grow, self.shrink = hidden_dense(4 * self.width, init), hidden_dense(self.width, init)

    def project(self, x: Array, slot: Array) -> tuple[Array, Array, Array]:
        """Project x [..., width] to queries, keys and values, each [..., heads, width / heads].

        slot: int32 [...], position in the episode, which the input of the first layer contains.
        """
        parts = jnp.split(self.projections(self.norms[0](x)), 3, -1)
        query, key, value = (p.reshape(*x.shape[:-1], self.heads, -1) for p in parts)
        return query / jnp.sqrt(query.shape[-1]), key, value

    def finish(self, x: Array, attended: Array) -> Array:
        """Add the attention [..., heads, width / heads] and the perceptron to x [..., width]."""
        x = x + self.mix(attended.reshape(x.shape))
        return x + self.shrink(nn.gelu(self.grow(self.norms[1](x))))


def attend(
    block: Any, x: Array, slot: Array, keys: Array, values: Array, visible: Array
) -> tuple[Array, Array, Array]:
    """Apply a block to a window x [T, B, width] in the slots [T, B] after remembered keys and
    values [B, heads, slots, d], of which a step sees those that are `visible` [B, T, slots + T].
    Returns x, and the keys and values [B, heads, T, d] of the window."""
    query, key, value = block.project(x, slot)
    key, value = (jnp.moveaxis(part, 0, 2) for part in (key, value))
    both = lambda old, new: jnp.concatenate([old, new], 2)
    found = attention(query, both(keys, key), both(values, value), visible, f"tb{block.axes}")
    return block.finish(x, found), key, value


class CachedDecoder(nn.Module):
    """A causal decoder over the steps of an episode, whose memory is a `Cache`.

    A single step reads the cache. Over a window all steps are computed at once, with the same
    results as step by step.

    Subclasses have a `length`, the number of slots: the longest episode, plus one if the value of a
    truncated step's successor is needed. Later steps overwrite the last slot. They have a number of
    `layers`, and in `setup` make `blocks`, each with `project`, `finish` and `axes` as those of
    `Block`, and `norm`. No gradient flows below the first `frozen` of these, so that they stay as
    they are, as does what is below them.
    """

    frozen = 0

    def place(self, x: Array, slot: Array) -> Array:
        """Return the input of the first layer at these positions: x [..., width], slot [...]."""
        return x

    def slot_shape(self) -> tuple[int, int]:
        """Return the number of heads of keys, and their width d."""
        raise NotImplementedError

    def __call__(self, x: Array, memory: Cache) -> tuple[Array, Cache]:
        """Take one step: x [B, width], memory [B] -> features [B, width], memory."""
        slot = jnp.minimum(memory.position, self.length - 1)
        visible = jnp.arange(self.length) <= slot[:, None]  # [B, length]
        x = self.place(x, slot)
        # One slot is written. In a loop that is done in place; a select would copy the cache.
        write = jax.vmap(lambda old, slot, new: old.at[:, slot].set(new))
        keys, values = [], []
        for block, old_keys, old_values in self._layers(memory):
            query, key, value = block.project(x, slot)
            keys.append(write(old_keys, slot, key))
            values.append(write(old_values, slot, value))
            found = attention(query, keys[-1], values[-1], visible, f"b{block.axes}")
            x = block.finish(x, found)
            x = jax.lax.stop_gradient(x) if len(keys) == self.frozen else x
        return self.norm(x), Cache(tuple(keys), tuple(values), memory.position + 1)

    def unroll(self, x: Array, first: Array, memory: Cache) -> tuple[Array, Cache]:
        """Unroll over a window: x [T, B, width], first [T, B], memory [B] before its first step,
        which may have no slots (`Cache.shrink`).

        Returns features [T, B, width] and the memory after each step, [T, B]: a copy of the cache
        for every step, which costs nothing if it is not used.
        """
        time = jnp.arange(x.shape[0])
        start = jax.lax.cummax(jnp.where(first, time[:, None], -1))  # [T, B]; -1: before the window
        since = time[:, None] - start
        position = jnp.where(start < 0, memory.position + time[:, None], since)
        slot = jnp.minimum(position, self.length - 1)
        # A step sees the memory as long as no episode began in the window. Within the window it
        # sees itself and the earlier steps of its own episode.
        slots = memory.keys[0].shape[2]
        remembered = jnp.arange(slots) < memory.position[:, None]  # [B, slots]
        remembered = (start < 0).T[:, :, None] & remembered[:, None]  # [B, T, slots]
        same = (start.T[:, :, None] == start.T[:, None]) & (time[:, None] >= time)  # [B, T, T']
        visible = jnp.concatenate([remembered, same], -1)
        x, keys, values = self._window(x, slot, visible, memory)

        # Time in the window at which slot s was filled, as of step t; negative: before the window.
        filled = time[:, None, None] - position[:, :, None] + jnp.arange(self.length)
        row = jnp.arange(x.shape[1])[None, :, None]

        def caches(old: Array, new: Array) -> Array:
            taken = jnp.moveaxis(new, 2, 1)[row, jnp.clip(filled, 0, len(time) - 1)]
            taken = jnp.moveaxis(taken, 3, 2)  # [T, B, heads, length, d]
            # Without slots what was filled before the window is hidden.
            return jnp.where(filled[:, :, None, :, None] < 0, old, taken) if slots else taken

        every = lambda old, new: tuple(map(caches, old, new))
        after = Cache(every(memory.keys, keys), every(memory.values, values), position + 1)
        return self.norm(x), after

    def read(self, x: Array, memory: Cache) -> tuple[Array, Cache]:
        """Read the beginnings of episodes: x [T, B, width] from their first step on, empty memory
        [B] -> features [T, B, width], and the memory [B] after the last step."""
        time = jnp.arange(x.shape[0])
        slot = jnp.broadcast_to(time[:, None], x.shape[:2])
        earlier = (time[:, None] >= time)[None]  # the same for all: XLA would fold [B, T, T]
        x, keys, values = self._window(x, slot, earlier, memory.shrink())
        fill = lambda old, new: old.at[:, :, : len(x)].set(new)
        every = lambda old, new: tuple(map(fill, old, new))
        position = jnp.full_like(memory.position, len(x))
        after = Cache(every(memory.keys, keys), every(memory.values, values), position)
        return self.norm(x), after

    def _window(
        self, x: Array, slot: Array, visible: Array, memory: Cache
    ) -> tuple[Array, list[Array], list[Array]]:
        """Return the last block's outputs over a window, and each layer's keys and values of its
        steps [B, heads, T, d]. slot: [T, B]. visible: [B or 1, T, slots + T]."""
        x = self.place(x, slot)
        keys, values = [], []
        attend_again = module_again(attend)
        for block, old_keys, old_values in self._layers(memory):
            x, key, value = attend_again(block, x, slot, old_keys, old_values, visible)
            keys.append(key)
            values.append(value)
            x = jax.lax.stop_gradient(x) if len(keys) == self.frozen else x
        return x, keys, values

    def _layers(self, memory: Cache) -> Iterator[tuple[Any, Array, Array]]:
        """Return each block with the keys and values that it remembers."""
        return zip(self.blocks, memory.keys, memory.values, strict=True)

    def initial(self, n: int) -> Cache:
        """Return the empty memory [n] before an episode's first step."""
        heads, size = self.slot_shape()
        shape = n, heads, self.length, size
        empty = lambda: tuple(jnp.zeros(shape) for _ in range(self.layers))
        return Cache(empty(), empty(), jnp.zeros(n, jnp.int32))


class Transformer(CachedDecoder):
    """A transformer decoder over the steps of an episode, with learned positions (Vaswani et al.,
    2017, arXiv:1706.03762; the order of layers is GPT-2's). `length` and `frozen` are as in
    `CachedDecoder`."""

    width: int
    length: int
    layers: int = 2
    heads: int = 2
    frozen: int = 0

    def setup(self):
        scale = nn.initializers.normal(0.1)
        self.positions = self.param("positions", scale, (self.length, self.width))
        self.blocks = [Block(self.width, self.heads) for _ in range(self.layers)]
        self.norm = nn.LayerNorm()

    def place(self, x: Array, slot: Array) -> Array:
        """Add the learned position."""
        return x + self.positions[slot]

    def slot_shape(self) -> tuple[int, int]:
        """Return the number of heads, and their width."""
        return self.heads, self.width // self.heads
