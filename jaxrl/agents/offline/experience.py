"""What agents that can learn offline learn from: a data set, a world, or both."""

from __future__ import annotations

import dataclasses

from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY, static


@dataclasses.dataclass(frozen=True)
class Experience:
    """A data set alone (offline), a world alone (online), or both. Steps are gradient steps where
    there is no world, and environment steps where there is one."""

    dataset: str = "medium-replay"
    """random, medium, expert, medium-replay, medium-expert (or mixed), made when first asked for;
    the path of a file in Minari's format; or empty for none."""
    dataset_size: int = static(50_000, low=1)
    """Steps of a data set that is made."""
    dataset_seed: int = static(0, low=0, high=2**32 - 1)
    """The seed it is made from."""
    batch_size: int = static(256, low=1, high=MANY)
    """Transitions in one gradient step."""
    offline_share: float = static(0.5, low=0, high=1)
    """The part of each batch that is from the data set, where there is a world too."""
    updates: int = static(8, low=1)
    """Gradient steps at once; in a world, after each window."""

    num_envs: int = static(0, low=0, high=MANY)
    """Environments that run side by side; 0 for none."""
    num_steps: int = static(1, low=1, high=MANY)
    """Steps of each in one window."""
    capacity: int = static(100_000, low=1)
    """Own transitions that are kept."""
    warmup: int = static(1_000, low=0)
    """Environment steps before the first gradient step, by the policy as it is."""


DEFAULT = Experience()


def check(experience: Experience) -> None:
    """Raises `UserError` where nothing is left to learn from, and for a share that leaves one of
    two sources without a transition. Sizes are checked by the sources."""
    x = experience
    if not x.dataset and x.num_envs < 1:
        raise UserError("There is nothing to learn from: name a dataset, or say num_envs.")
    if x.dataset and x.num_envs and not 0 < round(x.offline_share * x.batch_size) < x.batch_size:
        raise UserError(
            f"offline_share is {x.offline_share}; of a batch of {x.batch_size} at least one "
            "transition must be from the data set, and one from the world."
        )
