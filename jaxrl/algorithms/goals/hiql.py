"""Hierarchical implicit Q-learning (Park et al., 2023, "HIQL: Offline goal-conditioned RL with
latent states as actions", arXiv:2307.11949), as in OGBench (arXiv:2410.20092) and its code. (There
target values read the representation that learns, and only the layers after it have slow copies;
here the target network includes the representation.)

One value V(s, phi(s, g)), learned without values of actions, extracts two policies. The high one
proposes a subgoal, the representation phi(s, w) of what the state w so many steps later achieves,
weighted by exp((V(w, g) - V(s, g)) / temperature). The low one acts toward a subgoal, weighted by
exp((V(s', w) - V(s, w)) / temperature). So noise in the values of far goals matters less: the high
policy compares states that are far apart, the low one has near goals.
"""

from __future__ import annotations

from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.goals.gcivl import value_loss
from jaxrl.algorithms.goals.shared.conditioned import (
    SMALL,
    GoalValues,
    check_values,
    clone_by_advantage,
    make_actor,
    make_source,
    with_goal,
)
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array, Environment, Source, TimeStep, Transition
from jaxrl.kit import (
    AlgorithmBuilder,
    Loss,
    LossOutput,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import INF
from jaxrl.networks import encoders
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.dense import dense
from jaxrl.networks.distances import state_features
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


@group
class Config(GoalValues):
    """Settings of hierarchical implicit Q-learning (arXiv:2307.11949)."""

    subgoal_steps: int = static(25, low=1)
    """Number of steps between a state and its subgoal."""
    representation: int = static(10, low=1, high=WIDE)
    """Length of the representation of a subgoal."""

    expectile: float = hyper(0.7, above=0, below=1)
    """Expectile of the value over the data's steps: 0.5 is their mean, near 1 their maximum."""
    high_temperature: float = hyper(1 / 3, above=0, high=INF, log=True)
    """Temperature of the high policy's advantage weights, 1 / alpha in OGBench's code."""
    low_temperature: float = hyper(1 / 3, above=0, high=INF, log=True)
    """Temperature of the low policy's advantage weights, 1 / alpha in OGBench's code."""


class _Value(nn.Module):
    widths: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = MLP(self.widths, self.activation, layer_norm=True)(x)
        return dense(1, initializer("lecun", 1.0))(x)[..., 0]


class RepresentedValue(nn.Module):
    """Two values [2, ...] of a time step [...] and the representation of its goal, which both
    share: V(s, phi(s, g)). Representations have the length sqrt(size)."""

    observation_space: Space
    widths: tuple[int, ...]
    activation: str
    size: int

    def setup(self):
        self.torso = MLP(self.widths, self.activation, layer_norm=True)
        self.head = dense(self.size, initializer("lecun", 1.0))
        self.values = self.make_values()

    def make_values(self) -> nn.Module:
        """Make two values of a state and a represented goal, for `setup`."""
        ensemble = nn.vmap(
            _Value,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,  # pyright: ignore[reportArgumentType]
            out_axes=0,
            axis_size=2,
        )
        return ensemble(self.widths, self.activation)

    def __call__(self, timestep: TimeStep) -> Array:
        return self.values(self.state_and_goal(timestep))

    def state_and_goal(self, timestep: TimeStep) -> Array:
        """Return features of the state and the represented goal, as values see them."""
        state = state_features(self.observation_space, timestep)
        return jnp.concatenate([state, self.represent(timestep)], -1)

    def represent(self, timestep: TimeStep) -> Array:
        """Return the representation [..., size] of the goal, as seen from the state."""
        x = encoders.append_goal(state_features(self.observation_space, timestep), timestep)
        return normalize(self.head(self.torso(x)))


def normalize(x: Array) -> Array:
    """Scale vectors [..., D] to the length sqrt(D)."""
    return losses.unit_vector(x) * x.shape[-1] ** 0.5


@loss("low_actor")
def low_loss(net: Net, x: Transition) -> LossOutput:
    """Imitate actions, weighted by the gain in value that they led to under a near goal."""
    here, after = (with_goal(t, x.extras["low_goal"]) for t in (x.timestep, x.next_timestep))
    advantage = (net.value(after) - net.value(here)).mean(0)
    subgoal = jax.lax.stop_gradient(net.value(here, method="represent"))
    policy = net.low_actor(with_goal(x.timestep, subgoal))
    cloned = clone_by_advantage(policy, x.action, advantage, net.hyper.low_temperature)
    return LossOutput(cloned, {"low_advantage": advantage})


class HighValues(Protocol):
    """Values that the high policy is extracted from."""

    def __call__(self, net: Any, timestep: TimeStep, /) -> Array:
        """Return two values [2, B] of time steps [B] and their goals.

        net: the `Net`.
        """
        ...


def recipe(
    env: Environment,
    config: Config,
    *,
    network: type[RepresentedValue] = RepresentedValue,
    learn_values: Loss = value_loss,
    high_values: HighValues = lambda net, timestep: net.value(timestep),
) -> Recipe:
    """Return HIQL's recipe, or that of a variant.

    network: class of the values. learn_values: their loss. high_values: values that the high policy
        is extracted from.
    """
    timestep, torso, goals = example_timestep(env), config.torso, env.goals
    assert goals is not None
    told = with_goal(timestep, jnp.zeros((1, config.representation)))
    value = network(env.observation_space, torso.hidden, torso.activation, config.representation)
    subgoals = Box(-np.inf, np.inf, (config.representation,))
    high: Any = Actor(
        env.observation_space,
        subgoals,
        torso.hidden,
        torso.activation,
        bounded_mean=False,
        deviation="fixed",
    )

    @loss("high_actor")
    def high_loss(net: Net, x: Transition) -> LossOutput:
        """Propose the data's subgoals, weighted by the gain in value that they led to."""
        goal, later = x.extras["high_goal"], x.extras["subgoal"]
        here = with_goal(x.timestep, goal)
        advantage = (high_values(net, with_goal(later, goal)) - high_values(net, here)).mean(0)
        met = with_goal(x.timestep, goals.achieved(later.observation))
        subgoal = jax.lax.stop_gradient(net.value(met, method="represent"))
        cloned = clone_by_advantage(
            net.high_actor(here), subgoal, advantage, net.hyper.high_temperature
        )
        return LossOutput(cloned, {"high_advantage": advantage})

    def act(net: Net, timestep: TimeStep, memory, key, greedy):
        high_key, low_key = jax.random.split(key)
        subgoal = normalize(choose(net.high_actor(timestep), high_key, greedy))
        action = choose(net.low_actor(with_goal(timestep, subgoal)), low_key, greedy)
        return spaces.clip(env.action_space, action), memory, {}

    return Recipe(
        parts={
            "value": Part(value, (timestep,), config.optimizer, config.target),
            "low_actor": Part(make_actor(env, config), (told,), config.optimizer),
            "high_actor": Part(high, (timestep,), config.optimizer),
        },
        act=act,
        losses=(learn_values, low_loss, high_loss),
        needs=tuple(f"transitions.extras.{n}" for n in ("high_goal", "low_goal", "subgoal")),
    )


def source(env: Environment, config: Config) -> Source:
    """Return the data of a run, with goals of values and of both policies."""
    others = {"high_goal": config.actor_goals.shares()}
    return make_source(env, config, config.value_goals.shares(), others, config.subgoal_steps)


hiql = AlgorithmBuilder("hiql", Config, recipe, source, check=check_values)

TINY = SMALL | {"subgoal_steps": 2, "representation": 2}
