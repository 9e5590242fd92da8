"""Policy and critic that read the features of a world model."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import Distribution, PolicyHead
from jaxrl.networks.torsos import MLP


class Actor(nn.Module):
    """A policy: features [..., D] -> distribution over actions [...].

    Over a box it is a normal distribution whose mean stays within the bounds, and whose standard
    deviation stays between 0.1 and 1 of their half-width, as in Dreamer v3's code.
    """

    action_space: Space
    hidden: tuple[int, ...] = (64,)
    layer_norm: bool = False

    @nn.compact
    def __call__(self, features: Array, legal_actions: Array | None = None) -> Distribution:
        # Small weights of the last layer make the first policy close to uniform.
        head = PolicyHead(self.action_space, "orthogonal", bounded_mean=True, deviation="bounded")
        torso = MLP(self.hidden, "silu", layer_norm=self.layer_norm)
        return head(torso(features), legal_actions)


class Critic(nn.Module):
    """A critic: features [..., D] -> logits [..., bins] of a two-hot code.

    Initial logits are 0, as in Dreamer v3's critic and reward (arXiv:2301.04104), so that their
    mean is 0 on symmetric atoms.
    """

    bins: int
    hidden: tuple[int, ...] = (64,)
    layer_norm: bool = False

    @nn.compact
    def __call__(self, features: Array) -> Array:
        torso = MLP(self.hidden, "silu", layer_norm=self.layer_norm)
        return dense(self.bins, nn.initializers.zeros)(torso(features))


def symexp_atoms(bins: int, symlog_range: float) -> Array:
    """Atoms [bins] of a two-hot code: `symexp` of even steps from -symlog_range to symlog_range."""
    return losses.symexp(jnp.linspace(-symlog_range, symlog_range, bins))
