"""Losses of stochastic policies, trust regions, and learning from other policies' data."""

from jaxrl.losses.policies.off_policy import *  # noqa: F403
from jaxrl.losses.policies.policy_gradients import *  # noqa: F403
from jaxrl.losses.policies.trust_regions import *  # noqa: F403
from jaxrl.losses.policies.weighted_regression import *  # noqa: F403
