"""GuDA (Corrado, Qu, Balis, Labiosa and Hanna, 2023, "Guided data augmentation for offline
reinforcement learning and imitation learning", arXiv:2310.18247): TD3+BC on a few observed
transitions and on many augmented ones, of which only those are kept that are progress toward the
goal.

The augmentation is that of the authors' mazes: a transition is moved to a random free place and
turned by quarters of a circle, and the guide turns it the way that its user would go from there.
Their guide is a table of directions that they wrote for one goal; here it is the next cell on a
shortest path, so that goals may be drawn anew, too (their augmentation of goals is of another
task). `augmentation.guided: false` is the random augmentation that they compare with, and
`augmentation.copies: 0` learns from the observed transitions alone. With `alpha: 0` it is behavior
cloning, the other learner of the paper.
"""

from __future__ import annotations

from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.algorithms.offline import td3_bc
from jaxrl.algorithms.offline.shared.augmentation import (
    augment,
    check_maze,
    turn_in_maze,
    without_metrics,
)
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.core.types import Environment, Source, Transition
from jaxrl.datasets.transitions import concatenate
from jaxrl.kit import AlgorithmBuilder, group, static


@group
class Augmentation:
    """Augmented transitions beside the observed ones."""

    copies: int = static(100, low=0)
    """Number of augmented transitions for each observed one."""
    guided: bool = True
    """Keep only augmented transitions that are progress toward the goal; otherwise all that are
    possible."""
    seed: int = static(0, low=0, high=2**32 - 1)
    """Seed of the augmented transitions."""


@group
class Config(td3_bc.Config):
    """Settings of GuDA: TD3+BC on observed and on guided augmented transitions
    (arXiv:2310.18247)."""

    data: Data = Data(name="scripted", size=500)
    augmentation: Augmentation = Augmentation()


def source(env: Environment, config: Config) -> Source:
    """Return the source of observed and augmented transitions."""
    settings = config.augmentation

    def extend(observed: Transition) -> Transition:
        if not settings.copies:
            return observed
        count = settings.copies * len(observed.reward)
        change = turn_in_maze(env, settings.guided)
        added, _ = augment(observed, change, count, settings.seed)
        both = [without_metrics(observed), added]
        return concatenate(both, ["observed", "augmented"])

    return config.data.dataset(env, config.data.batch_size, extend)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless `env` is a point maze, and for an environment beside the dataset."""
    deterministic.check(env, config, name)
    config.data.check_alone(name, "its transitions are augmented before")
    check_maze(env, name)


guda = AlgorithmBuilder("guda", Config, td3_bc.recipe, source, check=check)

TINY = TINY_DATA | {"env": "point_maze", "hidden": (8,), "augmentation.copies": 2}
