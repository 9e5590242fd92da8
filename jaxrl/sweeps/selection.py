"""Selection by scores: successive halving and population based training, as pure functions.

A score that is not finite marks a point or member that cannot continue.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxrl.sweeps.points import Values

SHARE = 5  # a fifth of a population copies, a fifth is copied (Jaderberg et al. 2017, 4.1.1)
FACTORS = (0.8, 1.2)  # perturbations of a hyperparameter (4.1.1)
RESAMPLED = 0.25  # probability that a hyperparameter is resampled instead


def rungs(steps: int, points: int, eta: int) -> list[int]:
    """Return the environment steps at which successive halving selects points.

    They are `steps / eta^k`, rounded up, for k = K, ..., 0, where the K + 1 rungs keep one of every
    eta points at each (Jamieson & Talwalkar 2016; Li et al. 2018, Algorithm 1, one bracket whose
    largest budget is `steps`).
    """
    count = 0
    while eta ** (count + 1) <= points:
        count += 1
    return [-(-steps // eta**k) for k in range(count, -1, -1)]


def best(scores: np.ndarray, eta: int) -> list[int]:
    """Return the indices of the best n // eta of `scores` [n], at least one, in increasing order.

    The first of equal scores wins. Fewer are returned if not as many are finite.
    """
    finite = np.isfinite(scores)
    order = np.argsort(-np.where(finite, scores, -np.inf), kind="stable")
    return sorted(int(i) for i in order[: max(1, len(scores) // eta)] if finite[i])


def exchange(
    scores: np.ndarray,
    hyper: Mapping[str, np.ndarray],
    varied: Mapping[str, Values],
    rng: np.random.Generator,
) -> tuple[list[int], dict[str, np.ndarray]]:
    """Do one exploit and explore step of population based training (Jaderberg et al. 2017).

    By truncation selection, each of the worst fifth of the members, and each whose score is not
    finite, becomes a copy of a random one of the best fifth. Each hyperparameter of a copy is
    multiplied by 0.8 or 1.2 within its range, or resampled.

    scores, hyper[name]: [members].

    Returns:
        For each member, the member whose state it continues from (itself, for most), and the new
        `hyper`.
    """
    finite, n = np.isfinite(scores), len(scores)
    order = np.argsort(-np.where(finite, scores, -np.inf), kind="stable")
    count = -(-n // SHARE)
    donors = [int(i) for i in order[:count] if finite[i]]
    parents, new = list(range(n)), {name: np.array(x) for name, x in hyper.items()}
    copies = sorted({*order[n - count :].tolist(), *np.flatnonzero(~finite).tolist()})
    for i in copies if donors else ():
        parents[i] = donors[rng.integers(len(donors))]
        for name, values in new.items():
            values[i] = _explore(hyper[name][parents[i]], varied[name], rng)
    return parents, new


def _explore(value: float, values: Values, rng: np.random.Generator) -> float:
    choice, u, factor = rng.random(), rng.random(), FACTORS[rng.integers(len(FACTORS))]
    return values.at(u) if choice < RESAMPLED else values.clip(float(value) * factor)
