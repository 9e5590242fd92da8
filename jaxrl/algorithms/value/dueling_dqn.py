"""Dueling networks (Wang et al., 2016, "Dueling network architectures for deep reinforcement
learning", arXiv:1511.06581): one stream for the value and one for the advantages, learned by double
DQN."""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.kit import group
from jaxrl.kit.groups import Optimizer


@group
class Config(dqn_.Config):
    """Settings of dueling DQN."""

    optimizer: Optimizer = dataclasses.replace(
        dqn_.NATURE, learning_rate=6.25e-5, max_grad_norm=10.0
    )
    """DQN's with gradients clipped to a norm of 10 and a "slightly lower" step size: Wang et al.,
    section 4.2. The one of which they give the number is that with prioritized replay."""


dueling_dqn = dataclasses.replace(
    dqn_.dqn,
    name="dueling_dqn",
    Config=Config,
    recipe=functools.partial(dqn_.recipe, double=True, dueling=True),
)

TINY = dqn_.TINY
