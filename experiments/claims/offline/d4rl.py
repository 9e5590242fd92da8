"""Cloning and IQL on datasets of several kinds: the best algorithm depends on the data."""

from __future__ import annotations

from experiments.claims.offline import _datasets
from experiments.evidence.course import Course, beginning, end, split_once
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
from experiments.evidence.moments import Moment, returns, share_of_training
from jaxrl.algorithms.offline.iql import iql
from jaxrl.core.types import Array


def held_out_error(moment: Moment) -> Array:
    """Return the error on the actions of held-out episodes."""
    return _datasets.held_out_error(moment.policy(), moment.begun, moment.key)


IQL = _datasets.OnOwnData(iql)
CLONING = {"temperature": float("inf")}
COMMON = {
    "data.batch_size": 64,
    "data.updates": 50,
    "torso.hidden": (64, 64),
    "critic.learning_rate": 1e-3,
    "actor.learning_rate": 1e-3,
    "actor.learning_rate_steps": 10_000.0,
    "target.rate": 0.02,
    "discount": 0.97,
    "normalization.observation": True,
}


def data(kind: str) -> Arena:
    settings = COMMON | {"data.name": kind}
    # Gradient steps, since none are played.
    return Arena(
        "pendulum", 10_000, -1_700.0, 0.0, settings=settings, points=10, episodes=32, name=kind
    )


CLAIM = Claim(
    paper=Paper(
        "D4RL: Datasets for Deep Data-Driven Reinforcement Learning",
        "Fu, Kumar, Nachum, Tucker and Levine",
        2020,
        "2004.07219",
        "Data of one good policy say little about offline RL: the shortcomings of algorithms show "
        "on realistic data, such as replay buffers and mixtures of policies, where cloning fails.",
    ),
    claim="Offline RL (IQL) gains over cloning on a replay buffer and on mixed data, but not on an "
    "expert's.",
    left_out="Other environments and kinds of data, soft actor-critic's data of 1M steps (here "
    "PPO's, at most 330k), and other algorithms.",
    parts=(
        "experiments/claims/offline/_datasets.py",
        "jaxrl/algorithms/offline/shared/making.py",
        "jaxrl/algorithms/offline/iql.py",
        "jaxrl/algorithms/policy_gradient/ppo.py",
    ),
    metric=Metric(
        "final",
        -1_700.0,
        0.0,
        meaning="the mean return of greedy episodes after offline learning, which for cloning "
        "ends where its error on held-out episodes is least",
    ),
    environments=(data("medium-replay"), data("mixed"), data("expert")),
    sides={
        "IQL": Side(IQL, grid={"temperature": (0.3, 1.0, 3.0)}),
        "cloning": Side(
            IQL, CLONING, {"actor.learning_rate": (3e-4, 1e-3, 3e-3)}, "It is IQL without weights."
        ),
        "no weights": Side(IQL, CLONING),
    },
    clauses=(
        better("IQL", "cloning", 100.0, "medium-replay", "mixed"),
        not_worse("cloning", "IQL", 100.0, "expert"),
        better("IQL", "no weights", 0.0, "medium-replay", "mixed", of_mechanism=True),
    ),
    seeds=60,
    minutes=28.0,
    measure=Course(
        {
            "final": end(returns()),
            "untrained": beginning(returns()),
            "stopped at": end(share_of_training),
        },
        begin=_datasets.own,
        start=lambda algorithm, key, hyper, data: _datasets.begin(algorithm, key, data, hyper),
        split=split_once,
        begin_key=lambda key: key,
        sides={"cloning": {"stop": held_out_error}},
    ),
    tuned_by="final",
    tuning_seeds=3,
    notes="Every run has its own dataset, from its own run of PPO. Cloning stops where its error "
    "on held-out episodes is least. Margins are about a tenth of the way from random to expert.",
    mutations=(
        Mutation(
            "advantages change sign",
            "jaxrl.losses:awr",
            lambda f: lambda log_prob, advantage, *more: f(log_prob, -advantage, *more),
        ),
    ),
)
