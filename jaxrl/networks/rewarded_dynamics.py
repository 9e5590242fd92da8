"""Models of an environment's dynamics and reward in the space of its observations: Gaussian
ensembles, of which the best members on held-out transitions draw the next step."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array, Key, TimeStep, Tree, struct
from jaxrl.networks import encoders
from jaxrl.networks.dynamics import gaussian_ensemble


@struct
class StepPrediction:
    """Predictions of E members for the step after an action at a time step [...]."""

    mean: Array  # [E, ..., D + 1]: mean change of the observation, then mean reward
    log_variance: Array  # [E, ..., D + 1]
    ended: Array  # [E, ...]: logit of the probability that the task ends there

    @property
    def scale(self) -> Array:
        """Standard deviations [E, ..., D + 1]."""
        return jnp.exp(self.log_variance / 2)

    def members_last(self) -> tuple[Array, Array]:
        """Return means and scales [..., D + 1, E], as the penalties for uncertainty take them."""
        return jnp.moveaxis(self.mean, 0, -1), jnp.moveaxis(self.scale, 0, -1)


class RewardedDynamics(nn.Module):
    """Ensemble of `members` (E) probabilistic models of the next observation and the reward: time
    step [...], action -> `StepPrediction`.

    The networks share no weights. Observations are one box of D numbers. Variances are bounded by
    constants, not by parameters. Sources: Chua et al., 2018, "Deep reinforcement learning in a
    handful of trials using probabilistic dynamics models"; with the reward as one more output, Yu
    et al., 2020, "MOPO: model-based offline policy optimization".
    """

    observation_space: Box
    action_space: Space
    widths: tuple[int, ...]
    members: int = 7
    activation: str = "silu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep, action: Tree) -> StepPrediction:
        x = encoders.state_action_features(
            self.observation_space, self.action_space, timestep, action
        )
        size = encoders.flatten(self.observation_space, timestep.observation).shape[-1] + 1
        layers = self.members, self.widths, self.activation, self.initializer
        return StepPrediction(*gaussian_ensemble(x, size, *layers))


def draw_step(prediction: StepPrediction, elites: Array, key: Key) -> tuple[Array, Array]:
    """Draw what follows each of B time steps from a random member among `elites` (int32 [K]).

    Returns the change of the observation and then the reward, [B, D + 1], and whether that member
    says that the task ends there, bool [B].
    """
    member_key, key = jax.random.split(key)
    count = prediction.ended.shape[1]
    member = elites[jax.random.randint(member_key, (count,), 0, len(elites))]
    mine: Any = jax.tree.map(lambda x: x[member, jnp.arange(count)], prediction)
    return mine.mean + mine.scale * jax.random.normal(key, mine.mean.shape), mine.ended > 0
