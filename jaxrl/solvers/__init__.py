"""Solvers of games and optimal transport: steps toward equilibria, gaps, markets, plans.

Plain functions of arrays, one step or one solution each; actions are the last axis, everything
else broadcasts. Losses that train networks toward equilibria are in `jaxrl.losses`.
"""

from jaxrl.solvers.dynamics import *  # noqa: F403
from jaxrl.solvers.equilibria import *  # noqa: F403
from jaxrl.solvers.markets import *  # noqa: F403
from jaxrl.solvers.preference_games import *  # noqa: F403
from jaxrl.solvers.transport import *  # noqa: F403
