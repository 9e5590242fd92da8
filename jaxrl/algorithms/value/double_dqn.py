"""Double DQN (van Hasselt, Guez and Silver, 2016, "Deep reinforcement learning with double
Q-learning", arXiv:1509.06461): the online network selects the next action and the target network
evaluates it. The optimizer is DQN's."""

from __future__ import annotations

from jaxrl.algorithms.value import dqn

double_dqn = dqn.dqn.variant("double_dqn", double=True)

TINY = dqn.TINY
