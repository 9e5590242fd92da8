"""Values of tokens: Q of every next token of a text, and V of the text so far."""

from __future__ import annotations

from jaxrl.core.types import Array, TimeStep
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer


class TokenValues(ActorCritic):
    """Q and V of texts, with the layers and the memory of an actor-critic.

    In the place of a policy it returns Q of all tokens by each of `critics` (K) heads,
    [..., K, V]; illegal tokens have a value too.
    """

    critics: int = 2

    def setup(self):
        super().setup()
        size = self.action_space.n  # type: ignore[union-attr]
        self.q_head = dense(self.critics * size, initializer(self.initializer, 1.0))

    def _policy(self, x: Array, timestep: TimeStep) -> Array:  # type: ignore[override]
        q = self.q_head(self.actor(x))
        return q.reshape(*q.shape[:-1], self.critics, -1)
