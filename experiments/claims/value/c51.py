"""C51 against DQN: does it help to learn the distribution of returns instead of the mean?"""

from __future__ import annotations

from typing import Any

from experiments.evidence.declare import Arena, Claim, Metric, Mutation, Paper, Side, better
from jaxrl.algorithms.value.c51 import c51
from jaxrl.algorithms.value.dqn import dqn

GRID = {"learning_rate": (3e-4, 1e-3, 3e-3, 1e-2)}
SETTINGS: dict[str, Any] = {"num_envs": 8, "num_steps": 4, "updates": 8, "batch_size": 32}
SETTINGS |= {"warmup": 512, "capacity": 50_000, "period": 200, "exploration.steps": 8_000.0}
SETTINGS |= {"hidden": (64,), "optimizer.name": "adam", "optimizer.eps": 0.01 / 32}


def game(name: str, high: float) -> Arena:
    return Arena(
        f"minatar_{name}", 49_152, 0.0, high, params={"time_limit": 500}, episodes=8, name=name
    )


CLAIM = Claim(
    paper=Paper(
        "A Distributional Perspective on Reinforcement Learning",
        "Bellemare, Dabney and Munos",
        2017,
        "1707.06887",
        "On 57 Atari games DQN with a distribution of 51 atoms in place of the mean reaches far "
        "higher mean and median scores than DQN, and more atoms are better.",
    ),
    claim="Learning the distribution of returns instead of their mean makes DQN learn better.",
    left_out="Atari and its 200 million frames; numbers of atoms between 2 and 51; the games of "
    "MinAtar that DQN does not begin to learn in 50 thousand steps.",
    parts=(
        "jaxrl/algorithms/value/c51.py",
        "jaxrl/algorithms/value/dqn.py",
        "jaxrl/algorithms/value/shared/q_learning.py",
        "jaxrl/algorithms/value/shared/heads.py",
        "jaxrl/sources/replay.py",
        "jaxrl/losses/distributions/distributional.py",
    ),
    metric=Metric("score", 0.0, 20.0),
    environments=(game("breakout", 10.0), game("space_invaders", 20.0)),
    sides={
        "C51": Side(c51, SETTINGS, GRID),
        "DQN": Side(dqn, SETTINGS, GRID, "Its optimizer is Adam, as C51's."),
        "C51 of two atoms": Side(c51, SETTINGS | {"num_atoms": 2}, GRID),
    },
    clauses=(
        better("C51", "DQN", 0.02),
        better("C51", "C51 of two atoms", 0.0, of_mechanism=True),
    ),
    seeds=20,
    tuning_seeds=4,
    minutes=10.0,
    notes="Atoms lie between -10 and 10 in every game, as in the paper; networks have one hidden "
    "layer of 64 and no convolutions. Two atoms represent no more than a mean, but are learned by "
    "the same loss, so they separate the effect of the distribution from that of the loss.",
    diagnosis="In Breakout C51 is as good as DQN; in Space Invaders it earns 3 points less. The "
    "distribution improves on two atoms in Space Invaders (7.3 against 2.9), and hardly in "
    "Breakout (3.2 against 3.0). A guess, not tested: 49,152 steps are less than a thousandth of "
    "the paper's, and the 306 outputs of a network this small, with atoms 0.4 apart, take longer "
    "to learn than 6 means.",
    mutations=(
        Mutation(
            "the target distribution forgets the reward",
            "jaxrl.losses:categorical_double_q_target",
            lambda target: lambda reward, *rest: target(0 * reward, *rest),
        ),
        Mutation(
            "the projection puts every atom's mass half a step too low",
            "jaxrl.losses.distributions.distributional:categorical_projection",
            lambda project: (
                lambda atoms, probs, support: project(
                    atoms - (support[1] - support[0]) / 2, probs, support
                )
            ),
        ),
    ),
)
