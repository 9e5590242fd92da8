"""Learning from a fixed dataset, alone or with a model or simulator."""

from jaxrl.losses.offline.cloning import *  # noqa: F403
from jaxrl.losses.offline.conservative import *  # noqa: F403
from jaxrl.losses.offline.hybrid import *  # noqa: F403
from jaxrl.losses.offline.model_penalties import *  # noqa: F403
