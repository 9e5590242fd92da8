"""A transformer over the payoffs of a normal-form game, with an embedding for each action.

network = GameTransformer()
policy = jax.nn.softmax(network.apply(params, payoff))  # [N, A], from payoffs [N, A, ..., A]

Source: Liu et al., 2024, "NfgTransformer: Equivariant representation learning for normal-form
games", arXiv:2402.08393.
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array


class Attend(nn.Module):
    """Attention of some elements to others, and a perceptron, each with a residual connection.

    Normalization comes first in each, and queries and keys are normalized once more. Elements have
    no order.
    """

    heads: int
    width: int  # of queries, keys and values of all heads together

    @nn.compact
    def __call__(self, x: Array, others: Array) -> Array:
        """Return x [..., M, D] after attending to `others` [..., K, D]."""
        read, seen = nn.RMSNorm()(x), nn.RMSNorm()(others)
        dense = lambda name, y: nn.Dense(self.width, use_bias=False, name=name)(y)
        split = lambda y: y.reshape(*y.shape[:-1], self.heads, -1)
        query = split(nn.RMSNorm()(dense("query", read)))
        key = split(nn.RMSNorm()(dense("key", seen)))
        value = split(dense("value", seen))
        logits = jnp.einsum("...mhd,...khd->...hmk", query, key) / math.sqrt(query.shape[-1])
        found = jnp.einsum("...hmk,...khd->...mhd", jax.nn.softmax(logits), value)
        width = x.shape[-1]
        x = x + nn.Dense(width, name="mix")(found.reshape(*found.shape[:-2], -1))
        grown = nn.gelu(nn.Dense(4 * width, name="grow")(nn.RMSNorm()(x)))
        return x + nn.Dense(width, name="shrink")(grown)


class GameBlock(nn.Module):
    """A step that refines the embeddings of actions by the payoffs of joint actions.

    In each joint action the players' actions, with what each is paid, attend to each other; an
    action attends to all joint actions that it is part of; and all actions attend to each other.
    """

    heads: int
    width: int

    @nn.compact
    def __call__(self, payoff: Array, actions: Array) -> Array:
        """Return the embeddings [N, A, D] of actions, by payoffs [N, A, ..., A]."""
        players, size = actions.shape[0], actions.shape[-1]
        attend = lambda name: Attend(self.heads, self.width, name=name)
        shape = (*payoff.shape[1:], size)
        axes = lambda p: tuple(i for i in range(players) if i != p)
        joint = [
            jnp.broadcast_to(jnp.expand_dims(actions[p], axes(p)), shape) for p in range(players)
        ]
        joint = jnp.concatenate([jnp.stack(joint), payoff[..., None]], -1)
        joint = jnp.moveaxis(nn.gelu(nn.Dense(size, name="read")(joint)), 0, -2)
        joint = jnp.moveaxis(attend("joint")(joint, joint), -2, 0)  # [N, A, ..., A, D]
        plays = [jnp.moveaxis(joint[p], p, 0).reshape(*actions.shape[1:2], -1, size)
                 for p in range(players)]  # fmt: skip
        actions = attend("plays")(actions[:, :, None], jnp.stack(plays))[:, :, 0]
        everyone = actions.reshape(-1, size)
        return attend("actions")(everyone, everyone).reshape(actions.shape)


class GameTransformer(nn.Module):
    """A number for each action of each player, from the payoffs of a normal-form game.

    Permuting a player's actions, or the players, permutes what is returned alike, and the
    parameters are those of games of every size. `embed` returns the embeddings themselves.

    blocks: number of refinements (K). size: of an embedding (D). width: of queries, keys and values
    of all `heads` together. The defaults are those of the authors' code
    (google-deepmind/nfg_transformer), which has 8 blocks in its example.
    """

    blocks: int = 2
    heads: int = 4
    size: int = 16
    width: int = 16

    def setup(self):
        self.layers = [GameBlock(self.heads, self.width) for _ in range(self.blocks)]
        self.norm, self.read_out = nn.RMSNorm(), nn.Dense(1)

    def __call__(self, payoff: Array) -> Array:
        """Return logits [N, A] of policies, from payoffs [N, A, ..., A], those of each player.

        Raises `UserError` where players have different numbers of actions.
        """
        return self.read_out(self.embed(payoff))[..., 0]

    def embed(self, payoff: Array) -> Array:
        """Return embeddings [N, A, D]; see `__call__`."""
        players, *counts = payoff.shape
        if len(counts) != players or len(set(counts)) != 1:
            raise UserError(
                f"Payoffs have the shape {payoff.shape}; N players with A actions each have "
                "[N, A, ..., A], with N axes of actions."
            )
        actions = jnp.zeros((*payoff.shape[:2], self.size))
        for layer in self.layers:
            actions = layer(payoff, actions)
        return self.norm(actions)
