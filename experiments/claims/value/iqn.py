"""IQN against QR-DQN, and against itself with a distortion toward the worst outcomes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from experiments.claims.value._games import CARTPOLE, SETTINGS
from experiments.evidence.course import Course, along
from experiments.evidence.declare import (
    Arena,
    Claim,
    Metric,
    Mutation,
    Paper,
    Side,
    better,
    not_worse,
)
from experiments.evidence.moments import returns
from jaxrl.algorithms.value.iqn import iqn
from jaxrl.algorithms.value.qr_dqn import qr_dqn
from jaxrl.core.types import Environment
from jaxrl.envs.tables import mdp

SHARE = 0.1  # of episodes, and of outcomes, that count as the worst


@functools.cache
def bets(rounds: int = 4) -> Environment:
    """Bets in which four rounds gain 2 in the mean, and lose in the worst tenth of all episodes.

    In every round action 0 passes and action 1 bets, which gains 1 with probability 3 / 4 and
    otherwise loses 1.
    """
    after = np.arange(1, rounds + 2).clip(max=rounds)
    successor = np.broadcast_to(after[:, None, None], (rounds + 1, 2, 2))
    reward = np.broadcast_to([[0.0, 0.0], [1.0, -1.0]], successor.shape)
    table = mdp.build(successor, [0.75, 0.25], reward, terminal=rounds)
    return mdp.environment("bets", table, max_steps=rounds)


# score: the mean return over all points of training. worst: the same for the worst episodes at each
# point. sought: the one of the two that a side maximizes.
SCORE, WORST = along(returns()), along(returns(worst=SHARE))
GRID = {"learning_rate": (3e-4, 1e-3, 3e-3)}
IQN: dict[str, Any] = SETTINGS | {"num_fractions": 8, "num_target_fractions": 8}

CLAIM = Claim(
    paper=Paper(
        "Implicit Quantile Networks for Distributional Reinforcement Learning",
        "Dabney, Ostrovski, Silver and Munos",
        2018,
        "1806.06923",
        "On 57 Atari games IQN reaches higher scores than QR-DQN, and its quantiles at distorted "
        "fractions make policies that avoid risk or seek it.",
    ),
    claim="IQN learns no worse than QR-DQN; with a distortion to the worst outcomes it gives up "
    "mean return for the tail.",
    left_out="Atari; distortions other than the conditional value at risk, and those that seek "
    "risk; other numbers of fractions than 8.",
    parts=(
        "jaxrl/algorithms/value/iqn.py",
        "jaxrl/algorithms/value/qr_dqn.py",
        "jaxrl/algorithms/value/dqn.py",
        "jaxrl/algorithms/value/shared/q_learning.py",
        "jaxrl/algorithms/value/shared/quantiles.py",
        "jaxrl/networks/q_network.py",
        "jaxrl/losses/distributions/distributional.py",
        "jaxrl/losses/distributions/distortions.py",
    ),
    metric=Metric(
        "score",
        -4.0,
        500.0,
        meaning="the mean return of greedy episodes, averaged over five points of training",
    ),
    environments=(
        Arena(f"{__name__}:bets", 5_632, -4.0, 4.0, episodes=64, name="bets"),
        CARTPOLE,
    ),
    sides={
        "IQN": Side(iqn, IQN, GRID),
        "averse IQN": Side(iqn, IQN | {"distortion": "cvar", "risk": SHARE}, GRID),
        "QR-DQN": Side(qr_dqn, SETTINGS | {"num_quantiles": 8}, GRID),
    },
    clauses=(
        not_worse("IQN", "QR-DQN", 25.0, "cartpole"),
        better("averse IQN", "IQN", 0.25, "bets", metric="worst"),
        better("IQN", "averse IQN", 0.5, "bets"),
    ),
    measure=Course(
        {"score": SCORE, "worst": WORST, "sought": SCORE},
        sides={"averse IQN": {"metrics": {"score": SCORE, "worst": WORST, "sought": WORST}}},
    ),
    tuned_by="sought",
    seeds=64,
    minutes=30.0,
    notes="IQN and QR-DQN predict 8 quantiles each; 8 were enough in the paper. In each of four "
    "bets the chance to win is 3 / 4: always betting gains 2 and has -1.1 in the worst tenth of "
    "episodes; never betting has 0. The averse side is tuned by the worst tenth.",
    mutations=(
        Mutation(
            "fractions are not distorted",
            "jaxrl.algorithms.value.iqn:DISTORTIONS",
            lambda known: known | {"cvar": known["neutral"]},
        ),
        Mutation(
            "over- and underestimation are exchanged",
            "jaxrl.losses:quantile_huber",
            lambda loss: lambda quantiles, tau, *rest: loss(quantiles, 1 - tau, *rest),
        ),
    ),
)
