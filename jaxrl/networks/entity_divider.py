"""A policy that divides entities among agents, by what a manual says of them."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import gradients
from jaxrl.core.types import Array, TimeStep, struct
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import PolicyHead
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


def choose_mask(noisy: Array) -> Array:
    """Return one-hot choices [..., 2] of the greater of two logits, with the gradient of their
    softmax. Logits with Gumbel noise make them draws (Jang et al., 2017, "Categorical
    reparameterization with Gumbel-softmax", section 2.2, temperature 1)."""
    hard = jax.nn.one_hot(noisy.argmax(-1), noisy.shape[-1])
    return gradients.straight_through(hard, jax.nn.softmax(noisy))


@struct
class Divided:
    """Output of an `EntityDivider`.

    policy: distribution of the agent's action. others: logits [..., others, A] of the actions that
    it expects of the others. mask: [..., E, 2], whether an entity is the agent's own or the
    others'.
    """

    policy: object
    others: Array
    mask: Array


class EntityDivider(nn.Module):
    """Time step [...] and noise [..., E, 2] -> `Divided`.

    The observation has `entities` [..., E, K + 5] (a name of K, one-hot, rows and columns to it
    from the agent and from another one, and whether it is there), `agents` [..., D], and `manual`,
    the tokens of `lines` lines of text, int32 [..., lines * words].

    An entity's name attends to the lines of the manual, which gives it what they say of it. By this
    and by where it is from both agents it is divided: its mask is a choice between the agent's own
    and the others', straight through. The policy sees the own entities only, and the prediction of
    the others' actions theirs only. Without `divide` both see all of them.
    """

    action_space: object
    others: int
    tokens: int
    lines: int
    width: int = 64
    widths: tuple[int, ...] = (64,)
    activation: str = "relu"
    initializer: str = "lecun"
    divide: bool = True

    @nn.compact
    def __call__(self, timestep: TimeStep, noise: Array) -> Divided:
        seen, init = timestep.observation, initializer(self.initializer, 1.0)
        entities = seen["entities"]
        name, there = entities[..., :-5], entities[..., -1:]
        own_way, other_way = entities[..., -5:-3], entities[..., -3:-1]
        layer = lambda size: dense(size, init)
        words = jax.nn.one_hot(seen["manual"], self.tokens)
        words = words.reshape(*words.shape[:-2], self.lines, -1, self.tokens)
        words = layer(self.width)(words)

        def read() -> Array:
            """Return a vector for each line, a weighted sum of its words' [..., lines, width]."""
            weight = jax.nn.softmax(layer(1)(words), axis=-2)
            return (weight * layer(self.width)(words)).sum(-2)

        key, value = read(), read()

        def ground(query: Array) -> Array:
            """Return what the lines say of entities [..., E, width]."""
            logits = jnp.einsum("...ed,...ld->...el", query, key) / math.sqrt(self.width)
            return jnp.einsum("...el,...ld->...ed", jax.nn.softmax(logits), value) / self.lines

        told = ground(layer(self.width)(name))
        way = jnp.concatenate([own_way, other_way], -1)
        if self.divide:
            place = nn.Dense(self.width, name="place")
            asks = [told]
            for at in (own_way, other_way):
                asks.append(ground(place(jnp.concatenate([name, at], -1))))
            torso = MLP((self.width,), self.activation, self.initializer)
            logits = layer(2)(torso(jnp.concatenate([*asks, way], -1)))
            mask = choose_mask(logits + noise)
        else:
            mask = jnp.ones((*there.shape[:-1], 2), jnp.float32)
        what = jnp.concatenate([told, way], -1)

        def see(which: int) -> Array:
            """Return features of one part of the entities."""
            each = MLP((self.width,), self.activation, self.initializer)(what)
            part = (each * there * mask[..., which : which + 1]).sum(-2)
            both = jnp.concatenate([part, seen["agents"]], -1)
            return MLP(self.widths, self.activation, self.initializer)(both)

        policy = PolicyHead(self.action_space, self.initializer)(see(0), timestep.legal_actions)
        expected = layer(self.others * self.action_space.n)(see(1))  # type: ignore[attr-defined]
        return Divided(policy, expected.reshape(*expected.shape[:-1], self.others, -1), mask)
