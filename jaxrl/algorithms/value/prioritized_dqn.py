"""Prioritized experience replay (Schaul et al., 2016, arXiv:1511.05952): double DQN that replays
transitions more often the larger their last error was."""

from __future__ import annotations

import dataclasses

from jaxrl.algorithms.value import dqn
from jaxrl.kit import group
from jaxrl.kit.groups import Optimizer, Priorities


@group
class Config(dqn.Config):
    """Settings of prioritized DQN."""

    optimizer: Optimizer = dataclasses.replace(
        dqn.RMSPROP, learning_rate=6.25e-5, eps=dqn.RMSPROP.eps / 16
    )
    """DQN's optimizer at a quarter of its step size: Schaul et al., section 4. The epsilon, by
    which the largest step stays what it was, is that of DQN Zoo, written by one of the authors."""
    priorities: Priorities = Priorities(exponent=0.6)


prioritized_dqn = dqn.dqn.variant(
    "prioritized_dqn",
    Config=Config,
    source=lambda env, config: config.replay.source(
        env, sampler=config.priorities.sampler("priorities")
    ),
    double=True,
)

TINY = dqn.TINY
