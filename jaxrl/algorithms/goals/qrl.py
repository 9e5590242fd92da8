"""Quasimetric RL (Wang et al., 2023, "Optimal Goal-Reaching Reinforcement Learning via Quasimetric
Learning", arXiv:2304.01203): distances to goals as an embedding that satisfies the triangle
inequality, spread as far apart as steps of cost 1 allow.

    minimize mean softplus(offset - d(s, g))   with   mean max(0, d(s, s') - 1)^2 <= epsilon^2

for states s and goals g drawn independently and steps s, s' of the data. A path of k steps bounds
the distance of its ends by k, since one network embeds states and goals: it reads what a state
achieves, as goals do. (Where an observation says more than that, such as a velocity, distances
average over it.) The dual variable is a part that shares the distance's loss.

The policy imitates actions, weighted by exp((d(s, g) - d(s', g)) / temperature), as in OGBench
(arXiv:2410.20092) for any kind of action. The authors follow the distance through a learned model
of the embedding instead, with continuous actions.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals.shared.conditioned import (
    SMALL,
    GoalConditioned,
    approach_loss,
    check,
    make_actor,
    make_source,
)
from jaxrl.algorithms.goals.shared.data import GoalShares
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Environment, Source, Transition
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import sample
from jaxrl.kit.groups import INF, Optimizer
from jaxrl.networks.distances import HEADS, Distance
from jaxrl.networks.scalars import Softplus


@group
class Config(GoalConditioned):
    """Settings of quasimetric RL (arXiv:2304.01203)."""

    value_goals: GoalShares = GoalShares(elsewhere=1.0)
    """Goals that states are pushed apart from."""
    multiplier: Optimizer = Optimizer(learning_rate=0.01)
    """Optimizer settings of the dual variable. Adam, 0.01: authors' code."""
    head: str = static("iqe", choices=HEADS)
    """Head of the distance: iqe, mrn or pqe, which are quasimetrics, or euclidean."""
    components: int = static(64, low=1, high=WIDE)
    """Number of components of the embedding."""
    size: int = static(8, low=1, high=WIDE)
    """Length of each component of the embedding."""
    multiplier_init: float = static(0.01, above=0)
    """Initial value of the dual variable."""

    tolerance: float = hyper(0.25, low=0)
    """Epsilon, the root of the mean squared excess of a step's length over 1 that is allowed."""
    offset: float = hyper(15.0, low=0)
    """Distance at which the push ends, beyond most distances; 500 in OGBench's code."""
    sharpness: float = hyper(0.1, above=0)
    """Sharpness of the push's end, per step; 0.01 in OGBench's code."""
    temperature: float = hyper(1 / 3, above=0, high=INF, log=True)
    """Temperature of the advantage weights, 1 / alpha in OGBench's code (alpha 3)."""


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, torso, goals = example_timestep(env), config.torso, env.goals
    assert goals is not None
    distance = Distance(config.head, torso.hidden, torso.activation, config.components, config.size)

    @loss("distance", "multiplier")
    def distance_loss(net: Net, x: Transition) -> LossOutput:
        """Push states and independent goals apart, while steps are no longer than 1."""
        h = net.hyper
        here, after = goals.achieved(x.observation), goals.achieved(x.next_observation)
        far = net.distance(here, x.timestep.goal)
        step = net.distance(here, after)
        push = losses.quasimetric_push(far, h.offset, h.sharpness)
        multiplier = net.multiplier()
        local = losses.quasimetric_constraint(step, 1.0, multiplier, h.tolerance)
        held = jnp.broadcast_to(multiplier, step.shape)
        return LossOutput(push + local, {"step": step, "distance": far, "multiplier": held})

    inputs: Any = (timestep.goal, timestep.goal)
    return Recipe(
        parts={
            "distance": Part(distance, inputs, config.optimizer),
            "multiplier": Part(Softplus(config.multiplier_init), (), config.multiplier),
            "actor": Part(make_actor(env, config), (timestep,), config.optimizer),
        },
        act=sample("actor", env.action_space),
        losses=(distance_loss, approach_loss(env)),
        needs=("transitions.extras.actor_goal",),
    )


def source(env: Environment, config: Config) -> Source:
    """Return the data of a run, with independent goals and those of the policy."""
    others = {"actor_goal": config.actor_goals.shares()}
    return make_source(env, config, config.value_goals.shares(), others)


qrl = AlgorithmBuilder("qrl", Config, recipe, source, check=check)

TINY = SMALL | {"components": 2, "size": 2}
