"""Goal-conditioned implicit V-learning (Park et al., 2024, "OGBench: Benchmarking offline
goal-conditioned RL", arXiv:2410.20092), the value learning of HIQL with a flat policy.

Only values of states are learned, by expectile regression on -1 + discount V(s', g), which is
optimistic where the dynamics are random. The policy imitates actions, weighted by
exp((V(s', g) - V(s, g)) / temperature).
"""

from __future__ import annotations

from jaxrl.algorithms.goals.shared.conditioned import (
    SMALL,
    GoalValue,
    GoalValues,
    check_values,
    clone_by_advantage,
    implicit_value_loss,
    make_actor,
    value_source,
    with_goal,
)
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment, Transition
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss
from jaxrl.kit.acting import sample
from jaxrl.kit.groups import INF


@group
class Config(GoalValues):
    """Settings of goal-conditioned implicit V-learning (arXiv:2410.20092)."""

    temperature: float = hyper(0.1, above=0, high=INF, log=True)
    """Temperature of the advantage weights, 1 / alpha in OGBench's code (alpha 10)."""


@loss("value")
def value_loss(net: Net, x: Transition) -> LossOutput:
    """Regress the values by expectiles on the next values of the target networks."""
    value = net.value(x.timestep)
    old, after = net.target.value(x.timestep), net.target.value(x.next_timestep)
    h = net.hyper
    error = implicit_value_loss(value, old, after, x, h.discount, h.expectile)
    return LossOutput(error, {"mean_value": value.mean(0)})


@loss("actor")
def actor_loss(net: Net, x: Transition) -> LossOutput:
    """Imitate actions, weighted by the gain in value that they led to."""
    here, after = (with_goal(t, x.extras["actor_goal"]) for t in (x.timestep, x.next_timestep))
    advantage = (net.value(after) - net.value(here)).mean(0)
    loss = clone_by_advantage(net.actor(here), x.action, advantage, net.hyper.temperature)
    return LossOutput(loss, {"advantage": advantage})


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, torso = example_timestep(env), config.torso
    value = GoalValue(env.observation_space, torso.hidden, torso.activation)
    return Recipe(
        parts={
            "value": Part(value, (timestep,), config.optimizer, config.target, members=2),
            "actor": Part(make_actor(env, config), (timestep,), config.optimizer),
        },
        act=sample("actor", env.action_space),
        losses=(value_loss, actor_loss),
        needs=("transitions.extras.actor_goal",),
    )


gcivl = AlgorithmBuilder("gcivl", Config, recipe, value_source, check=check_values)

TINY = SMALL
