"""HRA against DQN: a head for each place of a fruit instead of one value of all fruits."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from experiments.evidence.declare import Arena, Claim, Metric, Mutation, Paper, Side, better
from jaxrl import losses
from jaxrl.algorithms.value import hra as hra_
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.algorithms.value.shared.heads import Head
from jaxrl.algorithms.value.shared.q_learning import q_learning_recipe
from jaxrl.core.types import Environment
from jaxrl.envs.grids.fruit_collection import fruit_collection
from jaxrl.envs.wrappers.time_limit import time_limit
from jaxrl.kit import Recipe
from jaxrl.networks.q_network import QNetwork
from jaxrl.networks.torsos import activation

LIMIT = 50  # steps of an episode
GRID = {"discount": (0.7, 0.85, 0.95)}
SETTINGS: dict[str, Any] = {"hidden": (250,), "optimizer.name": "adam", "optimizer.eps": 1e-8}
SETTINGS |= {"optimizer.learning_rate": 1e-3, "period": 100, "batch_size": 32, "warmup": 1024}
SETTINGS |= {"exploration.end": 1.0}  # as in the authors' code


def short_room() -> Environment:
    """Return fruit collection in which an episode ends after `LIMIT` steps."""
    return time_limit(fruit_collection(), LIMIT)


class OwnUnits(QNetwork):
    """Q-network in which each output has an equal part of the last hidden layer to itself."""

    def _outputs(self, x):
        units = self.widths[-1] // self.num_outputs
        hidden = activation(self.activation)(nn.DenseGeneral((self.num_outputs, units))(x))
        shape = self.num_outputs, units, self.num_actions
        scale = nn.initializers.lecun_normal(in_axis=-2, out_axis=-1, batch_axis=0)
        bias = self.param("bias", nn.initializers.zeros, (self.num_actions, self.num_outputs))
        return jnp.einsum("...ku,kua->...ak", hidden, self.param("kernel", scale, shape)) + bias


def with_own_units(env: Environment, config: Any, head: Head) -> Recipe:
    """Return a recipe of Q-learning with HRA's network."""
    found = q_learning_recipe(
        env,
        config.torso,
        head,
        optimizer=config.optimizer,
        target=config.target,
        exploration=config.exploration,
    )
    part = found.parts["q"]
    given: Any = part.network
    network = OwnUnits(
        given.observation_space,
        given.num_actions,
        num_outputs=given.num_outputs,
        widths=given.widths,
        activation=given.activation,
    )
    return dataclasses.replace(found, parts={"q": dataclasses.replace(part, network=network)})


def hra_recipe(env: Environment, config: Any) -> Recipe:
    """Return the recipe of HRA: each head learns the values of its component of the reward."""
    weights = (1.0,) * hra_.num_components(env)
    return with_own_units(env, config, hra_.head(weights, config.valued))


def one_value_recipe(env: Environment, config: Any) -> Recipe:
    """Return the recipe of the paper's DQN: the sum of HRA's heads learns the whole reward."""

    def target(net, x, *, discount, evaluated, selector):
        return losses.q_learning_target(x.reward, x.terminated, discount, evaluated.sum(-1))

    def error(net, outputs, target):
        q = outputs.sum(-1)
        return losses.huber(q, target, net.hyper.huber), jnp.abs(q - target)

    values = lambda net, outputs, timestep: outputs.sum(-1)
    return with_own_units(env, config, Head(hra_.num_components(env), values, target, error))


