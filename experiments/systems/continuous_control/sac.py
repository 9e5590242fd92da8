"""SAC against DDPG and PPO: how soon they hold a pendulum upright, and how much seeds differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence import measure
from experiments.evidence.declare import (
    Claim,
    Measured,
    Metric,
    Mutation,
    Paper,
    Side,
    Trial,
    World,
    better,
)
from jaxrl.core.types import Key
from jaxrl.systems.continuous_control.ddpg import ddpg
from jaxrl.systems.continuous_control.sac import sac
from jaxrl.systems.policy_gradient.ppo import ppo

RATES = (3e-4, 1e-3, 3e-3)
REPLAY: dict[str, Any] = {"num_envs": 4, "updates": 4, "batch_size": 64, "warmup": 640}
REPLAY |= {"capacity": 10_240, "hidden": (64, 64)}


def in_pairs(trial: Trial, keys: Key, hyper: Mapping[str, Any]) -> Measured:
    """Means of the learning curves of two runs for each key, and `steadiness`: minus by how much
    their `final` differ."""
    pairs = jax.vmap(lambda key: jax.random.split(key, 2))(keys).reshape(-1)
    twice = {name: jnp.repeat(jnp.asarray(values), 2) for name, values in hyper.items()}
    found = {k: x.reshape(-1, 2) for k, x in measure.curve(trial, pairs, twice).items()}
    means = {name: x.mean(1) for name, x in found.items()}
    return means | {"steadiness": -jnp.abs(jnp.diff(found["final"], axis=1)[:, 0])}


CHECK = Claim(
    paper=Paper(
        "Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a "
        "Stochastic Actor",
        "Haarnoja, Zhou, Abbeel and Levine",
        2018,
        "1801.01290",
        "On continuous control benchmarks SAC outperforms prior on- and off-policy methods, and "
        "unlike other off-policy ones it is very stable, with similar results for all seeds.",
    ),
    claim="At the same environment steps SAC does better over training than DDPG and PPO, and its "
    "seeds differ less than DDPG's.",
    left_out="MuJoCo and millions of steps; TD3 and soft Q-learning; the first version's separate "
    "value network and fixed temperature (this is that of arXiv:1812.05905).",
    parts=(
        "jaxrl/systems/continuous_control/sac.py",
        "jaxrl/systems/continuous_control/ddpg.py",
        "jaxrl/systems/policy_gradient/ppo.py",
        "jaxrl/losses/values/actor_critics.py",
    ),
    metric=Metric("score", -1700.0, 0.0),
    worlds=(World("pendulum", 10_240, -1250.0, -150.0),),
    sides={
        "SAC": Side(sac, REPLAY, {"learning_rate": RATES}),
        "DDPG": Side(
            ddpg,
            REPLAY | {"target.rate": 0.005, "actor.learning_rate": 1e-3},
            {"critic.learning_rate": RATES},
            "Its copies follow as fast as SAC's, its policy descends ten times as fast as in its "
            "paper.",
        ),
        "PPO": Side(
            ppo,
            {
                "num_envs": 4,
                "num_steps": 128,
                "epochs": 10,
                "minibatches": 8,
                "discount": 0.9,
                "normalization.observation": True,
                "normalization.reward": True,
            },
            {"learning_rate": RATES},
        ),
    },
    clauses=(
        better("SAC", "DDPG", 20.0),
        better("SAC", "PPO", 55.0),
        better("SAC", "DDPG", 0.0, metric="steadiness"),
    ),
    measure=in_pairs,
    seeds=10,
    tuning_seeds=2,
    minutes=5.0,
    notes="Each reported seed is two runs: the score is their mean, and steadiness minus the "
    "difference of their final returns.",
    mutations=(
        Mutation(
            "the policy descends what it should climb",
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
