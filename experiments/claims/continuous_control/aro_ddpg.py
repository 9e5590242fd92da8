"""ARO-DDPG against an on-policy average-reward actor-critic, and against itself with a discount."""

from __future__ import annotations

import dataclasses
from typing import Any

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
from jaxrl import envs, losses
from jaxrl.algorithms.continuous_control import aro_ddpg as aro_ddpg_
from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.algorithms.policy_gradient import ppo as ppo_
from jaxrl.core.settings import group
from jaxrl.core.types import Environment
from jaxrl.kit import LossOutput, hyper, loss

WORST = 16.3  # the largest cost of a step
RATES = (3e-4, 1e-3, 3e-3)
PENDULUM = "experiments.claims.continuous_control.aro_ddpg:scaled_pendulum"
REPLAY: dict[str, Any] = {"replay.num_envs": 4, "replay.num_steps": 1, "updates": 4}
REPLAY |= {"batch_size": 64, "warmup": 800, "capacity": 12_800, "hidden": (64, 64)}
REPLAY |= {"optimizer.learning_rate": 1e-3}
ON_POLICY = {"num_envs": 4, "num_steps": 128, "epochs": 10, "minibatches": 8, "discount": 1.0}


def scaled_pendulum() -> Environment:
    """Pendulum with rewards between 0 and 1, so that an average reward of 0 is far from right."""
    env = envs.make("pendulum")

    def step(*arguments):
        state, timestep = env.step(*arguments)
        return state, dataclasses.replace(timestep, reward=1 + timestep.reward / WORST)

    return dataclasses.replace(env, step=step, expert=None)


@group
class Discounted(aro_ddpg_.Config):
    discount: float = hyper(0.99, low=0, high=1)


@loss("critic", name="critic_loss")
def discounted_loss(net, x):
    """Regress on the discounted target of the smaller target network."""
    q = net.critic(x.timestep, x.action)
    after = net.target.critic(x.next_timestep, net.target.actor(x.next_timestep)).min(-1)
    target = losses.td_target(x.reward, x.terminated, net.hyper.discount, after)
    error = losses.squared_error(q, target[..., None]).sum(-1)
    return LossOutput(error, {"value": q.mean(-1)})


def discounted_recipe(env, config):
    """Build ARO-DDPG with critics of discounted returns; no loss learns the average reward."""
    ours = aro_ddpg_.recipe(env, config)
    plain = deterministic.deterministic_actor_critic(
        env,
        config.torso,
        ours.act,
        (discounted_loss, aro_ddpg_.actor_loss),
        config.optimizer,
        config.optimizer,
        config.target,
        num_critics=2,
        delay=config.delay,
    )
    return dataclasses.replace(plain, memory=ours.memory)


def on_policy_recipe(env, config):
    """Build undiscounted PPO on rewards less their mean in the rollout."""
    ours = ppo_.recipe(env, config)

    def update(net, batch):
        x = batch.transitions
        centered = dataclasses.replace(x.next_timestep, reward=x.reward - x.reward.mean())
        x = dataclasses.replace(x, next_timestep=centered)
        return ours.update(net, dataclasses.replace(batch, transitions=x))  # type: ignore[reportOptionalCall]

    return dataclasses.replace(ours, update=update)


discounted_ddpg = dataclasses.replace(
    aro_ddpg_.aro_ddpg, name="discounted_ddpg", Config=Discounted, recipe=discounted_recipe
)
average_ppo = dataclasses.replace(ppo_.ppo, name="average_ppo", recipe=on_policy_recipe)

CLAIM = Claim(
    paper=Paper(
        "Off-Policy Average Reward Actor-Critic with Deterministic Policy Search",
        "Saxena, Khastagir, Kolathaya and Bhatnagar",
        2023,
        "2305.12239",
        "In MuJoCo's environments ARO-DDPG reaches a higher average reward than state-of-the-art "
        "on-policy average-reward actor-critics; an optimal policy up to epsilon takes on the "
        "order of epsilon^-2.5 samples.",
    ),
    claim="ARO-DDPG earns more of each step than on-policy average-reward PPO, and no less than "
    "with a tuned discount.",
    left_out="MuJoCo, episodes of 10,000 steps, average-reward TRPO; convergence and the bound on "
    "the number of samples.",
    parts=(
        "jaxrl/algorithms/continuous_control/aro_ddpg.py",
        "jaxrl/algorithms/continuous_control/shared/deterministic.py",
        "jaxrl/algorithms/policy_gradient/ppo.py",
        "jaxrl/losses/values/errors_and_targets.py",
    ),
    metric=Metric("score", 0.0, 200.0),
    environments=(Arena(PENDULUM, 12_800, 0.0, 200.0, name="pendulum"),),
    sides={
        "ARO-DDPG": Side(aro_ddpg_.aro_ddpg, REPLAY, {"rate.learning_rate": RATES}),
        "without the average": Side(aro_ddpg_.aro_ddpg, REPLAY | {"rate.learning_rate": 0.0}),
        "discounted": Side(discounted_ddpg, REPLAY, {"discount": (0.9, 0.97, 0.99)}),
        "average-reward PPO": Side(
            average_ppo,
            ON_POLICY | {"normalization.observation": True},
            {"learning_rate": RATES},
            "The average reward is that of the rollout; values have no constraint on their mean.",
        ),
    },
    clauses=(
        better("ARO-DDPG", "average-reward PPO", 5.0),
        not_worse("ARO-DDPG", "discounted", 5.0),
        better("ARO-DDPG", "without the average", 0.0, of_mechanism=True),
    ),
    seeds=36,
    minutes=8.0,
    notes="Rewards are shifted and scaled to lie between 0 and 1, as in the paper's environments. "
    "The score is the return of 200 steps, that is, 200 times the reward of a step; learning looks "
    "beyond that limit. The discounted side differs in its target alone; without the average, its "
    "rate stays 0. A test (tests/algorithms/continuous_control/test_aro_ddpg.py) holds that the "
    "rate of a loop of two states is its mean reward. The first attempt had 12 seeds.",
    mutations=(
        Mutation(
            "the value after a step is 0",
            "jaxrl.losses:average_reward_target",
            lambda target: lambda reward, rate, after: target(reward, rate, 0 * after),
        ),
        Mutation(
            "rewards have the wrong sign",
            "jaxrl.losses:average_reward_target",
            lambda target: lambda reward, rate, after: target(-reward, -rate, after),
        ),
    ),
)
