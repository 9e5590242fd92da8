"""Prioritised experience replay (Schaul et al., 2016, arXiv:1511.05952): double DQN that replays
more often what it expected least."""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.core.settings import group
from jaxrl.kit.groups import Priorities
from jaxrl.systems.value import dqn as dqn_


@group
class Config(dqn_.Config):
    """Settings of prioritised DQN."""

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