CLAIM = Claim(
    paper=Paper(
        "Hybrid Reward Architecture for Reinforcement Learning",
        "van Seijen, Fatemi, Romoff, Laroche, Barnes and Tsang",
        2017,
        "1706.04208",
        "In fruit collection HRA learns faster than DQN with a network of the same size, and still "
        "faster with domain knowledge; in Ms. Pac-Man it exceeds human performance.",
    ),
    claim="In fruit collection of 50 steps, HRA gathers more fruits while it learns than DQN, and "
    "than its own network with one value of all fruits.",
    left_out="Ms. Pac-Man; domain knowledge (features and terminal states of single heads, general "
    "value functions); the tabular variants; heads that learn the values of random play, as in the "
    "authors' code; 5,000 episodes of up to 300 steps.",
    parts=(
        "jaxrl/algorithms/value/hra.py",
        "jaxrl/algorithms/value/dqn.py",
        "jaxrl/algorithms/value/shared/q_learning.py",
        "jaxrl/algorithms/value/shared/heads.py",
        "jaxrl/losses/values/reward_channels.py",
        "jaxrl/envs/grids/fruit_collection.py",
    ),
    metric=Metric(
        "score",
        0.0,
        5.0,
        meaning="the mean number of fruits, of 5, that the greedy policy gathers in an episode, "
        "averaged over five points of training",
    ),
    environments=(
        Arena(f"{__name__}:{short_room.__name__}", 41_984, 0.0, 5.0, name="fruit collection"),
    ),
    sides={
        "HRA": Side(
            hra_.hra.variant("hra", recipe=hra_recipe),
            SETTINGS | {"valued": "greedy"},
            GRID,
            "Each head has 25 hidden units of its own, as in the authors' code (the paper's share "
            "a layer of 250), learns the values of its own best actions, and minimizes Huber's "
            "error by Adam.",
        ),
        "DQN": Side(dqn, SETTINGS, GRID, "Its optimizer is Adam, as HRA's."),
        "one value": Side(
            hra_.hra.variant("one_value", recipe=one_value_recipe),
            SETTINGS,
            GRID,
            "It is the paper's DQN, which has HRA's network.",
        ),
    },
    clauses=(better("HRA", "DQN"), better("HRA", "one value")),
    shared="The ten places at which a fruit may be.",
    seeds=32,
    minutes=10.0,
    notes="There is a head for each of the ten places of a fruit. All sides act at random while "
    "they learn, as in the authors' code. With episodes of 50 steps random play gathers 1.0 of 5 "
    "fruits and going to the nearest one all 5, in 21 steps (256 episodes each; random play with "
    "30, 40 and 100 steps: 0.7, 0.9 and 1.6). The discount is tuned, since the authors' differ: "
    "0.99 for HRA, 0.85 for DQN. An earlier design had 300 steps, in which random play gathers "
    "3.4, more than any side over training, heads that share their hidden units and values of "
    "random play; it claimed that HRA is better than DQN by 0.25, which did not hold (a pilot "
    "before it, in which exploration decayed, had 3.2 to 3.6 fruits for DQN and 2.4 to 2.7 for "
    "HRA). A pilot with two seeds and other heads chose this one; fruits over training, in "
    "brackets at the end, with discounts of 0.85 and 0.95: DQN 2.76, 3.04 (3.88, 4.00) and 2.79, "
    "2.99 (3.75, 4.31); HRA 3.20, 2.90 (4.56, 4.00) and 1.60, 1.11 (3.00, 1.88); one value 2.82, "
    "2.98 (3.62, 4.06) and 2.98, 3.11 (4.25, 3.94); HRA with shared units 2.85, 2.59 (4.00, 4.44) "
    "and 1.45, 1.19 (2.94, 2.12); with values of random play and discounts of 0.95 and 0.99: HRA "
    "2.42, 2.65 (3.38, 4.06) and 2.81, 2.91 (3.69, 4.31), with shared units 2.24, 2.23 (3.44, "
    "3.38) and 2.60, 2.30 (3.69, 3.69). Before learning, all gathered 0.06 to 0.25.",
    diagnosis="In the earlier design DQN gathered 0.6 and 0.9 fruits more over training than HRA "
    "in two attempts, and the division of the reward was worth 0.18 (0.04 to 0.32) and 0.05 "
    "(-0.15 to 0.25). A guess then, that heads need hidden units of their own, is what this "
    "design follows.",
    mutations=(
        Mutation(
            "every head learns the same share of the whole reward",
            "jaxrl.losses:hybrid_reward_target",
            lambda target: (
                lambda reward, *rest: target(
                    jnp.broadcast_to(reward.mean(-1, keepdims=True), reward.shape), *rest
                )
            ),
        ),
        Mutation(
            "the value after a step is 0",
            "jaxrl.losses:hybrid_reward_target",
            lambda target: (
                lambda reward, terminated, discount, *rest: target(
                    reward, terminated, 0 * discount, *rest
                )
            ),
        ),
    ),
)
