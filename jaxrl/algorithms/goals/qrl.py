"""Quasimetric RL (Wang et al., 2023, "Optimal Goal-Reaching Reinforcement Learning via Quasimetric
Learning", arXiv:2304.01203): distances to goals as an embedding that satisfies the triangle
inequality, spread as far apart as steps of cost 1 allow.

    minimize mean softplus(offset - d(s, g))   with   mean max(0, d(s, s') - 1)^2 <= epsilon^2

for states s and goals g drawn independently and steps s, s' of the data. A path of k steps bounds
the distance of its ends by k, since one network embeds states and goals: it reads what a state
achieves, as goals do. (Where an observation says more than that, such as a velocity, distances
average over it.) The dual variable is a part that shares the distance's loss.

The policy imitates actions, weighted by exp((d(s, g) - d(s', g)) / temperature), as in OGBench
(arXiv:2410.20092) for any kind of action. With continuous actions it can follow the distance
instead, as the authors do (`extraction.method`): a model learns how an action moves the embedding,
by the distances between its prediction and the embedding of s', there and back, and the policy
minimizes the predicted embedding's distance to the goal, and imitates.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals.shared.conditioned import (
    SMALL,
    Extraction,
    GoalConditioned,
    approach_loss,
    check_extraction,
    follow_value,
    make_actor,
    make_source,
    own_action,
    with_goal,
)
from jaxrl.algorithms.goals.shared.data import GoalShares
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Environment, Source, Transition, Tree
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
from jaxrl.kit.acting import sample
from jaxrl.kit.groups import Optimizer
from jaxrl.networks.dense import dense
from jaxrl.networks.distances import HEADS, Distance
from jaxrl.networks.encoders import action_features
from jaxrl.networks.initializers import initializer
from jaxrl.networks.scalars import Positive, Softplus
from jaxrl.networks.torsos import MLP


@group
class Config(GoalConditioned):
    """Settings of quasimetric RL (arXiv:2304.01203)."""

    value_goals: GoalShares = GoalShares(elsewhere=1.0)
    """Goals that states are pushed apart from."""
    extraction: Extraction = Extraction(cloning=0.003)
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
    log_multiplier: bool = False
    """Learn the logarithm of the dual variable, as OGBench's code does; otherwise the inverse of
    its softplus, as the authors' does."""

    tolerance: float = hyper(0.25, low=0)
    """Epsilon, the root of the mean squared excess of a step's length over 1 that is allowed."""
    offset: float = hyper(15.0, low=0)
    """Distance at which the push ends, beyond most distances; 500 in OGBench's code."""
    sharpness: float = hyper(0.1, above=0)
    """Sharpness of the push's end, per step; 0.01 in OGBench's code."""


class Dynamics(nn.Module):
    """The embedding [..., size] that follows an embedding and an action."""

    action_space: Space
    widths: tuple[int, ...]
    activation: str
    size: int

    @nn.compact
    def __call__(self, embedding: Array, action: Tree) -> Array:
        x = jnp.concatenate([embedding, action_features(self.action_space, action)], -1)
        x = MLP(self.widths, self.activation, layer_norm=True)(x)
        return embedding + dense(self.size, initializer("lecun", 1.0))(x)


def push_loss(env: Environment, *, learn_dynamics: bool) -> Loss:
    """Return the loss of the distance and its multiplier, and of the dynamics if these are
    learned."""
    goals = env.goals
    assert goals is not None

    @loss("distance", "multiplier", *(["dynamics"] if learn_dynamics else []), name="distance_loss")
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
        metrics = {"step": step, "distance": far, "multiplier": held}
        if not learn_dynamics:
            return LossOutput(push + local, metrics)
        here, after = (net.distance(place, method="embed") for place in (here, after))
        found = net.dynamics(here, x.action)
        between = lambda a, b: net.distance(a, b, method="between")
        miss = (between(found, after) + between(after, found)) / 2
        return LossOutput(push + local + miss, metrics | {"dynamics_error": miss})

    return distance_loss


def following_loss(env: Environment, extraction: Extraction) -> Loss:
    """Return the loss of a policy that follows the distance through the dynamics, and imitates."""
    goals = env.goals
    assert goals is not None

    @loss("actor")
    def actor_loss(net: Net, x: Transition) -> LossOutput:
        """Follow the distance from where an action leads, and imitate."""
        goal, here = x.extras["actor_goal"], goals.achieved(x.observation)
        policy = net.actor(with_goal(x.timestep, goal))
        here, goal = (net.distance(place, method="embed") for place in (here, goal))
        after = net.dynamics(here, own_action(env, policy))
        value = -net.distance(after, goal, method="between")
        cloning = net.hyper[extraction].cloning
        return LossOutput(follow_value(policy, x.action, value, cloning), {"actor_value": value})

    return actor_loss


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, torso, space = example_timestep(env), config.torso, env.action_space
    size = config.components * config.size
    distance = Distance(config.head, torso.hidden, torso.activation, config.components, config.size)
    follow = config.extraction.method == "ddpg_bc"
    dynamics = {}
    if follow:
        embedding, action = jnp.zeros((1, size)), spaces.example(space)[None]
        network = Dynamics(space, torso.hidden, torso.activation, size)
        dynamics = {"dynamics": Part(network, (embedding, action), config.optimizer)}

    multiplier = Positive if config.log_multiplier else Softplus
    inputs: Any = (timestep.goal, timestep.goal)
    return Recipe(
        parts={
            "distance": Part(distance, inputs, config.optimizer),
            "multiplier": Part(multiplier(config.multiplier_init), (), config.multiplier),
            **dynamics,
            "actor": Part(make_actor(env, config), (timestep,), config.optimizer),
        },
        act=sample("actor", space),
        losses=(
            push_loss(env, learn_dynamics=follow),
            following_loss(env, config.extraction)
            if follow
            else approach_loss(env, config.extraction),
        ),
        needs=("transitions.extras.actor_goal",),
    )


def source(env: Environment, config: Config) -> Source:
    """Return the data of a run, with independent goals and those of the policy."""
    others = {"actor_goal": config.actor_goals.shares()}
    return make_source(env, config, config.value_goals.shares(), others)


qrl = AlgorithmBuilder("qrl", Config, recipe, source, check=check_extraction)

TINY = SMALL | {"components": 2, "size": 2}
