"""Distances from one point to another, as embeddings with a head that is a (quasi)metric whatever
the weights: never negative, 0 from a point to itself, and no longer than any detour. One head is no
metric, to compare with."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, TimeStep, Tree
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP, image_encoder

HEADS = ("iqe", "mrn", "pqe", "euclidean")
UNCONSTRAINED = "unconstrained"  # no metric


def state_features(
    space: Space, timestep: TimeStep, action_space: Space | None = None, *action: Tree
) -> Array:
    """Compute features [..., D] of a time step's observation (and of an action), without its
    goal."""
    bare, encoder = dataclasses.replace(timestep, goal=None), image_encoder(space)
    if action_space is None:
        return encoders.features(space, bare, encoder)
    return encoders.state_action_features(space, action_space, bare, action[0], encoder)


class Distance(nn.Module):
    """A distance [...] from points [..., D] to points [..., D], both embedded by one network.

    kind: the head. "iqe": intervals (`losses.iqe`), with a learned mix of maximum and mean. "mrn":
        a symmetric and an asymmetric half (`losses.mrn`). "pqe": Poisson processes (`losses.pqe`),
        with learned weights, whose sum the distance cannot exceed; a component has the mean over
        its numbers in the place of the sum, as in the authors' code (appendix C.4.1 there), so that
        it does not begin saturated. "euclidean": a symmetric metric, the distance in a Hilbert
        space. "unconstrained": no metric but a network of both embeddings, to compare with.
    components, size: the embedding has so many components of so many numbers, which only "iqe" and
        "pqe" tell apart.

    `embed` returns embeddings [..., components * size], `between` the distance of two of these.
    """

    kind: str
    widths: tuple[int, ...]
    activation: str = "gelu"
    components: int = 16
    size: int = 8
    layer_norm: bool = True

    def setup(self):
        self.torso = MLP(self.widths, self.activation, layer_norm=self.layer_norm)
        self.head = dense(self.components * self.size, initializer("lecun", 1.0))
        if self.kind == "iqe":
            self.mix = self.param("mix", nn.initializers.zeros, ())
        if self.kind == "pqe":
            self.weight = self.param("weight", nn.initializers.zeros, (self.components,))
        if self.kind == UNCONSTRAINED:
            self.both = MLP(self.widths, self.activation, layer_norm=self.layer_norm)
            self.length = dense(1, initializer("lecun", 1.0))

    def __call__(self, x: Array, y: Array) -> Array:
        return self.between(self.embed(x), self.embed(y))

    def embed(self, x: Array) -> Array:
        return self.head(self.torso(x))

    def between(self, x: Array, y: Array) -> Array:
        split = lambda z: z.reshape(*z.shape[:-1], self.components, self.size)
        match self.kind:
            case "iqe":
                return losses.iqe(split(x), split(y), jax.nn.sigmoid(self.mix))
            case "pqe":
                weight = jax.nn.softplus(self.weight)
                return losses.pqe(split(x) / self.size, split(y) / self.size, weight)
            case "unconstrained":
                both = jnp.concatenate(jnp.broadcast_arrays(x, y), -1)
                return jax.nn.softplus(self.length(self.both(both)))[..., 0]
            case "mrn":
                half = x.shape[-1] // 2
                return losses.mrn(x[..., :half], y[..., :half], x[..., half:], y[..., half:])
            case _:
                return losses.euclidean_distance(x, jnp.asarray(y))
