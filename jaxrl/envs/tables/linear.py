"""Two small problems for studying linear value functions: Baird's and Boyan's.

`baird`: seven states, one of which every policy can reach. Action 0 ("dashed") leads to one of the
six upper states, uniformly; action 1 ("solid") to the seventh. All rewards are 0, and so are all
values. Observation: the features, float32 [8]: 2 in component i and 1 in the last for the upper
state i, 1 in component 7 and 2 in the last for the seventh. Starts uniformly at random, never
terminates; no time limit. The target policy is always solid (`expert`, `BAIRD_TARGET`), the
behavior policy solid with probability 1 / 7 (`BAIRD_BEHAVIOR`), the discount 0.99, the initial
weights `BAIRD_WEIGHTS`: off-policy semi-gradient TD diverges. Baird (1995), in the form of Sutton
and Barto (2018), Section 11.2.

`boyan_chain`: states 0 (where episodes begin) to `length`; each step moves on by one or by two
states with equal probability, for a reward of -3; from the last but one, by one state, for -2.
Observation: the features, float32 [length / 4 + 1]: linear interpolation between every fourth
state, so that the values (-2 for each state to go, undiscounted) are linear in them. One action.
Terminates in the last state, after at most `length` steps. Boyan (2002), "Technical Update:
Least-Squares Temporal Difference Learning", whose states count down.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.envs import drawing
from jaxrl.envs.tables import mdp, pictures

BAIRD_BEHAVIOR = (6 / 7, 1 / 7)  # probabilities of the actions in every state
BAIRD_TARGET = (0.0, 1.0)
BAIRD_WEIGHTS = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 10.0, 1.0)
BAIRD_DISCOUNT = 0.99


@functools.cache
def baird(observation: str = "features") -> Environment:
    """Baird's counterexample for off-policy TD."""
    features = np.zeros((7, 8))
    features[np.arange(7), np.arange(7)] = 2, 2, 2, 2, 2, 2, 1
    features[:, 7] = 1, 1, 1, 1, 1, 1, 2
    transition = np.zeros((7, 2, 7))
    transition[:, 0, :6] = 1 / 6
    transition[:, 1, 6] = 1.0
    table = mdp.from_tensors(
        transition,
        np.zeros((7, 2)),
        start=np.arange(7),
        optimal=np.ones(7),
        features=features,
    )
    return mdp.environment("baird", table, observation=observation, render=pictures.ring)


@functools.cache
def boyan_chain(length: int = 12, observation: str = "features") -> Environment:
    """Boyan's chain of `length` + 1 states. Raises `UserError` unless 4 divides the length."""
    if length < 4 or length % 4:
        raise UserError(
            f"The length of 'boyan_chain' is {length}; it must be a positive multiple of 4."
        )
    states = np.arange(length + 1)
    successor = np.minimum(states[:, None, None] + [[1, 2]], length)
    reward = np.where(states == length - 1, -2.0, -3.0)[:, None, None]
    knots = np.arange(0, length + 1, 4)
    features = np.maximum(0, 1 - np.abs(states[:, None] - knots) / 4)
    table = mdp.build(successor, 0.5, reward, terminal=length, discount=1.0, features=features)
    colors = np.full((1, length + 1, 3), drawing.SHADE)
    colors[0, -1] = drawing.GREEN
    render = pictures.board(colors, np.stack([np.zeros_like(states), states], -1))
    env = mdp.environment("boyan_chain", table, observation=observation, render=render)
    return dataclasses.replace(env, max_steps=length)
