"""i-QN against DQN: do several Bellman iterations in one gradient step help learning?"""

from __future__ import annotations

from experiments.claims.value._games import BREAKOUT, CARTPOLE, SETTINGS
from experiments.evidence.declare import Claim, Metric, Mutation, Paper, Side, better
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.algorithms.value.i_qn import i_qn

GRID = {"learning_rate": (3e-4, 1e-3, 3e-3)}
RARE = SETTINGS | {"target.period": 1000}  # seven target updates in all

CLAIM = Claim(
    paper=Paper(
        "Iterated Q-Network: Beyond One-Step Bellman Updates in Deep Reinforcement Learning",
        "Vincent, Palenicek, Belousov, Peters and D'Eramo",
        2024,
        "2403.02107",
        "A chain of Q-networks, each learning from the one before it, makes several consecutive "
        "Bellman iterations at once; so DQN, IQN and SAC learn better on Atari and MuJoCo.",
    ),
    claim="If targets are updated rarely, a chain of five networks, five Bellman iterations at "
    "once, makes DQN learn better from the same steps.",
    left_out="Periods that suit each side (with one of 200 updates both learned alike); Atari and "
    "MuJoCo; i-IQN and i-SAC; convolutions that the networks share; other lengths of the chain.",
    parts=(
        "jaxrl/algorithms/value/i_qn.py",
        "jaxrl/algorithms/value/dqn.py",
        "jaxrl/algorithms/value/shared/q_learning.py",
        "jaxrl/sources/replay.py",
        "jaxrl/losses/values/q_learning.py",
    ),
    metric=Metric("score", 0.0, 500.0),
    environments=(CARTPOLE, BREAKOUT),
    sides={
        "i-QN": Side(
            i_qn,
            RARE | {"iterations": 5, "chain_period": 8},
            GRID,
            "Its networks share no layers; errors are Huber's.",
        ),
        "DQN": Side(dqn, RARE, GRID, "Its optimizer is Adam, as i-QN's."),
    },
    clauses=(better("i-QN", "DQN", 0.02),),
    seeds=32,
    tuning_seeds=4,
    minutes=14.0,
    notes="Environment steps, gradient steps and the period of the window, 1,000 updates, are "
    "those of DQN; i-QN has five times its parameters, as in the paper. The algorithm's tests hold "
    "that K networks are K steps of value iteration, and that one network is DQN to the last bit.",
    mutations=(
        Mutation(
            "targets stay where the window began",
            "jaxrl.algorithms.value.i_qn:link_targets",
            lambda link: lambda net, period: net,
        ),
        Mutation(
            "the window never moves",
            "jaxrl.algorithms.value.i_qn:move_window",
            lambda move: lambda net, period: net,
        ),
    ),
)
