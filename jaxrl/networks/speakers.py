"""Several policies that take turns in one text, as one network."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, TimeStep, Tree
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.heads import Categorical


class Speakers(nn.Module):
    """Policies with weights of their own, each of which writes its own utterances of a text.

    The first utterance is the first one's, and so on; what follows the last one's is the last one's
    too (`TimeStep.tokens["turn"]`). All read everything, as far as readers do not begin anew. It
    has the methods of `ActorCritic`.

    speakers: policies over the same tokens.
    part: another channel of `TimeStep.tokens` that numbers the speakers, such as `agent`.
    """

    speakers: tuple[ActorCritic, ...]
    part: str = "turn"

    def __call__(self, timestep: TimeStep, memory: Tree) -> tuple[Categorical, Array, Tree]:
        """Take one step: time step [B], memory [B] -> policy [B], value [B], memory [B]."""
        each = [speaker(timestep, x) for speaker, x in zip(self.speakers, memory, strict=True)]
        return self._choose(each, timestep)

    def unroll(self, timestep: TimeStep, memory: Tree) -> tuple[Categorical, Array, Tree]:
        """Unroll over a window: time step [T, B], memory [B] before it -> policy and value [T, B],
        and the memory after each step [T, B]. The memory is reset where `timestep.restarts`."""
        pairs = zip(self.speakers, memory, strict=True)
        return self._choose([speaker.unroll(timestep, x) for speaker, x in pairs], timestep)

    def read(self, timestep: TimeStep, memory: Tree) -> tuple[Categorical, Array, Tree]:
        """Read the beginnings of episodes: time step [T, B] from their first on, blank memory [B]
        -> policy and value [T, B], and the memory [B] after the last step."""
        pairs = zip(self.speakers, memory, strict=True)
        return self._choose([speaker.read(timestep, x) for speaker, x in pairs], timestep)

    def _choose(self, each: list[Any], timestep: TimeStep) -> tuple[Categorical, Array, Tree]:
        assert timestep.tokens is not None
        logits = jnp.stack([policy.logits for policy, _, _ in each])
        values = jnp.stack([value for _, value, _ in each])
        speaks = jax.nn.one_hot(self.turn(timestep), len(each), axis=0)
        # A policy that does not speak here may be anything but infinite: its gradient is 0.
        chosen = (speaks[..., None] * logits).sum(0)
        return Categorical(chosen), (speaks * values).sum(0), tuple(x for _, _, x in each)

    def turn(self, timestep: TimeStep) -> Array:
        """Return the number of the policy that writes the token after each time step, int32."""
        assert timestep.tokens is not None
        return jnp.minimum(timestep.tokens[self.part], len(self.speakers) - 1)

    def initial(self, n: int) -> Tree:
        """Return the memory [n] before an episode's first step."""
        return tuple(speaker.initial(n) for speaker in self.speakers)
