"""Games: losses with equilibria as minima, and self-play; `jaxrl.solvers` has steps and gaps."""

from jaxrl.losses.games.equilibria import *  # noqa: F403
from jaxrl.losses.games.self_play import *  # noqa: F403
