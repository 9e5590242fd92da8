"""Prioritized experience replay (Schaul et al., 2016, arXiv:1511.05952): double DQN that replays
more often what it expected least."""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.kit import group
from jaxrl.kit.groups import Optimizer, Priorities


@group
class Config(dqn_.Config):
    """Settings of prioritized DQN."""

    optimizer: Optimizer = dataclasses.replace(
        dqn_.NATURE, learning_rate=6.25e-5, eps=dqn_.NATURE.eps / 16
    )
    """DQN's at a quarter of its step size: Schaul et al., section 4. The epsilon, by which the
    largest step stays what it was, is that of DQN Zoo, written by one of the authors."""
    priorities: Priorities = Priorities(exponent=0.6)


prioritized_dqn = dataclasses.replace(
    dqn_.dqn,
    name="prioritized_dqn",
    Config=Config,
    recipe=functools.partial(dqn_.recipe, double=True),
    source=lambda env, config: config.replay.source(
        env, sampler=config.priorities.sampler("priorities")
    ),
)

TINY = dqn_.TINY
