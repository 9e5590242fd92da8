"""Networks that read numbers which the environment says of a whole episode, instead of its text."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, TimeStep, Tree
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


class FeatureReward(nn.Module):
    """Score of an episode by the components of its reward, wherever a policy's value is read.

    It has the interface of `ActorCritic`, no policy and no memory: time step [...] -> None, score
    [...], and the memory it was given.
    """

    widths: tuple[int, ...] = (32,)
    activation: str = "tanh"

    def setup(self):
        self.torso = MLP(self.widths, self.activation)
        self.head = dense(1, initializer("lecun", 1.0))

    def __call__(self, timestep: TimeStep, memory: Tree) -> tuple[None, Array, Tree]:
        """Score one time step, or each of a window."""
        features = jnp.stack(jax.tree.leaves(timestep.reward_components), -1)
        return None, self.head(self.torso(features))[..., 0], memory

    def unroll(self, timestep: TimeStep, memory: Tree) -> tuple[None, Array, Tree]:
        """Score each time step of a window [T, B]."""
        return self(timestep, memory)

    def initial(self, n: int) -> Tree:
        """Return the memory [n] before an episode's first step: none."""
        return ()
