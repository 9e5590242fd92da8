"""Networks that act as update rules: from a window of experience to targets for a learner."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.types import Array
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


class BackwardRule(nn.Module):
    """Update rule of the learned policy gradient (Oh et al., 2020, section 3.1 and figure 1).

    An LSTM reads a window backward from its end, as a return is computed.

    bootstrap: number of entries (m) of the learner's prediction.
    width: width of the LSTM.
    embedding: width of the hidden layer that reduces a prediction to one number.
    """

    bootstrap: int
    width: int
    embedding: int = 16

    def setup(self):
        init = initializer("lecun", 1.0)
        self.embed = MLP((self.embedding,), "relu")
        self.embedded = dense(1, init)
        self.cell = nn.OptimizedLSTMCell(self.width)
        self.signal_head = dense(1, init)
        self.target_head = dense(self.bootstrap, init)

    def __call__(
        self,
        reward: Array,
        terminated: Array,
        done: Array,
        discount: Array,
        probability: Array,
        prediction: Array,
        next_prediction: Array,
        clock: Array,
    ) -> tuple[Array, Array]:
        """Compute the update targets pi_hat and y_hat for each step of a window [T, B].

        probability: pi(a | s) of the action taken.
        prediction, next_prediction: [T, B, m], on the simplex, for the step's observation and for
            its true successor.
        clock: [C], the learner's age as the rule sees it.

        Steps before an episode's end see nothing after it: the LSTM is reset where `done`. The
        successor of a terminated step is ignored, that of a truncated step is used.

        Returns pi_hat [T, B], how much more likely the action should become, and the logits
        [T, B, m] of y_hat, the target of the prediction. Stops no gradient.
        """
        value = self.embedded(self.embed(prediction))[..., 0]
        next_value = self.embedded(self.embed(next_prediction))[..., 0]
        numbers = (
            reward,
            terminated.astype(reward.dtype),
            jnp.broadcast_to(discount, reward.shape),
            probability,
            value,
            jnp.where(terminated, 0.0, next_value),
            *(jnp.broadcast_to(number, reward.shape) for number in clock),
        )
        inputs = jnp.stack(numbers, -1)

        def step(cell, carry, x):
            done, x = x
            carry = trees.where(done, jnp.zeros_like(carry), carry)
            cell_state, hidden = cell((carry[..., 0], carry[..., 1]), x)
            return jnp.stack(cell_state, -1), hidden

        zero = jnp.zeros((*reward.shape[1:], self.width, 2), inputs.dtype)
        scan = nn.scan(
            step, variable_broadcast="params", split_rngs={"params": False}, reverse=True
        )
        _, hidden = scan(self.cell, zero, (done, inputs))
        hidden = nn.relu(hidden)
        return self.signal_head(hidden)[..., 0], self.target_head(hidden)
