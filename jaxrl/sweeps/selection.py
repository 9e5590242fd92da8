"""Who goes on: successive halving and population based training, as functions of scores.

A score that is not finite is that of a point or member which cannot go on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxrl.sweeps.points import Values

SHARE = 5  # a fifth of a population copies, a fifth is copied (Jaderberg et al. 2017, 4.1.1)
FACTORS = (0.8, 1.2)  # of perturbation (4.1.1)
RESAMPLED = 0.25  # how often a hyperparameter is drawn anew instead


def rungs(steps: int, points: int, eta: int) -> list[int]:
    """Environment steps after which successive halving chooses: `steps / eta^k`, rounded up, for
    k = K, ..., 0, where the K + 1 rungs leave one point of every eta at each (Jamieson & Talwalkar
    2016; Li et al. 2018, Algorithm 1, one bracket whose largest budget is `steps`)."""
    count = 0
    while eta ** (count + 1) <= points:
        count += 1
    return [-(-steps // eta**k) for k in range(count, -1, -1)]


def best(scores: np.ndarray, eta: int) -> list[int]:
    """Which of the points with `scores` [n] are the best n // eta, at least one, in their order
    here; of equal ones the first. Fewer where not as many are finite."""
    finite = np.isfinite(scores)
    order = np.argsort(-np.where(finite, scores, -np.inf), kind="stable")
    return sorted(int(i) for i in order[: max(1, len(scores) // eta)] if finite[i])


def exchange(
    scores: np.ndarray,
    hyper: Mapping[str, np.ndarray],
    varied: Mapping[str, Values],
    rng: np.random.Generator,
) -> tuple[list[int], dict[str, np.ndarray]]:
    """One exploit and explore of population based training (Jaderberg et al. 2017): by truncation
    selection each of the worst fifth of the members, and each whose score is not finite, becomes a
    copy of a random one of the best fifth. Each hyperparameter of a copy is multiplied by 0.8 or
    1.2 within what it is varied over, or drawn anew.

    scores, hyper[name]: [members].

    Returns:
        For each member, whose state it goes on from (its own index for most), and the new `hyper`.
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
            values[i] = _explored(hyper[name][parents[i]], varied[name], rng)
    return parents, new


def _explored(value: float, values: Values, rng: np.random.Generator) -> float:
    anew, u, factor = rng.random(), rng.random(), FACTORS[rng.integers(len(FACTORS))]
    return values.at(u) if anew < RESAMPLED else values.clipped(float(value) * factor)
