"""Inverse gap weighting against uniform exploration of payments: exact regret while they learn."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.evidence.course import Course, along, end
from experiments.evidence.declare import Arena, Claim, Metric, Mutation, Paper, Side, better
from experiments.evidence.moments import Moment
from experiments.evidence.trials import configure
from jaxrl.algorithms.games.payment_bandits import choose, payment_bandits
from jaxrl.core import hyper
from jaxrl.core.settings import Static, Values
from jaxrl.core.types import Array, TimeStep
from jaxrl.exact import selection

SUCCESS = (0.9, 0.8, 0.2, 0.2)  # of each type
TYPES, CANDIDATES, GENERATIONS, EVERY = len(SUCCESS), 16, 16, 256
# Types of a payment's candidates [R, 16] without their order, and the probability of each row.
ROWS = np.array(list(itertools.combinations_with_replacement(range(TYPES), CANDIDATES)))
ORDERS = [math.factorial(CANDIDATES) / math.prod(math.factorial(n) for n in np.bincount(row))
          for row in ROWS]  # fmt: skip
CHANCE = np.array(ORDERS) / TYPES**CANDIDATES


def predictions(moment: Moment) -> Array:
    """Return the oracle's predictions for the types, [K]."""
    policy, params = moment.algorithm.policy(moment.run.state), moment.env.params
    table = jnp.asarray(params.features, jnp.float32)
    seen = {"available": jnp.ones((1, len(table))), "candidates": table[None]}
    no = jnp.zeros(1, bool)
    timestep = TimeStep(seen, jnp.zeros(1), no, no, no)
    return policy.act(policy.state, timestep, policy.memory(1), moment.key, True)[0][0]


def regret_of(moment: Moment, probability: Array) -> Array:
    """Return the exact regret of a payment whose candidates are chosen so, [R, 16]."""
    rewards = selection.type_rewards(moment.env.params)[ROWS]
    return (jnp.asarray(CHANCE) * (rewards.max(-1) - (probability * rewards).sum(-1))).sum()


def exploring(moment: Moment) -> Array:
    """Return the exact regret of a payment as it is explored."""
    config: Any = Static(configure(moment.trial))
    net: Any = SimpleNamespace(
        hyper=Values(hyper.read_hyper(moment.run.state)), env_steps=moment.run.state.agent.env_steps
    )
    q = predictions(moment)[ROWS]
    return regret_of(moment, choose(net, config, q, jnp.ones(q.shape, bool)))


def greedy(moment: Moment) -> Array:
    """Return the exact regret of a payment that is routed greedily by the oracle."""
    best = predictions(moment)[ROWS].argmax(-1)
    return regret_of(moment, best[:, None] == np.arange(CANDIDATES))


PAYMENTS: dict[str, Any] = {"candidates": CANDIDATES, "types": TYPES, "features": 0, "delay": 2}
PAYMENTS |= {"weights": tuple(math.log(p / (1 - p)) for p in SUCCESS)}
SETTINGS = {"num_envs": 16, "num_steps": EVERY // 16, "updates": 32, "batch_size": 64}
SETTINGS |= {"capacity": 2048, "warmup": EVERY, "learning_rate": 3e-3, "hidden": (32,)}
CLAIM = Claim(
    paper=Paper(
        "Contextual Bandits in Payment Processing: Non-uniform Exploration and Supervised Learning "
        "at Adyen",
        "Vangara and Egg",
        2024,
        "2412.00569",
        "Exploring around a regression oracle does much better than exploring uniformly, but later "
        "generations of the policy may be worse than earlier ones, since what they learn from "
        "shifts: performance oscillates.",
    ),
    claim="Where the best of four kinds of payments is nearly always available, inverse gap "
    "weighting has less regret than uniform exploration.",
    left_out="That later generations may be worse: in simulations setbacks were at most 0.0014 on "
    "both sides. Boosted trees that are trained anew for each generation, off-policy evaluation "
    "before a generation is deployed, and payments of customers.",
    parts=(
        "jaxrl/algorithms/games/payment_bandits.py",
        "jaxrl/losses/policies/off_policy.py",
        "jaxrl/envs/bandits/selective_labels.py",
        "jaxrl/exact/selection.py",
    ),
    metric=Metric(
        "regret",
        0.0,
        0.2,
        more_is_better=False,
        meaning="the exact regret of a payment as it is explored, in the mean over 16 generations",
    ),
    environments=(
        Arena(
            "selective_labels",
            (1 + GENERATIONS) * EVERY,
            0.0,
            0.2,
            PAYMENTS,
            points=GENERATIONS,
            name="payments",
        ),
    ),
    sides={
        "gap weighting": Side(
            payment_bandits,
            SETTINGS | {"rule": "igw"},
            {"gamma": (300.0, 1000.0, 3000.0, 10_000.0)},
        ),
        "uniform": Side(
            payment_bandits,
            SETTINGS | {"rule": "epsilon", "exploration.steps": 1.0},
            {"exploration.end": (0.003, 0.01, 0.03, 0.1)},
        ),
    },
    clauses=(better("gap weighting", "uniform"),),
    measure=Course({"regret": along(exploring), "greedy": along(greedy), "end": end(greedy)}),
    shared="How often each kind of payment goes through.",
    tuning_seeds=16,
    seeds=256,
    minutes=9.0,
    diagnosis="Both sides are about as good: gap weighting is at 0.0242, uniform exploration at "
    "0.0218 (256 seeds; difference -0.0024, between -0.0061 and 0.0013). Both are tuned to explore "
    "hardly at all, uniform exploration to the least of its grid, 0.0009. A type that is thought "
    "worse is still seen when others are missing, and the network's estimates move enough for the "
    "best one to be found: greedy regret falls to 0.004 in 16 generations on both sides. Gap "
    "weighting keeps to a worse type for long on 4 of 16 tuning seeds, which makes the spread. It "
    "would take about 1,100 seeds to decide. A problem where exploration pays needs estimates that "
    "do not move by themselves, such as counts for each type, or trees as in the paper.",
    mutations=(
        Mutation(
            "gaps count for nothing",
            "jaxrl.losses:inverse_gap_weighting",
            lambda weighting: lambda q, gamma, *mask: weighting(q, 0 * gamma, *mask),
        ),
        Mutation(
            "a hundredth of the gap counts",
            "jaxrl.losses:inverse_gap_weighting",
            lambda weighting: lambda q, gamma, *mask: weighting(q, 0.01 * gamma, *mask),
        ),
    ),
    notes="A generation plays 256 payments unchanged, and the oracle learns from the last eight "
    "generations. Kinds of payments are one-hot and go through with probabilities of 0.9, 0.8, 0.2 "
    "and 0.2; with 16 candidates a kind is missing in 1 of 100 payments. Regrets are exact: sums "
    "over all candidates and choices of a generation. This is the second design. The first was "
    "untestable: of 16 types that share features, with five candidates of which 0.6 are there, "
    "the oracle learned of all without exploring, so that both sides came within 0.005 of the best "
    "choices, and mean setbacks were below 0.001. That gap weighting has larger setbacks "
    "is no longer claimed. Kinds, candidates and grids were chosen on simulations of both rules: "
    "with five kinds and ten candidates, of which the second best is taken in every tenth payment "
    "for want of the best, both were about as good (0.013 and 0.014 to 0.016); as here, after 24 "
    "generations, they were at 0.012 and 0.017 (24 seeds).",
)
