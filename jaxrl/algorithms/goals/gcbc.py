"""Goal-conditioned behavioral cloning, the simplest method of OGBench (Park et al., 2024, "OGBench:
Benchmarking offline goal-conditioned RL", arXiv:2410.20092).

The data's actions are imitated, as if what was achieved later in the episode had been the goal
(as in Ghosh et al., 2021, "Learning to reach goals via iterated supervised learning").
"""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.goals.shared.conditioned import (
    SMALL,
    GoalConditioned,
    check,
    make_actor,
    make_source,
)
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, loss
from jaxrl.kit.acting import sample


@group
class Config(GoalConditioned):
    """Settings of goal-conditioned behavioral cloning (arXiv:2410.20092)."""


@loss("actor")
def actor_loss(net: Net, x: Transition) -> Array:
    """Imitate the data's actions, given a goal that the episode achieved later."""
    return losses.behavior_cloning(net.actor(x.timestep).log_prob(x.action))


def recipe(env: Environment, config: Config) -> Recipe:
    timestep = example_timestep(env)
    return Recipe(
        parts={"actor": Part(make_actor(env, config), (timestep,), config.optimizer)},
        act=sample("actor", env.action_space),
        losses=(actor_loss,),
    )


gcbc = AlgorithmBuilder("gcbc", Config, recipe, make_source, check=check)

TINY = SMALL
