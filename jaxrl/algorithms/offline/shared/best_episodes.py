"""The best episodes of a dataset, by their returns."""

from __future__ import annotations

import jax
import numpy as np

from jaxrl.core.types import Transition
from jaxrl.datasets.transitions import returns, spans


def best_episodes(transitions: Transition, fraction: float) -> Transition:
    """Return the episodes with the highest undiscounted returns, in the order of the dataset, up to
    a fraction of all steps: the best one, then the next ones as long as all of them together have
    no more steps than that. The later one of equal returns counts as the better one.

    transitions: NumPy arrays [N] of whole episodes. fraction: in (0, 1].
    Source: Chen et al., 2021, "Decision transformer", section 5.1 (percentile behavior cloning) and
        its published code.
    """
    rows = spans(transitions)
    best = np.argsort(returns(transitions), kind="stable")[::-1]
    steps = np.cumsum([rows[i].stop - rows[i].start for i in best])
    count = max(1, int((steps <= fraction * len(transitions.reward)).sum()))
    chosen = np.zeros(len(transitions.reward), bool)
    for i in best[:count]:
        chosen[rows[i]] = True
    return jax.tree.map(lambda x: np.asarray(x)[chosen], transitions)
