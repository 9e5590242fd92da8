"""Learning from a fixed dataset, and from a model or simulator beside it."""

from jaxrl.losses.offline.cloning import *  # noqa: F403
from jaxrl.losses.offline.conservative import *  # noqa: F403
from jaxrl.losses.offline.hybrid import *  # noqa: F403
from jaxrl.losses.offline.model_penalties import *  # noqa: F403
