"""Option-aware temporally abstracted value learning (OTA; Ahn, Choi, Han and Moon, 2025,
"Option-aware temporally abstracted value for offline goal-conditioned reinforcement learning",
arXiv:2505.12737): HIQL whose high policy learns from a value of its own, in which one step is an
option of several steps, so that a far goal is near.

    V_high(s, g)  toward  0 where the option reaches g, else -1 + discount V_high(s', g)

s' is the state where the option ends: so many steps later, at the goal where that is later in the
episode, or at the episode's end. The discount is per option. The low policy learns from HIQL's
value of single steps, V_low; both values share the representation of goals, and one gradient step.
The target and the choice of goals are those of the published code (its `HGCDataset`). Goals that
HIQL draws from the state itself are those achieved at the option's end. A state counts as having
reached a goal where the environment says so, also within an option; in the published code it must
be the same row of the data, at the option's end.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals import gcivl
from jaxrl.algorithms.goals.hiql import Config as HIQLConfig
from jaxrl.algorithms.goals.hiql import RepresentedValue, hiql
from jaxrl.algorithms.goals.shared.conditioned import SMALL, make_source, with_goal
from jaxrl.algorithms.goals.shared.data import GoalShares
from jaxrl.core.types import Array, Environment, Source, TimeStep, Transition
from jaxrl.kit import LossOutput, Net, Recipe, group, loss, static
from jaxrl.kit.composing import plus


@group
class Config(HIQLConfig):
    """Settings of option-aware temporally abstracted value learning (arXiv:2505.12737)."""

    value_goals: GoalShares = GoalShares(elsewhere=0.5, geometric=True)
    """Goals that both values are learned for."""
    actor_goals: GoalShares = GoalShares(elsewhere=0.5)
    """Goals that the policies learn to reach."""
    option_steps: int = static(5, low=1)
    """Number of steps of an option in the value that the high policy learns from."""


class TwoLevelValue(RepresentedValue):
    """HIQL's two values of single steps, and (`high`) two more of options, both [2, ...]."""

    def setup(self):
        super().setup()
        self.high_values = self.make_values()

    def __call__(self, timestep: TimeStep) -> Array:
        if self.is_initializing():
            self.high(timestep)
        return super().__call__(timestep)

    def high(self, timestep: TimeStep) -> Array:
        """Return two values [2, ...] of a time step and its goal, counted in options."""
        return self.high_values(self.state_and_goal(timestep))


def high_values(net: Any, timestep: TimeStep) -> Array:
    """Return the values [2, B] that are counted in options."""
    return net.value(timestep, method="high")


@loss("value", name="high_value_loss")
def high_value_loss(net: Net, x: Transition) -> LossOutput:
    """Regress the values of options by expectiles on those of the target networks where the option
    ends, or on 0 where it reaches the goal."""
    h, goal, reached = net.hyper, x.extras["option_goal"], x.extras["option_reached"]
    here, later = with_goal(x.timestep, goal), with_goal(x.extras["option"], goal)
    value, old = high_values(net, here), high_values(net.target, here)
    following = high_values(net.target, later)
    target = losses.goal_target(reached, following, h.discount)
    least = losses.goal_target(reached, following.min(0), h.discount)
    advantage = jnp.broadcast_to(least - old.mean(0), value.shape)
    error = losses.action_free_expectile(value, target, advantage, h.expectile).sum(0)
    return LossOutput(error, {"mean_high_value": value.mean(0), "option_reached": reached})


def recipe(env: Environment, config: Config) -> Recipe:
    plain = hiql.recipe(
        env,
        config,
        network=TwoLevelValue,
        learn_values=plus(gcivl.value_loss, high_value_loss),
        high_values=high_values,
    )
    extras = ("option", "option_goal", "option_reached")
    return dataclasses.replace(
        plain, needs=(*plain.needs, *(f"transitions.extras.{name}" for name in extras))
    )


def source(env: Environment, config: Config) -> Source:
    """Return the data of a run, with goals of both values and both policies, and options."""
    own = config.value_goals.shares()
    others = {"high_goal": config.actor_goals.shares(), "option_goal": own}
    return make_source(env, config, own, others, config.subgoal_steps, config.option_steps)


ota = hiql.variant("ota", Config=Config, recipe=recipe, source=source)

TINY = SMALL | {
    "subgoal_steps": 3,
    "option_steps": 2,
    "representation": 2,
    "value_goals.here": 0.25,
}
