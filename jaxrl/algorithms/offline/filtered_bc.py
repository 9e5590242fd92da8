"""Percentile behavior cloning (Chen et al., 2021, "Decision transformer: reinforcement learning via
sequence modeling", arXiv:2106.01345, section 5.1): clone the episodes of a dataset that have the
highest returns, up to a fraction of all steps, and nothing else. With a fraction of 0.1 this is the
10 % BC of later comparisons, and with 1 it is `bc`.

Returns are not discounted. Episodes are taken as long as together they have no more steps than the
fraction, as in the authors' code; the best one always is.
"""

from __future__ import annotations

from jaxrl.algorithms.offline import bc
from jaxrl.algorithms.offline.shared.best_episodes import best_episodes
from jaxrl.core.types import Environment, Source
from jaxrl.kit import group, static


@group
class Config(bc.Config):
    """Settings of percentile behavior cloning: clone the best episodes of a dataset
    (arXiv:2106.01345)."""

    fraction: float = static(0.1, above=0, high=1)
    """Fraction of the dataset's steps that the best episodes may have together."""


def source(env: Environment, config: Config) -> Source:
    """Return a source of the best episodes of the dataset."""
    data, fraction = config.data, config.fraction
    return data.dataset(env, data.batch_size, lambda x: best_episodes(x, fraction))


filtered_bc = bc.bc.variant("filtered_bc", Config=Config, source=source)

TINY = bc.TINY | {"fraction": 0.5}
