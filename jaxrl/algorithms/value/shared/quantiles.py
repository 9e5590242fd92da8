"""Quantiles of the return: targets, regression, and networks that are asked for any fraction."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value.shared.heads import action_outputs
from jaxrl.algorithms.value.shared.q_learning import QLearning, q_network
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Transition
from jaxrl.kit import Net, Part, group, hyper, static
from jaxrl.kit.groups import EpsilonGreedy, Optimizer
from jaxrl.networks.q_network import ImplicitQuantiles

# For agents that predict quantiles with a batch size of 32 (DQN Zoo, Coach, Dopamine).
ADAM = Optimizer(learning_rate=5e-5, eps=0.01 / 32)


@group
class ImplicitQLearning(QLearning):
    """Settings shared by agents that ask a network for quantiles at given fractions."""

    optimizer: Optimizer = ADAM
    """Adam, 5e-5, epsilon 0.01 over the batch size 32: as QR-DQN's, and as in Dopamine's and DQN
    Zoo's IQN and the authors' FQF."""
    exploration: EpsilonGreedy = EpsilonGreedy()
    huber: float = hyper(1.0, above=0)
    """Kappa, the size from which errors count linearly: 1, as in the paper."""
    num_cosines: int = static(64, low=1)
    """Number of cosines that embed a fraction (n of IQN's equation 4): 64, as in DQN Zoo."""


def midpoints(count: int) -> Array:
    """Return the midpoints of `count` equal parts of [0, 1]."""
    return (jnp.arange(count) + 0.5) / count


def quantile_target(x: Transition, discount: Array, quantiles: Array, best: Array) -> Array:
    """Return r + gamma Z(s', best), [B, N].

    quantiles: quantiles Z of all next actions, [B, A, N].
    best: next actions that are followed, [B].
    """
    backup = jax.vmap(losses.td_target, in_axes=(None, None, None, -1), out_axes=-1)
    return backup(x.reward, x.terminated, discount, action_outputs(quantiles, best))


def implicit_quantiles(
    env: Environment, torso: Any, num_cosines: int, *, optimizer: Any, target: Any
) -> Part:
    """Return the implicit quantile network of IQN, with a target network.

    torso, optimizer, target: groups of the settings.
    """
    network = q_network(env, torso, ImplicitQuantiles, num_cosines=num_cosines)
    return Part(network, (example_timestep(env), jnp.zeros((1, 1))), optimizer, target)


def draw_fractions(net: Net, name: str, timestep: TimeStep, shape: tuple[int, ...]) -> Array:
    """Draw uniform numbers [..., *shape] for time steps [...], by the key called `name`."""
    return jax.random.uniform(net.key(name), (*timestep.reward.shape, *shape))


def implicit_quantile_loss(
    net: Net, x: Transition, best: Array, *, num_fractions: int, num_target_fractions: int
) -> Array:
    """Return IQN's loss, [B]: quantile regression over all pairs of predicted and target quantiles.

    best: next actions that the target follows, [B].
    num_fractions, num_target_fractions: number of quantiles predicted, and in the target.

    Source: Dabney, Ostrovski, Silver and Munos, 2018, equation 3.
    """
    following = draw_fractions(net, "evaluate", x.next_timestep, (num_target_fractions,))
    quantiles = net.target.q(x.next_timestep, following)
    goal = quantile_target(x, net.hyper.discount, quantiles, best)
    tau = draw_fractions(net, "predict", x.timestep, (num_fractions,))
    predicted = action_outputs(net.q(x.timestep, tau), x.action)
    return losses.quantile_huber(predicted, tau, goal, net.hyper.huber)
