"""Policies whose thoughts are mixtures of tokens."""

from __future__ import annotations

from jaxrl.core.types import Array, TimeStep
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.dense import dense, hidden_dense
from jaxrl.networks.heads import Distribution, Mixture
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


class ThoughtPolicy(ActorCritic):
    """Actor-critic that reads mixtures of tokens and writes them, where a time step does not say
    that the next token is an `answer`.

    An input is a point [V] of the simplex, and its embedding the mixture of the tokens' embeddings:
    a linear layer. `draws` and `joint` are those of `Mixture`.
    """

    draws: int = 1
    joint: bool = True

    def setup(self):
        if self.recurrent:
            self.embedding = hidden_dense(self.recurrent, initializer(self.initializer, 1.0))
            self.core = self._core()
        self.convolution = None
        self.actor = MLP(self.widths, self.activation, self.initializer)
        self.critic = MLP(self.widths, self.activation, self.initializer)
        self.head = dense(self.action_space.shape[0], initializer(self.initializer, 0.01))
        self.value_head = dense(self.values or 1, initializer(self.initializer, 1.0))

    def _policy(self, x: Array, timestep: TimeStep) -> Distribution:
        return Mixture(self.head(self.actor(x)), timestep.tokens["answer"], self.draws, self.joint)
