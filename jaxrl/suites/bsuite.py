"""Scores of bsuite's experiments (Osband et al., 2020, arXiv:1908.03568), from a run's log.

bsuite scores an agent by all episodes of its training, of which it has 10,000: an experiment's
score is the share of its settings (sizes, lengths) that the agent solves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

EPISODES = 10_000  # of training, in bsuite
GOOD_EPISODES = 0.1  # share of the episodes so far that finds DeepSea's treasure
FORGIVENESS = 100  # episodes that DeepSea allows beyond 2^N, which random play needs
MEMORY_REGRET = 0.75  # regret per episode below which a memory length is solved; random play has 1

Score = Callable[[Sequence[dict[str, Any]], Mapping[str, Any]], np.ndarray]


def deep_sea(rows: Sequence[dict[str, Any]], settings: Mapping[str, Any]) -> np.ndarray:
    """Return which seeds solve DeepSea of `settings["size"]`.

    A seed must have found the treasure in more than a tenth of its episodes so far at some point
    before episode 2^N + 100. (bsuite counts an episode as bad that leaves the path to the treasure,
    which is the same if `stochastic` is off.) The points are the rows of the log; bsuite's are its
    own logged episodes.

    Args:
        rows: rows of training in the log, with `episodes` and `success` by seed.
        settings: the environment's.
    """
    episodes, found = _running(rows, "success")
    size = settings.get("size", 10)
    in_time = (episodes < 2.0**size + FORGIVENESS) & (episodes <= EPISODES)
    return ((found > GOOD_EPISODES * episodes) & in_time & (episodes > 0)).any(0)


def memory_len(rows: Sequence[dict[str, Any]], settings: Mapping[str, Any]) -> np.ndarray:
    """Return which seeds solve the memory chain.

    The regret of an episode is 0 for the right answer (return 1) and 2 for the wrong one (return
    -1), so random play's is 1; its mean over all episodes up to the 10,000th must be below 0.75.

    Args:
        rows: rows of training in the log, with `episodes` and `episode_return` by seed.
        settings: the environment's; none matters.
    """
    episodes, returns = _running(rows, "episode_return")
    number = np.where(episodes <= EPISODES, episodes, -1)
    last = number.argmax(0), np.arange(number.shape[1])
    played = number[last]
    regret = 1 - returns[last] / np.maximum(played, 1)
    return (regret < MEMORY_REGRET) & (played > 0)


SCORES: dict[str, Score] = {"deep_sea": deep_sea, "memory_len": memory_len}


def _running(rows: Sequence[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the episodes so far and the sum of a metric over them, each [rows, seeds]."""
    column = lambda key: np.asarray([x["metrics"][key] for x in rows], np.float64)
    episodes = column("episodes")
    sums = np.where(episodes > 0, np.nan_to_num(column(name)) * episodes, 0.0)
    return episodes.cumsum(0), sums.cumsum(0)
