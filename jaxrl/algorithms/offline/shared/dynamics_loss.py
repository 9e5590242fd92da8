"""Loss of a model of an environment's dynamics."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, TimeStep
from jaxrl.networks import encoders
from jaxrl.networks.dynamics import Prediction


def dynamics_loss(
    prediction: Prediction, space: Box, timestep: TimeStep, next_timestep: TimeStep
) -> Array:
    """Compute the negative log-likelihood [E, ...] of the true next observation and termination.

    Args:
        prediction: predictions of the E members after `timestep` [...] and its action.
        space: the observation space, one box of D numbers.
    """
    before, after = (encoders.flatten(space, x.observation) for x in (timestep, next_timestep))
    ended = jnp.broadcast_to(next_timestep.terminated, prediction.ended.shape)
    return losses.gaussian_nll(
        prediction.change, prediction.log_variance, after - before
    ) + losses.binary_cross_entropy(prediction.ended, ended)
