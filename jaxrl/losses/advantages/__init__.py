"""Returns and advantages of steps, answers and segments."""

from jaxrl.losses.advantages.credit import *  # noqa: F403
from jaxrl.losses.advantages.group_filters import *  # noqa: F403
from jaxrl.losses.advantages.groups import *  # noqa: F403
from jaxrl.losses.advantages.off_policy_returns import *  # noqa: F403
from jaxrl.losses.advantages.recurrences import *  # noqa: F403
from jaxrl.losses.advantages.returns import *  # noqa: F403
from jaxrl.losses.advantages.segments import *  # noqa: F403
