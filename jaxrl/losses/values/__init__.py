"""Values and action values: targets, errors, ensembles and off-policy actor-critics."""

from jaxrl.losses.values.actor_critics import *  # noqa: F403
from jaxrl.losses.values.bellman_errors import *  # noqa: F403
from jaxrl.losses.values.decomposition import *  # noqa: F403
from jaxrl.losses.values.ensembles import *  # noqa: F403
from jaxrl.losses.values.errors_and_targets import *  # noqa: F403
from jaxrl.losses.values.options import *  # noqa: F403
from jaxrl.losses.values.q_learning import *  # noqa: F403
from jaxrl.losses.values.reward_channels import *  # noqa: F403
from jaxrl.losses.values.soft_q import *  # noqa: F403
