"""Risk-averse DQN with the Itakura-Saito loss (Udovichenko, Croissant, Toleutaeva, Burnaev and
Korotin, 2025, "Risk-averse reinforcement learning with Itakura-Saito loss", arXiv:2505.16925).

Q(s, a) is the certainty equivalent -(1 / alpha) log E exp(-alpha return) of exponential utility,
which has a Bellman equation (EQQ* there) where nothing is discounted. The Itakura-Saito divergence
(IS) learns it from single samples, and depends on values only by their difference from the target.
The paper's experiments are actor-critics; with a discount below 1 alpha would have to change over
time, which it does not here.
"""

from __future__ import annotations

from typing import Protocol

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value import dqn
from jaxrl.algorithms.value.shared.heads import HeadError
from jaxrl.algorithms.value.shared.q_learning import QLearning
from jaxrl.core.types import Array
from jaxrl.kit import group, hyper
from jaxrl.kit.groups import EpsilonGreedy, Optimizer


@group
class Config(QLearning):
    """Settings of DQN with the Itakura-Saito loss."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    exploration: EpsilonGreedy = EpsilonGreedy()
    discount: float = hyper(1.0, low=0, high=1)
    """Discount factor (gamma) per step: 1 in section 2.1."""
    aversion: float = hyper(1.0, above=0)
    """Risk aversion (alpha) per unit of reward; toward 0 the loss is half the squared error."""


class UtilityLoss(Protocol):
    """A loss whose minimizer over samples of the target is their certainty equivalent."""

    def __call__(self, value: Array, target: Array, aversion: Array, /) -> Array:
        """Return the loss [B].

        value: estimated certainty equivalents, [B].
        target: samples of the return, [B].
        aversion: alpha, a scalar.
        """
        ...


def divergence(value: Array, target: Array, aversion: Array) -> Array:
    """Return the Itakura-Saito divergence (equation IS), a `UtilityLoss`."""
    return losses.itakura_saito(value, target, aversion) / jnp.square(aversion)


def utility_error(loss: UtilityLoss) -> HeadError:
    """Return the error of a certainty equivalent by `loss`, with the absolute difference from the
    target as the priority."""

    def error(net, outputs, target):
        q = outputs[..., 0]
        return loss(q, target, net.hyper.aversion), jnp.abs(q - target)

    return error


itakura_saito_dqn = dqn.dqn.variant(
    "itakura_saito_dqn", Config=Config, error=utility_error(divergence)
)

TINY = dqn.TINY
