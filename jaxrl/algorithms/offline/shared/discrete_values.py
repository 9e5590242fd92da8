"""Q-learning of discrete actions from a dataset: settings, network and loss."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.algorithms.value.shared.q_learning import q_network
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.kit import Part, group, hyper
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.groups import ImageTorso, Normalization, Optimizer, Target
from jaxrl.losses.reductions import at_action


@group
class DiscreteValues:
    """Settings shared by algorithms that learn the values of discrete actions from a dataset."""

    data: Data = Data()
    torso: ImageTorso = ImageTorso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of each network."""
    target: Target = Target(rate=0.005)
    normalization: Normalization = Normalization()

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards."""
    huber: float = hyper(1.0, above=0)
    """Size from which errors count linearly."""


def value_part(env: Environment, config: DiscreteValues, target: bool = True) -> Part:
    """Return a network with one output for each action, with a target network if asked."""
    network = q_network(env, config.torso)
    follows = config.target if target else None
    return Part(network, (example_timestep(env),), config.optimizer, follows)


def outputs(part: Any, timestep: TimeStep) -> Array:
    """Return a network's outputs [..., A], those of illegal actions far below all others."""
    return mask_illegal(part(timestep)[..., 0], timestep)


def q_error(net: Any, x: Any, allowed: Array | None = None) -> tuple[Array, Array]:
    """Compute the Huber error [B] of double Q-learning, and Q(s, .), [B, A].

    allowed: bool [B, A], the next actions that may be chosen; None for all.
    """
    q, chooser = outputs(net.q, x.timestep), outputs(net.q, x.next_timestep)
    chooser = chooser if allowed is None else jnp.where(allowed, chooser, -jnp.inf)
    target = losses.double_q_target(
        scaled_reward(net, x),
        x.terminated,
        net.hyper.discount,
        outputs(net.target.q, x.next_timestep),
        chooser,
    )
    return losses.huber(at_action(q, x.action), target, net.hyper.huber), q


# The smallest settings.
TINY = {"env": "cartpole", "hidden": (5, 4), "normalization.observation": True} | TINY_DATA
