"""Games: losses minimized by equilibria, and self-play; solvers are in `jaxrl.solvers`."""

from jaxrl.losses.games.equilibria import *  # noqa: F403
from jaxrl.losses.games.self_play import *  # noqa: F403
