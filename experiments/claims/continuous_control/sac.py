"""SAC against DDPG and PPO: learning to hop in few steps."""

from __future__ import annotations

import functools
from typing import Any

from experiments.evidence.declare import Arena, Claim, Metric, Mutation, Paper, Side, better
from jaxrl import envs
from jaxrl.algorithms.continuous_control.ddpg import ddpg
from jaxrl.algorithms.continuous_control.sac import sac
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core.types import Environment
from jaxrl.envs.wrappers.time_limit import time_limit

HOPPER = "experiments.claims.continuous_control.sac:short_hopper"
RATES = (3e-4, 1e-3, 3e-3)
REPLAY: dict[str, Any] = {"num_envs": 4, "updates": 4, "batch_size": 64, "warmup": 640}
REPLAY |= {"capacity": 10_240, "hidden": (64, 64)}
ON_POLICY: dict[str, Any] = {"num_envs": 4, "num_steps": 128, "epochs": 10, "minibatches": 8}
ON_POLICY |= {"normalization.observation": True, "normalization.reward": True}


@functools.cache
def short_hopper() -> Environment:
    """Hopper with episodes of at most 250 steps, before which most fall so early in learning."""
    return time_limit(envs.make("hopper"), 250)


CLAIM = Claim(
    paper=Paper(
        "Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a "
        "Stochastic Actor",
        "Haarnoja, Zhou, Abbeel and Levine",
        2018,
        "1801.01290",
        "On continuous control benchmarks SAC outperforms prior on- and off-policy methods, and "
        "unlike other off-policy ones it is very stable, with similar results for all seeds.",
    ),
    claim="At the same environment steps SAC does better over training than DDPG and PPO.",
    left_out="Larger bodies and millions of steps; TD3 and soft Q-learning; the first version's "
    "separate value network and fixed temperature (this is the version of arXiv:1812.05905); that "
    "seeds are alike.",
    parts=(
        "jaxrl/algorithms/continuous_control/sac.py",
        "jaxrl/algorithms/continuous_control/ddpg.py",
        "jaxrl/algorithms/policy_gradient/ppo.py",
        "jaxrl/losses/values/actor_critics.py",
    ),
    metric=Metric("score", 0.0, 750.0),
    environments=(Arena(HOPPER, 10_240, 0.0, 750.0, points=4, episodes=4, name="hopper"),),
    sides={
        "SAC": Side(sac, REPLAY, {"learning_rate": RATES}),
        "DDPG": Side(
            ddpg,
            REPLAY | {"target.rate": 0.005, "actor.learning_rate": 1e-3},
            {"critic.learning_rate": RATES},
            "Its target networks follow as fast as SAC's, and its policy's step size is ten times "
            "that of the paper.",
        ),
        "PPO": Side(ppo, ON_POLICY, {"learning_rate": RATES}),
    },
    clauses=(better("SAC", "DDPG"), better("SAC", "PPO")),
    seeds=48,
    tuning_seeds=8,
    minutes=18.0,
    notes="The paper finds SAC far ahead where a body is hard to control and comparable elsewhere. "
    "The first design, a pendulum, is too easy to separate it from DDPG: on other seeds (12 each) "
    "both ended at -180 to -200 after 5,120 steps, DDPG sooner. It also asked whether the final "
    "returns of two runs differ less for SAC, which takes more runs than these minutes allow.",
    diagnosis="On 8 tuning seeds SAC is ahead of DDPG over training, 248 to 184, but hardly of PPO "
    "with normalized observations and rewards, 211; at the end PPO is at 290, SAC at 270, DDPG at "
    "241. The spread of the difference from PPO, about 90, is too large for 24 seeds and a margin "
    "of 20. In the earlier pendulum, with half the steps, DDPG was ahead of SAC on 12 runs each.",
    mutations=(
        Mutation(
            "the policy descends the value that it should climb",
            "jaxrl.losses:sac_actor",
            lambda loss: lambda log_prob, q, temperature: loss(log_prob, -q, temperature),
        ),
        Mutation(
            "entropy counts against an action",
            "jaxrl.losses:sac_target",
            lambda target: lambda *x: target(*x[:-1], -20 * x[-1]),
        ),
    ),
)
