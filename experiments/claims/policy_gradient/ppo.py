"""PPO, with and without its clip, against A2C at the same number of environment steps."""

from __future__ import annotations

import math

from experiments.claims.policy_gradient._control import SIDES, cartpole, pendulum
from experiments.evidence.declare import Claim, Metric, Mutation, Paper, better

# A twentieth of each environment's range.
MARGINS = {"cartpole": 25.0, "pendulum": 55.0}

CLAIM = Claim(
    paper=Paper(
        "Proximal Policy Optimization Algorithms",
        "Schulman, Wolski, Dhariwal, Radford and Klimov",
        2017,
        "1707.06347",
        "On almost all of seven simulated robots PPO outperforms other online policy gradient "
        "methods in a million steps; of its surrogates the clipped one does best; on Atari it "
        "learns faster than A2C.",
    ),
    claim="At the same environment steps PPO does better over training than A2C, and than without "
    "its clip.",
    left_out="MuJoCo and Atari; TRPO, the cross-entropy method and ACER; the KL penalty.",
    parts=(
        "jaxrl/algorithms/policy_gradient/ppo.py",
        "jaxrl/algorithms/policy_gradient/a2c.py",
        "jaxrl/losses/policies/policy_gradients.py",
    ),
    metric=Metric("score", -1250.0, 500.0),
    environments=(cartpole(51_200), pendulum(204_800)),
    sides=SIDES,
    clauses=(
        *(better("PPO", "A2C", margin, environment) for environment, margin in MARGINS.items()),
        *(
            better("PPO", "PPO without clip", 0.0, environment, of_mechanism=True)
            for environment in MARGINS
        ),
    ),
    seeds=24,
    tuning_seeds=4,
    minutes=9.0,
    notes="Every side is tuned on its own, also PPO without its clip (an infinite clip).",
    mutations=(
        Mutation(
            "the clip is ignored",
            "jaxrl.losses:clipped_surrogate",
            lambda surrogate: (
                lambda new, old, advantage, clip: surrogate(new, old, advantage, math.inf)
            ),
        ),
        Mutation(
            "the surrogate has the wrong sign",
            "jaxrl.losses:clipped_surrogate",
            lambda surrogate: lambda *arguments: -surrogate(*arguments),
        ),
    ),
)
