"""Imitation learning: adversarial, inverse reinforcement learning and optimal transport."""

from jaxrl.losses.imitation.adversarial import *  # noqa: F403
from jaxrl.losses.imitation.inverse_rl import *  # noqa: F403
from jaxrl.losses.imitation.transport import *  # noqa: F403
