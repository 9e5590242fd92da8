"""Learning from preferences: policies, reward models, games."""

from jaxrl.losses.preferences.absolute_rewards import *  # noqa: F403
from jaxrl.losses.preferences.direct_alignment import *  # noqa: F403
from jaxrl.losses.preferences.pairs import *  # noqa: F403
from jaxrl.losses.preferences.preference_games import *  # noqa: F403
from jaxrl.losses.preferences.reference_free import *  # noqa: F403
from jaxrl.losses.preferences.relative_rewards import *  # noqa: F403
from jaxrl.losses.preferences.reward_models import *  # noqa: F403
from jaxrl.losses.preferences.segments import *  # noqa: F403
