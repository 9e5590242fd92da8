"""Dueling networks (Wang et al., 2016, "Dueling network architectures for deep reinforcement
learning", arXiv:1511.06581): one stream for the value and one for the advantages, learned by double
DQN."""

from __future__ import annotations

import dataclasses

from jaxrl.algorithms.value import dqn
from jaxrl.kit import group
from jaxrl.kit.groups import Optimizer


@group
class Config(dqn.Config):
    """Settings of dueling DQN."""

    optimizer: Optimizer = dataclasses.replace(
        dqn.RMSPROP, learning_rate=6.25e-5, max_grad_norm=10.0
    )
    """DQN's optimizer with gradients clipped to a norm of 10 and a "slightly lower" step size: Wang
    et al., section 4.2. The only step size that they give, taken here, is that with prioritized
    replay."""


dueling_dqn = dqn.dqn.variant("dueling_dqn", Config=Config, double=True, dueling=True)

TINY = dqn.TINY
