"""SAC-N (An, Moon, Kim and Song, 2021, "Uncertainty-based offline reinforcement learning with
diversified Q-ensemble", arXiv:2110.01548, section 3): SAC on a dataset, with the minimum of many
critics in place of two. Where critics disagree, as they do on actions that the data lacks, the
minimum of N lies far below their mean, so the policy stays near the data without being told to.

The order of updates is SAC's (the policy's first in the authors' code).
"""

from __future__ import annotations

from jaxrl.algorithms.continuous_control import sac
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.offline.shared import soft_offline
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static
from jaxrl.kit.groups import Torso


@group
class Config(soft_offline.SoftOffline):
    """Settings of SAC-N: SAC on a dataset, with the minimum of many critics (arXiv:2110.01548)."""

    torso: Torso = Torso(hidden=(256, 256, 256))
    num_critics: int = static(10, low=1)
    """Number of critics, N. The paper needs from 10 to 500 of them, by dataset."""


def recipe(env: Environment, config: Config) -> Recipe:
    return sac.recipe(env, config, reward=scaled_reward)


sac_n = AlgorithmBuilder("sac_n", Config, recipe, check=soft.check)

TINY = soft_offline.TINY | {"num_critics": 3}
