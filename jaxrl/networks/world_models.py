"""Models of an environment in a latent space, for planning."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, TimeStep
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense, hidden_dense
from jaxrl.networks.torsos import MLP, image_encoder


class ValueEquivalentModel(nn.Module):
    """MuZero's representation h, dynamics g and prediction f, made of dense layers (Schrittwieser
    et al., 2020, arXiv:1911.08265, appendices F and G).

    A latent state [..., width] has no meaning beyond what f and g compute from it. Latents are
    scaled to [0, 1], the range of the actions' encoding, by their own minimum and maximum (appendix
    G). Our choices: the dynamics have a residual connection, and all heads are 0 at first, so that
    the policy is uniform, and values and rewards are 0 on symmetric atoms.
    """

    observation_space: Space
    num_actions: int
    num_atoms: int  # atoms of values and of rewards
    width: int = 64
    hidden: tuple[int, ...] = (128,)
    activation: str = "relu"
    initializer: str = "lecun"  # of the hidden layers

    def setup(self):
        torso = lambda: MLP(self.hidden, self.activation, self.initializer)
        head = lambda size: dense(size, nn.initializers.zeros)
        latent = lambda: hidden_dense(self.width, nn.initializers.lecun_normal())
        self.convolution = image_encoder(self.observation_space)
        self.encoder, self.encoded = torso(), latent()
        self.transition, self.change = torso(), latent()
        self.torso = torso()
        self.policy, self.value = head(self.num_actions), head(self.num_atoms)
        self.reward = head(self.num_atoms)

    def __call__(self, timestep: TimeStep, action: Array):
        """Apply all three: latent, reward logits, (policy logits, value logits) after `action`."""
        latent, reward = self.dynamics(self.represent(timestep), action)
        return latent, reward, self.predict(latent)

    def represent(self, timestep: TimeStep) -> Array:
        """Apply h: time step [...] -> latent [..., width]."""
        x = encoders.features(self.observation_space, timestep, self.convolution)
        return rescale(self.encoded(self.encoder(x)))

    def dynamics(self, latent: Array, action: Array) -> tuple[Array, Array]:
        """Apply g: latent [..., width], action [...] -> the next latent and the logits [..., atoms]
        of the reward for that step."""
        # With this scale the action's one nonzero entry weighs about as much as the whole latent.
        chosen = math.sqrt(self.width) * jax.nn.one_hot(action, self.num_actions)
        x = jnp.concatenate([latent, chosen], -1)
        x = self.transition(x)
        return rescale(latent + self.change(x)), self.reward(x)

    def predict(self, latent: Array) -> tuple[Array, Array]:
        """Apply f: latent [..., width] -> logits of the policy [..., actions] and of the value
        [..., atoms]."""
        x = self.torso(latent)
        return self.policy(x), self.value(x)


def rescale(latent: Array, epsilon: float = 1e-5) -> Array:
    """Rescale `latent` [..., width] to [0, 1]: (x - min x) / (max x - min x), with a denominator
    of at least `epsilon` (Schrittwieser et al., 2020, appendix G)."""
    low = latent.min(-1, keepdims=True)
    span = latent.max(-1, keepdims=True) - low
    return (latent - low) / jnp.maximum(span, epsilon)
