"""Noisy networks (Fortunato et al., 2018, arXiv:1706.10295): DQN that explores by weights that are
drawn anew for every window of steps and every gradient step, with a scale that is learned. It
descends as DQN does."""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.kit import group, hyper


@group
class Config(dqn_.Common):
    """Settings of DQN with noisy networks."""

    huber: float = hyper(1.0, above=0)
    """Errors above this count linearly."""


noisy_dqn = dataclasses.replace(
    dqn_.dqn, name="noisy_dqn", Config=Config, recipe=functools.partial(dqn_.recipe, noisy=True)
)

TINY = dqn_.TINY
