"""Networks that compute the values of all discrete actions."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import gradients, losses
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, TimeStep
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense, hidden_dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.noisy import NoisyDense
from jaxrl.networks.recurrent import GRU
from jaxrl.networks.torsos import MLP, activation, image_encoder, optional_layer_norm


class _Streams(nn.Module):
    """Base of the Q-networks: computes features of a time step, and outputs for each action."""

    observation_space: Space
    num_actions: int
    num_outputs: int = 1
    channels: tuple[int, ...] = ()
    widths: tuple[int, ...] = (128, 128)
    activation: str = "relu"
    dueling: bool = False
    noisy: bool = False
    initializer: str = "lecun"
    layer_norm: bool = False

    def _features(self, timestep: TimeStep) -> Array:
        convolution = image_encoder(
            self.observation_space, self.channels, self.activation, self.layer_norm
        )
        x = encoders.features(self.observation_space, timestep, convolution)
        return MLP(self.widths[:-1], self.activation, self.initializer, layer_norm=self.layer_norm)(
            x
        )

    def _outputs(self, x: Array) -> Array:
        if self.dueling:  # scales the summed gradients of both streams (Wang et al., section 4.2)
            x = gradients.scale_gradient(x, math.sqrt(0.5))
        advantage = self._stream(x, self.num_actions)
        if not self.dueling:
            return advantage
        value = self._stream(x, 1)[..., 0, :]
        return jnp.moveaxis(losses.dueling_q_values(value, jnp.moveaxis(advantage, -2, -1)), -1, -2)

    def _stream(self, x: Array, rows: int) -> Array:
        x = optional_layer_norm(self._layer(self.widths[-1], hidden=True)(x), self.layer_norm)
        x = activation(self.activation)(x)
        return self._layer(rows * self.num_outputs)(x).reshape(*x.shape[:-1], rows, -1)

    def _layer(self, width: int, hidden: bool = False) -> nn.Module:
        if self.noisy:
            return NoisyDense(width, hidden=hidden)
        make = hidden_dense if hidden else dense
        return make(width, initializer(self.initializer, math.sqrt(2)))


class QNetwork(_Streams):
    """Q-network: time step [...] -> `num_outputs` for each action, [..., actions, outputs].

    An output is an action's value, or a logit of its distribution. The last of `widths` is that of
    the head's hidden layer. There are two such layers if `dueling`, one for each stream (Wang et
    al., 2016, figure 1). If `noisy`, the head's layers are `NoisyDense`, with noise from the random
    stream `noise` if that is given.
    """

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        return self._outputs(self._features(timestep))


class ImplicitQuantiles(_Streams):
    """Implicit quantile network: time step [...], fractions [..., N] -> quantiles of each action's
    return [..., actions, N].

    The head reads features times the embedding of a fraction (Dabney et al., 2018,
    arXiv:1806.06923, equation 4). Without fractions the network returns its features [..., D].
    """

    num_cosines: int = 64

    @nn.compact
    def __call__(self, timestep: TimeStep, tau: Array | None = None) -> Array:
        x = self._features(timestep)
        if tau is None:
            return x
        layer = hidden_dense(x.shape[-1], initializer(self.initializer, math.sqrt(2)))
        embedding = nn.relu(layer(losses.cosine_features(tau, self.num_cosines)))
        return jnp.moveaxis(self._outputs(x[..., None, :] * embedding)[..., 0], -1, -2)


class FractionProposal(nn.Module):
    """Fraction proposal network: features [..., D] -> fractions [..., num_fractions + 1].

    The fractions increase from 0 to 1. They are cumulative sums of a softmax, which is almost
    uniform at first (Yang et al., 2019, arXiv:1911.02140; initial weights as in toshikwa's PyTorch
    code).
    """

    num_fractions: int

    @nn.compact
    def __call__(self, features: Array) -> Array:
        small = nn.initializers.variance_scaling(1e-4, "fan_avg", "uniform")
        share = nn.softmax(dense(self.num_fractions, small)(features))
        return jnp.concatenate([jnp.zeros_like(share[..., :1]), jnp.cumsum(share, -1)], -1)


class RecurrentQNetwork(_Streams):
    """A `QNetwork` with a GRU of width `recurrent` before its head.

    The GRU also sees the last action and, with `sees_reward`, its reward (Kapturowski et al., 2019,
    as in SEED's `DuelingLSTMDQNNet`).
    """

    recurrent: int = 512
    sees_reward: bool = True

    @nn.compact
    def __call__(
        self, timestep: TimeStep, last_action: Array, memory: Array, unroll: bool = False
    ) -> tuple[Array, Array]:
        """Take one step, or `unroll` over a window.

        One step: time step [B], the action before it [B] (-1 for none), memory [B, recurrent] ->
        outputs [B, actions, outputs], memory. A window: time step and action [T, B], the memory
        before it [B, recurrent] -> outputs and the memory after each step [T, B, ...]; the memory
        is reset where `timestep.restarts`.
        """
        last = jax.nn.one_hot(last_action, self.num_actions)
        x = [self._features(timestep), last]
        if self.sees_reward:
            x.append(timestep.reward[..., None])
        x, core = jnp.concatenate(x, -1), GRU(self.recurrent)
        x, memory = core.unroll(x, timestep.restarts, memory) if unroll else core(x, memory)
        return self._outputs(x), memory
