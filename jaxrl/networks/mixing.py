"""A team's value from the values of its agents, by weights that depend on the whole state."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.types import Array
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import optional_layer_norm


class MonotonicMixer(nn.Module):
    """The value [...] of a team from its agents' values [..., N] and the state [..., S].

    The weights of a network of one hidden layer, non-negative, so that the team's value never falls
    when an agent's rises, and its biases are linear functions of the state; the last bias has one
    hidden layer, of `width` units too. These functions begin small (orthogonal, times 0.1; in
    JaxMARL's code times 0.001, with a hidden layer each): larger ones exaggerate the agents' first
    values.

    With `normalize_state`, layer normalization of the state comes first, which is not in the paper.
    Weights are linear in the state, so values may grow with the third power of a state that has no
    bounds.

    Source: QMIX (Rashid et al., 2018, arXiv:1803.11485), section 4 and appendix C.
    """

    width: int = 32
    normalize_state: bool = False

    @nn.compact
    def __call__(self, state: Array, values: Array, shares: bool = False) -> Any:
        """Return the team's value; with `shares` also how much of it is each agent's, [..., N].

        A share is the product of the two layers' weights, summed over hidden units, divided by the
        sum over agents: the team's value would rise by it with the agent's if the hidden units were
        linear.
        """
        state = optional_layer_norm(state, self.normalize_state)
        linear = lambda size: dense(size, initializer("orthogonal", 0.1))(state)
        agents, batch = values.shape[-1], values.shape[:-1]
        weight = linear(agents * self.width).reshape(*batch, agents, self.width)
        bias, output_weight = linear(self.width), linear(self.width)
        output_bias = dense(1, initializer("lecun", 1.0))(jax.nn.relu(linear(self.width)))[..., 0]
        value = losses.qmix(values, weight, bias, output_weight, output_bias)
        if not shares:
            return value
        slope = (jnp.abs(weight) * jnp.abs(output_weight)[..., None, :]).sum(-1)
        return value, slope / (slope.sum(-1, keepdims=True) + 1e-10)
