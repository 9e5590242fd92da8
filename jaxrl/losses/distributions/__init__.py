"""Return distributions, risk measures and value transforms."""

from jaxrl.losses.distributions.distortions import *  # noqa: F403
from jaxrl.losses.distributions.distributional import *  # noqa: F403
from jaxrl.losses.distributions.risk import *  # noqa: F403
from jaxrl.losses.distributions.transforms import *  # noqa: F403
