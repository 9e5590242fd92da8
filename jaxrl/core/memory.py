"""The memory of policies: how it begins anew with an episode."""

from __future__ import annotations

from typing import Any, Self

import jax

from jaxrl.core import trees
from jaxrl.core.shared import is_shared
from jaxrl.core.types import Array, Tree


class Memory:
    """Base class of a memory that begins anew without being overwritten.

    What a policy remembers of B episodes is any pytree with the leading axis [B]. Where an episode
    begins, `restart` selects the blank memory over all of it. That is a pass over a large memory at
    every step, so a node of this class, such as a cache that knows what of it is valid, says itself
    how it begins anew.
    """

    def restart(self, first: Array) -> Self:
        """Return the memory [B] in which new episodes begin where `first` [B] is True. There a
        policy must act exactly as after a blank memory."""
        raise NotImplementedError

    def shrink(self) -> Self:
        """Return this blank memory, without room for steps: only to unroll whole episodes from."""
        raise NotImplementedError


def is_memory(x: Any) -> bool:
    """Return whether `x` says itself how it begins anew."""
    return isinstance(x, Memory)


def restart(first: Array, blank: Tree, memory: Tree) -> Tree:
    """Return `memory` [B], but `blank` [B] where an episode begins (`first` [B])."""

    def begin(old: Tree, new: Tree) -> Tree:
        return old.restart(first) if is_memory(old) else trees.where(first, new, old)

    return jax.tree.map(begin, memory, blank, is_leaf=lambda x: is_memory(x) or is_shared(x))


def shrink(blank: Tree) -> Tree:
    """Return a blank memory [B] for `unroll` over windows in which every episode begins: where it
    has room for earlier steps, the room is left out, since there are none."""
    return jax.tree.map(lambda x: x.shrink() if is_memory(x) else x, blank, is_leaf=is_memory)
