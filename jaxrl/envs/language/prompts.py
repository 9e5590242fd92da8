"""Training prompts and held-out ones."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Key


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Prompts by their numbers, in a fixed shuffled order: training ones first, then held-out ones.

    order: int32 [N]. held_out: the number of held-out prompts, the last ones of the order.
    """

    order: np.ndarray
    held_out: int

    def draw(self, key: Key, held_out: Array | bool) -> Array:
        """Draw the number of a prompt, int32 []: a held-out one, or one for training, uniformly."""
        first = len(self.order) - self.held_out
        low, high = jnp.where(held_out, first, 0), jnp.where(held_out, len(self.order), first)
        return jnp.asarray(self.order)[jax.random.randint(key, (), low, high)]


def split_prompts(number: int, share: float = 0.2, seed: int = 0) -> Split:
    """Hold out a `share` of `number` (N) prompts, at least one; the same ones for a `seed`.

    Raises `UserError` if no prompt is left for training.
    """
    held_out = max(1, round(share * number))
    if held_out >= number:
        raise UserError(
            f"{held_out} of {number} prompts would be held out; at least one must be left."
        )
    order = np.random.default_rng(seed).permutation(number).astype(np.int32)
    return Split(order, held_out)
