"""Masked diffusion of strings that are few enough to be enumerated, for claims about fine-tuning on
rewards: models are tables, and the laws of their chains are computed."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.diffusion.shared.token_diffusion import Logits, one_hot, unmask
from jaxrl.core.spaces import MultiDiscrete
from jaxrl.core.types import Array, Environment

LEAST = 1e-12  # share of the entries that have none, so that logarithms are finite


@dataclasses.dataclass(frozen=True)
class Strings:
    """Strings of `length` of as many `letters`; the number `letters` itself is a mask.

    states: partly masked strings int [S, L], in the order of their digits. whole: numbers of those
    without a mask, [N].
    """

    length: int
    letters: int

    @property
    def states(self) -> np.ndarray:
        base = (self.letters + 1,) * self.length
        return np.stack(np.unravel_index(np.arange(np.prod(base)), base), -1)

    @property
    def whole(self) -> np.ndarray:
        return np.flatnonzero((self.states < self.letters).all(-1))

    @property
    def strings(self) -> np.ndarray:
        return self.states[self.whole]

    def environment(self) -> Environment:
        """Return the environment `strings`, for its spaces and its reward."""
        env = envs.make("strings", length=max(self.length, 2), letters=self.letters)
        space = MultiDiscrete((self.letters,) * self.length)
        return dataclasses.replace(env, action_space=space)

    def table(self, log_prob: Array) -> Array:
        """Return the logits [S, L, V] of each letter, given the others that are not masked, of the
        law of strings with these logarithms [N] of probabilities."""
        states, strings = self.states, self.strings
        agrees = (states[:, None] == strings) | (states[:, None] == self.letters)
        other = [np.delete(agrees, place, -1).all(-1) for place in range(self.length)]
        has = np.eye(self.letters)[strings].astype(bool)  # [N, L, V]
        rows = []
        for place in range(self.length):
            both = other[place][:, :, None] & has[None, :, place]  # [S, N, V]
            both = jnp.where(both, log_prob[:, None], jnp.log(LEAST) + log_prob.min())
            rows.append(jax.nn.logsumexp(both, 1))
        return jnp.stack(rows, 1)

    def logits(self, table: Array) -> Logits:
        """Return the model with these logits [S, L, V] of each state, linear in the probabilities
        of each letter of a soft string."""

        def look_up(string: Array, level: Array) -> Array:
            del level
            weight = jnp.ones((*string.shape[:-2], 1), string.dtype)
            for place in range(self.length):
                weight = weight[..., :, None] * string[..., place, None, :]
                weight = weight.reshape(*string.shape[:-2], -1)
            return jnp.einsum("...s,slv->...lv", weight, table)

        return look_up

    def step(self, table: Array, number: Array, steps: int) -> Array:
        """Return the probabilities [S, S] of the states after one of the steps of a chain."""
        now = one_hot(jnp.asarray(self.states), self.letters)
        new = unmask(self.logits(table), now, number, steps)
        each = jnp.where(now[..., -1:] == 1, new, now)
        move = jnp.ones((len(now), 1))
        for place in range(self.length):
            move = (move[:, :, None] * each[:, None, place]).reshape(len(now), -1)
        return move

    def laws(self, table: Array, steps: int) -> Array:
        """Return the probabilities of all states before each step of a chain, and at its end, [K +
        1, S]."""

        def take(law: Array, number: Array) -> tuple[Array, Array]:
            return law @ self.step(table, number, steps), law

        masked = jnp.zeros(len(self.states)).at[-1].set(1.0)
        end, before = jax.lax.scan(take, masked, jnp.arange(steps, dtype=float))
        return jnp.concatenate([before, end[None]])
