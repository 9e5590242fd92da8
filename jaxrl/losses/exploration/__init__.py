"""Exploration: bonuses, information, diversity, evolution and reward shaping."""

from jaxrl.losses.exploration.bonuses import *  # noqa: F403
from jaxrl.losses.exploration.diversity import *  # noqa: F403
from jaxrl.losses.exploration.evolution import *  # noqa: F403
from jaxrl.losses.exploration.information import *  # noqa: F403
from jaxrl.losses.exploration.shaping import *  # noqa: F403
