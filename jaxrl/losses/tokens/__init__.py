"""Reinforcement learning of token policies: losses, masks, rewards and fine-tuning."""

from jaxrl.losses.tokens.bounded_ratios import *  # noqa: F403
from jaxrl.losses.tokens.fine_tuning import *  # noqa: F403
from jaxrl.losses.tokens.masks import *  # noqa: F403
from jaxrl.losses.tokens.policies import *  # noqa: F403
from jaxrl.losses.tokens.rewards import *  # noqa: F403
