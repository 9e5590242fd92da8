"""A memory before a network that has none."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn

from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, TimeStep
from jaxrl.networks import encoders
from jaxrl.networks.recurrent import GRU
from jaxrl.networks.torsos import MLP, image_encoder


class Recalling(nn.Module):
    """A network of time steps that sees the memory of a GRU in place of observation and goal.

    network: takes time steps [...] whose observations are vectors of `width`.
    observation_space: of an observation, [*shape]. Time steps may have an axis of agents after the
        batch; the memory then has it too, and the agents share all weights.
    width: of the GRU, and of the layer before it.
    """

    network: nn.Module
    observation_space: Space
    width: int
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(
        self, timestep: TimeStep, memory: Array, unroll: bool = False
    ) -> tuple[Any, Array]:
        """Take one step, or `unroll` over a window.

        One step: time step [B], memory [B, ..., width] -> the network's output, memory. A window:
        time step [T, B], the memory before it -> output and the memory after each step, [T, B,
        ...]; the memory is reset where `timestep.restarts`.
        """
        encoder = image_encoder(self.observation_space)
        x = encoders.features(self.observation_space, timestep, encoder)
        x, core = MLP((self.width,), self.activation, self.initializer)(x), GRU(self.width)
        x, memory = core.unroll(x, timestep.restarts, memory) if unroll else core(x, memory)
        return self.network(dataclasses.replace(timestep, observation=x, goal=None)), memory
