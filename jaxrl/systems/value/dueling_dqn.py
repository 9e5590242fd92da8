"""Dueling networks (Wang et al., 2016, "Dueling network architectures for deep reinforcement
learning", arXiv:1511.06581): one stream for the value and one for the advantages, learnt by double
DQN."""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.systems.value import dqn as dqn_

dueling_dqn = dataclasses.replace(
    dqn_.dqn, name="dueling_dqn", recipe=functools.partial(dqn_.recipe, double=True, dueling=True)
)

TINY = dqn_.TINY
