"""A portfolio policy with two streams, of price series and of correlations between assets."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, TimeStep
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer


class CorrelationBlock(nn.Module):
    """Temporal correlational convolutions: [M, N, W, C] -> [M, N, W, `width`].

    Two causal convolutions along time [W] with kernels of 3 steps that lie 2^`level` apart, one
    across all assets [N], and a residual connection.
    """

    width: int
    level: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        apart = 2**self.level
        y = x
        for _ in range(2):
            past = ((0, 0), (2 * apart, 0))
            y = nn.relu(nn.Conv(self.width, (1, 3), padding=past, kernel_dilation=(1, apart))(y))
        y = nn.relu(nn.Conv(self.width, (x.shape[1], 1), padding="SAME")(y))
        if x.shape[-1] != self.width:
            x = nn.Conv(self.width, (1, 1))(x)
        return nn.relu(x + y)


class TwoStreamPolicy(nn.Module):
    """The portfolio policy network (PPN) of Zhang et al., 2020, "Cost-sensitive portfolio selection
    via deep reinforcement learning": time step [...] -> shares of the wealth [..., N + 1].

    It observes `returns` [..., W, N] and `held` [..., N + 1]. An LSTM of `recurrent` units reads
    each asset's series; `CorrelationBlock`s of the given `widths`, and a convolution over the whole
    window, read all assets together. One linear map scores each asset by both and by its share now;
    the score of cash is a parameter. The layers are those of the authors' code, without dropout and
    leverage; here returns are divided by their root mean square in the window.
    """

    widths: tuple[int, ...] = (8, 16, 16)
    recurrent: int = 16

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        returns, held = (timestep.observation[name] for name in ("returns", "held"))
        batch, (window, assets) = returns.shape[:-2], returns.shape[-2:]
        size = jnp.sqrt(jnp.square(returns).mean((-2, -1), keepdims=True) + 1e-12)
        series = (returns / size).reshape(-1, window, assets).swapaxes(1, 2)[..., None]
        x = series
        for level, width in enumerate(self.widths):
            x = CorrelationBlock(width, level)(x)
        width = self.widths[-1]
        correlated = nn.relu(nn.Conv(width, (1, window), padding="VALID")(x))[:, :, 0]
        rows = series.reshape(-1, window, 1)
        read: Any = nn.RNN(nn.OptimizedLSTMCell(self.recurrent))(rows)
        sequence = read[:, -1].reshape(-1, assets, self.recurrent)
        now = held.reshape(-1, assets + 1)[:, 1:, None]
        features = jnp.concatenate([correlated, sequence, now], -1)
        scores = dense(1, initializer("lecun", 1.0))(features)[..., 0]
        cash = self.param("cash", nn.initializers.zeros, (1,))
        scores = jnp.concatenate([jnp.broadcast_to(cash, (len(scores), 1)), scores], -1)
        return jax.nn.softmax(scores).reshape(*batch, assets + 1)
