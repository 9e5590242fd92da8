"""Dive to the treasure: one action in every state is right, and every step toward it costs.

Row `r` and column `c` of an N x N grid; each step goes down one row, to the right (column + 1) or
to the left (column - 1, at least 0). Observation: float32 [N * N + 2], one-hot over the cells row
by row and the two ends (without and with treasure). Action: 0 or 1; which of them means right is
drawn once for every cell (`randomize_actions`, from `seed`), otherwise it is 1. Reward:
-`move_cost` / N for each move right, and 1 for a move right in the last column. Terminates after
exactly N steps. With `stochastic`, a move right fails with probability 1 / N (the column stays),
and the reward in the last row's first and last cell has standard normal noise. Osband, Aslanides
and Cassirer (2018), "Randomized Prior Functions for Deep Reinforcement Learning"; the rules of
bsuite's `deep_sea` (Osband et al. 2020), except for its observation, whose [N, N] cells are empty
at the end. The expert is optimal.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.envs import drawing
from jaxrl.envs.tables import mdp, pictures


@functools.cache
def deep_sea(
    size: int = 10,
    stochastic: bool = False,
    randomize_actions: bool = True,
    seed: int = 0,
    move_cost: float = 0.01,
    observation: str = "one_hot",
) -> Environment:
    """DeepSea of `size` x `size` cells. Raises `UserError` for a size below 2."""
    if size < 2:
        raise UserError(f"The size of 'deep_sea' is {size}; it must be at least 2.")
    cells = size * size
    end, treasure = cells, cells + 1
    row, column = np.divmod(np.arange(cells), size)
    last, goal = row == size - 1, column == size - 1

    def below(column):
        return (row + 1) * size + np.clip(column, 0, size - 1)

    # Outcomes of going left and right: as intended, and if the wind keeps the column.
    left = np.where(last, end, below(column - 1))
    ends = np.where(goal, treasure, end)  # the reward is for the attempt, not for its outcome
    right, kept = (np.where(last, ends, below(c)) for c in (column + 1, column))
    successor = np.stack([np.stack([left, left], -1), np.stack([right, kept], -1)], 1)
    reward = np.stack([np.zeros(cells), goal - move_cost / size], 1)[..., None]
    fail = 1 / size if stochastic else 0.0
    probability = np.broadcast_to([[1.0, 0.0], [1 - fail, fail]], successor.shape)
    if not stochastic:
        successor, probability = successor[..., :1], probability[..., :1]
    if randomize_actions:
        means_right = np.random.default_rng(seed).integers(0, 2, cells)
        swap = np.where(means_right == 1, 0, 1)[:, None] ^ np.arange(2)
        successor = np.take_along_axis(successor, swap[..., None], 1)
        probability = np.take_along_axis(probability, swap[..., None], 1)
        reward = np.take_along_axis(reward, swap[..., None], 1)
    ended = np.broadcast_to([[[end]], [[treasure]]], (2, *successor.shape[1:]))
    noise = np.zeros((cells + 2, 2))
    noise[:cells][last & ((column == 0) | goal)] = 1.0
    table = mdp.build(
        np.concatenate([successor, ended]),
        np.concatenate(
            [probability, np.broadcast_to([1.0, 0.0][: successor.shape[2]], ended.shape)]
        ),
        np.concatenate([reward, np.zeros((2, 2, 1))]),
        terminal=[end, treasure],
        success=treasure,
        noise=noise if stochastic else None,
        discount=1.0,
    )
    env = mdp.environment("deep_sea", table, observation=observation, render=_picture(size))
    return dataclasses.replace(env, max_steps=size)


def _picture(size: int) -> pictures.Render:
    depth = np.linspace(0, 1, size)[:, None, None]
    sea = (1 - depth) * np.array((205, 220, 238)) + depth * np.array(drawing.BLUE)
    colors = np.where(np.tri(size, dtype=bool)[..., None], sea, drawing.PAPER)
    colors[-1, -1] = drawing.GREEN
    places = np.stack(np.divmod(np.arange(size * size), size), axis=-1)
    nowhere, at_the_treasure = (-1, -1), (size - 1, size - 1)
    return pictures.board(colors, np.concatenate([places, [nowhere, at_the_treasure]]))
