"""Behavior cloning (Pomerleau, 1991, "Efficient training of artificial neural networks for
autonomous navigation"): make the actions of a dataset as likely as possible, whatever their reward.

The policy is a categorical distribution of discrete actions, or a normal one whose mean lies within
the bounds and whose standard deviation does not depend on the state.
"""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment, Transition
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, loss
from jaxrl.kit.acting import sample
from jaxrl.kit.groups import Normalization, Optimizer, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of behavior cloning: maximize the likelihood of a dataset's actions."""

    data: Data = Data()
    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the policy."""
    normalization: Normalization = Normalization(observation=True)


@loss("actor")
def actor_loss(net: Net, x: Transition) -> LossOutput:
    """Compute -log pi(a|s) of the data's actions."""
    policy = net.actor(x.timestep)
    error = losses.behavior_cloning(policy.log_prob(x.action))
    return LossOutput(error, {"entropy": policy.entropy()})


def recipe(env: Environment, config: Any) -> Recipe:
    torso = config.torso
    sizes = (env.observation_space, env.action_space, torso.hidden)
    network = Actor(*sizes, torso.activation, torso.initializer)
    return Recipe(
        parts={"actor": Part(network, (example_timestep(env),), config.optimizer)},
        act=sample("actor", env.action_space),
        losses=(actor_loss,),
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, and for an environment beside
    the dataset."""
    check_action_space(env.action_space, name)
    config.data.check_alone(name, "it would only clone itself in an environment")


bc = AlgorithmBuilder("bc", Config, recipe, check=check)

TINY = {"env": "cartpole", "hidden": (8,), "normalization.observation": True} | TINY_DATA
