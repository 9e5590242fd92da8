"""Goal-conditioned implicit Q-learning (Park et al., 2024, "OGBench: Benchmarking offline
goal-conditioned RL", arXiv:2410.20092): IQL whose goals are set in hindsight.

The policy imitates actions by their advantage, or follows the gradient of the value and imitates
(`extraction.method`).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals.shared.conditioned import (
    SMALL,
    Extraction,
    GoalValue,
    GoalValues,
    check_extraction,
    check_values,
    extraction_loss,
    make_actor,
    value_source,
)
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, loss
from jaxrl.kit.acting import sample


@group
class Config(GoalValues):
    """Settings of goal-conditioned implicit Q-learning (arXiv:2410.20092)."""

    extraction: Extraction = Extraction()


@loss("value")
def value_loss(net: Net, x: Transition) -> LossOutput:
    """Regress V on an expectile of the critics' values of the data's actions."""
    q = net.target.critic(x.timestep, x.action).min(0)
    value = net.value(x.timestep)
    return LossOutput(losses.expectile_error(value, q, net.hyper.expectile), {"mean_value": value})


@loss("critic")
def critic_loss(net: Net, x: Transition) -> Array:
    """Regress Q on -1 + discount V(s', g), until the goal is reached."""
    after = net.value(x.next_timestep)
    target = losses.td_target(x.reward, x.terminated, net.hyper.discount, after)
    q = net.critic(x.timestep, x.action)
    return losses.squared_error(q, jnp.broadcast_to(target, q.shape)).sum(0)


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, torso, space = example_timestep(env), config.torso, env.action_space
    action = spaces.example(space)[None]
    sizes: Any = (env.observation_space, torso.hidden, torso.activation)
    actor_loss = extraction_loss(env, config.extraction)

    return Recipe(
        parts={
            "value": Part(GoalValue(*sizes), (timestep,), config.optimizer),
            "critic": Part(
                GoalValue(*sizes, action_space=space),
                (timestep, action),
                config.optimizer,
                config.target,
                members=2,
            ),
            "actor": Part(make_actor(env, config), (timestep,), config.optimizer),
        },
        act=sample("actor", space),
        losses=(value_loss, critic_loss, actor_loss),
        needs=("transitions.extras.actor_goal",),
    )


def check_both(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `check_extraction` and `check_values`."""
    check_extraction(env, config, name)
    check_values(env, config, name)


gciql = AlgorithmBuilder("gciql", Config, recipe, value_source, check=check_both)

TINY = SMALL
