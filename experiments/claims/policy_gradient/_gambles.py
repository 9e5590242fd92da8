"""Gambles one after the other, whose risks are known exactly, for claims about risk."""

from __future__ import annotations

import functools

import numpy as np

from jaxrl.core.types import Environment
from jaxrl.envs.tables import mdp

# Payments of three gambles, in whole numbers, and their probabilities: more pay, more risk.
PAYS = np.array([[0, 0], [1, -1], [2, -4]])
PROBABILITY = np.array([[1.0, 0.0], [0.8, 0.2], [0.85, 0.15]])


@functools.cache
def gambles(steps: int = 6, level: float = 0.0) -> Environment:
    """Play one of the gambles `steps` times; the last pays `level` more.

    The observation is the number of gambles played, one-hot.
    """
    shape = (steps + 1, *PAYS.shape)
    reward = (
        np.broadcast_to(PAYS, shape) + level * (np.arange(steps + 1) == steps - 1)[:, None, None]
    )
    successor = np.minimum(np.arange(steps + 1) + 1, steps)[:, None, None]
    table = mdp.build(np.broadcast_to(successor, shape), PROBABILITY, reward, terminal=steps)
    return mdp.environment("gambles", table, max_steps=steps)
