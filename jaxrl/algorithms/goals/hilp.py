"""Hilbert foundation policies (Park et al., 2024, "Foundation Policies with Hilbert
Representations", arXiv:2402.15567): a latent space in which distances are steps between states,
learned from data without rewards, and a policy that moves in any direction of it.

Values of goals are -|phi(s) - phi(g)|, learned as in HIQL by expectile regression on goals in
hindsight. The latents read what a state achieves, as goals do. A random direction z of the latent
space then takes the place of the goal: IQL learns, from the rewards <phi(s') - phi(s), z>, to move
along it. A goal is reached by z = (phi(g) - phi(s)) / |phi(g) - phi(s)|, without further training.

Losses and defaults are those of the authors' code (goal-conditioned RL), which descends all losses
at once, by one optimizer; here the latents take their step first, and give the rewards after it.
The policy's deviation is constant (learned there), as in OGBench.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals.shared.conditioned import (
    SMALL,
    GoalConditioned,
    GoalValue,
    check_values,
    implicit_value_loss,
    make_actor,
    make_source,
    with_goal,
)
from jaxrl.algorithms.goals.shared.data import GoalShares
from jaxrl.algorithms.offline import iql
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Batch, Environment, Source, TimeStep, Transition
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import INF, Target
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.distances import Distance


@group
class Config(GoalConditioned):
    """Settings of Hilbert foundation policies (arXiv:2402.15567)."""

    value_goals: GoalShares = GoalShares(elsewhere=0.375, geometric=True)
    """Goals that the representation is learned for."""
    target: Target = Target(rate=0.005)
    latent: int = static(32, low=1, high=WIDE)
    """Dimensions of the latent space."""

    goal_expectile: float = hyper(0.95, above=0, below=1)
    """Expectile of the values of goals."""
    expectile: float = hyper(0.9, above=0, below=1)
    """Expectile of the values of directions."""
    temperature: float = hyper(0.1, above=0, high=INF, log=True)
    """Temperature of the advantage weights."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on the rewards of directions."""


def toward(net: Net, here: Array, goal: Array) -> Array:
    """Return the direction [B, D] from what a state achieves to a goal, by the first member."""
    embed = lambda x: net.latent(x, method="embed")[0]
    return losses.goal_direction(embed(here), embed(goal))


def in_direction(net: Net, x: Transition, here: Array, after: Array, z: Array) -> Transition:
    """Return transitions whose goal is the direction z [B, D], and whose reward is the progress
    along it, without an end."""
    embed = lambda x: net.latent(x, method="embed")[0]
    reward = losses.direction_reward(embed(here), embed(after), z)
    following = with_goal(x.next_timestep, z)
    following = dataclasses.replace(
        following, reward=reward, terminated=jnp.zeros_like(x.terminated)
    )
    return dataclasses.replace(x, timestep=with_goal(x.timestep, z), next_timestep=following)


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, torso, goals = example_timestep(env), config.torso, env.goals
    assert goals is not None
    action = spaces.example(env.action_space)[None]
    told = with_goal(timestep, jnp.zeros((1, config.latent)))
    sizes: Any = (env.observation_space, torso.hidden, torso.activation)
    latent = Distance("euclidean", torso.hidden, torso.activation, 1, config.latent)

    @loss("latent")
    def latent_loss(net: Net, x: Transition) -> LossOutput:
        """Regress -|phi(s) - phi(g)| by expectiles on the next values of the target networks."""
        h, goal = net.hyper, x.timestep.goal
        here, after = goals.achieved(x.observation), goals.achieved(x.next_observation)
        value = -net.latent(here, goal)
        old, following = -net.target.latent(here, goal), -net.target.latent(after, goal)
        error = implicit_value_loss(value, old, following, x, h.discount, h.goal_expectile)
        return LossOutput(error, {"distance": -value.mean(0)})

    def act(net: Net, timestep: TimeStep, memory, key, greedy):
        z = toward(net, goals.achieved(timestep.observation), timestep.goal)
        action = choose(net.actor(with_goal(timestep, z)), key, greedy)
        return spaces.clip(env.action_space, action), memory, {}

    def update(net: Net, batch: Batch) -> Net:
        net = net.descend(latent_loss, batch)
        x = batch.transitions
        z = jax.random.normal(net.key("direction"), (len(x.reward), config.latent))
        here, after = goals.achieved(x.observation), goals.achieved(x.next_observation)
        x = in_direction(net, x, here, after, losses.unit_vector(z))
        for each in (iql.value_loss, iql.critic_loss, iql.actor_loss):
            net = net.descend(each, x)
        return net.update_targets()

    critics = ActionValues(
        env.observation_space,
        env.action_space,
        torso.hidden,
        2,
        torso.activation,
        layer_norm=True,
    )
    inputs: Any = (timestep.goal, timestep.goal)
    return Recipe(
        parts={
            "latent": Part(latent, inputs, config.optimizer, config.target, members=2),
            "value": Part(GoalValue(*sizes), (told,), config.optimizer),
            "critic": Part(critics, (told, action), config.optimizer, config.target),
            "actor": Part(make_actor(env, config), (told,), config.optimizer),
        },
        act=act,
        losses=(latent_loss, iql.value_loss, iql.critic_loss, iql.actor_loss),
        update=update,
    )


def source(env: Environment, config: Config) -> Source:
    """Return the data of a run, with goals for the representation."""
    return make_source(env, config, config.value_goals.shares())


hilp = AlgorithmBuilder("hilp", Config, recipe, source, check=check_values)

TINY = SMALL | {"latent": 2}
