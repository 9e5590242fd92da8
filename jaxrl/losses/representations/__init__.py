"""Representation learning, successor features, goals and quasimetrics."""

from jaxrl.losses.representations.goals import *  # noqa: F403
from jaxrl.losses.representations.operators import *  # noqa: F403
from jaxrl.losses.representations.quasimetrics import *  # noqa: F403
from jaxrl.losses.representations.self_supervised import *  # noqa: F403
