"""Networks of action values."""

from __future__ import annotations

import math

import flax.linen as nn
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, TimeStep
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.initialisers import initialiser
from jaxrl.networks.noisy import NoisyDense
from jaxrl.networks.torsos import MLP, Convolution, activation


class QNetwork(nn.Module):
    """From a time step [...] to `num_actions` rows of `num_outputs`: [..., actions, outputs].

    An output is an action's value, or a logit of its distribution. The last of `widths` is the
    head's hidden layer, of which there are two if `dueling` (Wang et al., 2016, figure 1); the
    head's layers have `noisy` weights, drawn from the generator `noise` if it is given.
    """

    observation_space: Space
    num_actions: int
    num_outputs: int = 1
    channels: tuple[int, ...] = ()
    widths: tuple[int, ...] = (128, 128)
    activation: str = "relu"
    dueling: bool = False
    noisy: bool = False
    initialiser: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        if self.channels:
            x = Convolution(self.channels, self.activation)(timestep.observation)
            x = encoders.beside_goal(x, timestep)
        else:
            x = encoders.features(self.observation_space, timestep)
        x = MLP(self.widths[:-1], self.activation, self.initialiser)(x)
        if self.dueling:  # both streams' gradients meet here (Wang et al., section 4.2)
            x = losses.scale_gradient(x, math.sqrt(0.5))
        advantage = self._stream(x, self.num_actions)
        if not self.dueling:
            return advantage
        value = self._stream(x, 1)[..., 0, :]
        return jnp.moveaxis(losses.dueling_q_values(value, jnp.moveaxis(advantage, -2, -1)), -1, -2)

    def _stream(self, x: Array, rows: int) -> Array:
        x = activation(self.activation)(self._layer(self.widths[-1])(x))
        return self._layer(rows * self.num_outputs)(x).reshape(*x.shape[:-1], rows, -1)

    def _layer(self, width: int) -> nn.Module:
        if self.noisy:
            return NoisyDense(width)
        return dense(width, initialiser(self.initialiser, math.sqrt(2)))
