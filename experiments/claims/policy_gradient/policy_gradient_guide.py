"""REINFORCE, A2C and PPO in continuous control, and the effect of regularization."""

from __future__ import annotations

from experiments.claims.policy_gradient._control import GRID, NORMALIZED, SIDES, pendulum
from experiments.evidence.declare import Arena, Claim, Metric, Mutation, Paper, Side, better
from jaxrl.algorithms.policy_gradient.reinforce import reinforce

# A twentieth of each environment's range.
MARGINS = {"pendulum": 55.0, "reacher": 0.75}
# PPO's optimizer.
REINFORCE = {"optimizer.name": "adam", "optimizer.eps": 1e-5, "optimizer.max_grad_norm": 0.5}

CLAIM = Claim(
    paper=Paper(
        "The Definitive Guide to Policy Gradients in Deep Reinforcement Learning: Theory, "
        "Algorithms and Implementations",
        "Lehmann",
        2024,
        "2401.13662",
        "Compares REINFORCE, A2C, TRPO, PPO and V-MPO on continuous control (MuJoCo) and shows "
        "what regularization is good for: methods that bound a policy's change do better.",
    ),
    claim="In continuous control PPO ends above A2C and REINFORCE, and above PPO without its "
    "regularization, the clip.",
    left_out="MuJoCo; TRPO and V-MPO; entropy bonuses and penalties as regularization.",
    parts=(
        "jaxrl/algorithms/policy_gradient/reinforce.py",
        "jaxrl/algorithms/policy_gradient/a2c.py",
        "jaxrl/algorithms/policy_gradient/ppo.py",
        "jaxrl/core/learn.py",
        "jaxrl/losses/policies/policy_gradients.py",
        "jaxrl/kit/normalization.py",
    ),
    metric=Metric("final", -1250.0, 0.0, estimator="interquartile mean"),
    environments=(
        pendulum(204_800, points=1, episodes=32),
        Arena("reacher", 204_800, -15.0, 0.0, settings=NORMALIZED, points=1, episodes=32),
    ),
    sides=SIDES | {"REINFORCE": Side(reinforce, REINFORCE, GRID)},
    clauses=tuple(
        better("PPO", other, margin, environment)
        for other in ("A2C", "REINFORCE", "PPO without clip")
        for environment, margin in MARGINS.items()
    ),
    seeds=24,
    tuning_seeds=4,
    minutes=9.0,
    notes="Every side is tuned on its own. The middle half of the differences counts, since a seed "
    "or two of A2C in Reacher end far below the others. REINFORCE is charged for all simulated "
    "steps, also those after the end of an episode; its baseline is the mean return of the other "
    "episodes.",
    mutations=(
        Mutation(
            "the clipped surrogate has the wrong sign",
            "jaxrl.losses:clipped_surrogate",
            lambda surrogate: lambda *arguments: -surrogate(*arguments),
        ),
    ),
)
