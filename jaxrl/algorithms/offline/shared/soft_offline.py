"""Settings of soft actor-critics that learn from a dataset."""

from __future__ import annotations

from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.kit import group, hyper
from jaxrl.kit.groups import Normalization, Target


@group
class FromData:
    """Settings of what a soft actor-critic learns from."""

    data: Data = Data()


@group
class SoftOffline(soft.SoftLearner, FromData):
    """Settings shared by soft actor-critics that learn from a dataset, and may continue online."""

    target: Target = Target(rate=0.005)
    normalization: Normalization = Normalization()
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards."""


# The smallest settings.
TINY = {"env": "pendulum", "hidden": (8,), "normalization.observation": True} | TINY_DATA
