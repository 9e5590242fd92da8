"""Messages between agents: self-attention over the hidden states of a team."""

from __future__ import annotations

import math

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, TimeStep
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP
from jaxrl.networks.transformer import Block, attend


class AgentAttention(nn.Module):
    """Transformer encoder over the agents of a team: hidden states and who is alive to new ones.

    Every agent attends to all agents that are alive, itself included. Agents have no order and no
    number here, so that the parameters are those of teams of every size, and permuting the agents
    permutes what they hear.
    """

    layers: int
    heads: int

    @nn.compact
    def __call__(self, hidden: Array, alive: Array) -> Array:
        """Return hidden states [..., N, D] from hidden states [..., N, D] and bool [..., N]."""
        *batch, agents, width = hidden.shape
        x = jnp.moveaxis(hidden.reshape(-1, agents, width), 1, 0)
        heard = jnp.broadcast_to(alive.reshape(-1, 1, agents), (x.shape[1], agents, agents))
        slot = jnp.zeros(x.shape[:2], jnp.int32)
        none = jnp.zeros((x.shape[1], self.heads, 0, width // self.heads), hidden.dtype)
        for _ in range(self.layers):
            x, _, _ = attend(Block(width, self.heads), x, slot, none, none, heard)
        return jnp.moveaxis(x, 0, 1).reshape(*batch, agents, width)


class TeamQNetwork(nn.Module):
    """Values [..., N, A] of all actions of N alike agents, from what they see and say.

    Each agent's view becomes a hidden state, messages are exchanged by `AgentAttention`, and a
    linear layer values the actions. All agents share all weights. Without `layers` they hear
    nothing of each other.
    """

    observation_space: Space
    num_actions: int
    widths: tuple[int, ...] = (64, 64)
    layers: int = 1
    heads: int = 4
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        """timestep: of each agent, [..., N], with `alive` as it is, [..., N]."""
        x = encoders.features(self.observation_space, timestep)
        x = MLP(self.widths, self.activation, self.initializer)(x)
        if self.layers:
            alive = jnp.ones(x.shape[:-1], bool) if timestep.alive is None else timestep.alive
            x = AgentAttention(self.layers, self.heads, name="messages")(x, alive)
        return dense(self.num_actions, initializer(self.initializer, math.sqrt(2)))(x)
