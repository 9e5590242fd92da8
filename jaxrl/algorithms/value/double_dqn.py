"""Double DQN (van Hasselt, Guez and Silver, 2016, "Deep reinforcement learning with double
Q-learning", arXiv:1509.06461): the network chooses the next action, its copy values it. It descends
as DQN does."""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.algorithms.value import dqn as dqn_

double_dqn = dataclasses.replace(
    dqn_.dqn, name="double_dqn", recipe=functools.partial(dqn_.recipe, double=True)
)

TINY = dqn_.TINY
