"""Lenders who explore, by Thompson sampling and by information-directed sampling, against a greedy
one: the regret of granting loans to groups of which no one tells of another."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from experiments.evidence.course import Course, end
from experiments.evidence.declare import Arena, Claim, Metric, Mutation, Paper, Side, better
from experiments.evidence.moments import Moment
from jaxrl.algorithms.games.credit_underwriting import credit_underwriting
from jaxrl.core.types import Array

GROUPS, ROUNDS = 8, 4096
FIXED, RENEWED = "one of a nearly fixed pool", "two of six new applicants"


def regret(moment: Moment) -> Array:
    """Return the regret of all rounds so far, the expected reward that the best choices have more.

    The only episode is one round longer than a run, so it is the whole run's.
    """
    return moment.run.state.source.streams.env_state.regret.sum()


def lending(name: str, candidates: int, quota: int) -> Arena:
    """Return an arena whose log-odds of groups are standard normal, drawn for each run, as the
    model believes."""
    params: dict[str, Any] = {"types": GROUPS, "features": 0, "weights": np.zeros(GROUPS)}
    params |= {"spread": 1.0, "rounds": ROUNDS + 1, "delay": 2}
    params |= {"candidates": candidates, "quota": quota}
    return Arena("selective_labels", ROUNDS, 0.0, 1000.0, params=params, points=1, name=name)


def flat(infer: Any) -> Any:
    """Learn the weights and keep the precision, as if labels told nothing of certainty."""

    def wrong(self: Any, belief: Any, *more: Array) -> Any:
        after = infer(self, belief, *more)
        return dataclasses.replace(after, precision=belief.precision)

    return wrong


SETTINGS = {"num_envs": 1, "num_steps": 4, "deviation": 1.0}
CLAIM = Claim(
    paper=Paper(
        "Reinforcement Learning in Credit Scoring and Underwriting",
        "Kiatsupaibul et al.",
        2024,
        "2212.07632",
        "Credit scoring is a greedy policy. Where the data follow the model and groups of "
        "applicants tell nothing of each other, Thompson sampling and information-directed "
        "sampling do better, given enough time; with one choice of a fixed pool and with several "
        "of new applicants.",
    ),
    claim="Where the model is right and groups tell nothing of each other, Thompson and "
    "information-directed sampling have less regret than greed.",
    left_out="Data that do not follow the model, neural networks, features that groups share, real "
    "loans, and calibration.",
    parts=(
        "jaxrl/algorithms/games/credit_underwriting.py",
        "jaxrl/networks/logistic.py",
        "jaxrl/envs/bandits/selective_labels.py",
    ),
    metric=Metric(
        "regret",
        0.0,
        1000.0,
        more_is_better=False,
        meaning="the regret of 4,096 rounds, the expected reward that the best choices have more",
    ),
    environments=(lending(FIXED, 16, 1), lending(RENEWED, 6, 2)),
    sides={
        "greedy": Side(credit_underwriting, SETTINGS | {"rule": "greedy"}),
        "thompson": Side(credit_underwriting, SETTINGS | {"rule": "thompson"}),
        "ids": Side(credit_underwriting, SETTINGS | {"rule": "ids"}),
    },
    clauses=(
        better("thompson", "greedy", 0.0, FIXED),
        better("ids", "greedy", 0.0, FIXED),
        better("thompson", "greedy", 0.0, RENEWED),
        better("ids", "greedy", 0.0, RENEWED),
    ),
    measure=Course({"regret": end(regret)}),
    seeds=256,
    minutes=8.0,
    mutations=(Mutation("beliefs stay as wide", "jaxrl.networks.logistic:Logistic.infer", flat),),
    notes="A label of 1 pays 1. Of eight groups the log-odds are drawn anew for each run from the "
    "lenders' prior. Labels arrive two rounds late, and beliefs change every four rounds. The pool "
    "is nearly fixed where 16 candidates are of eight groups. Before it was declared, pilots on 32 "
    "other seeds with six new applicants had regrets of 50.5 (standard error 9.9) for greed, 58.2 "
    "(3.8) for Thompson sampling and 38.4 (2.6) for information-directed sampling after 8,192 "
    "rounds, and 39.6 (6.8), 48.2 (2.6) and 32.3 (1.8) after 4,096.",
)
