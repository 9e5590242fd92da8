"""Noisy networks (Fortunato et al., 2018, arXiv:1706.10295): DQN that explores by noise in its
weights, drawn anew before every action and for every gradient step, whose scale is learned.

Environments that act side by side share the noise of a step. Online and target network have noise
of their own in a gradient step."""

from __future__ import annotations

from jaxrl.algorithms.value import dqn
from jaxrl.algorithms.value.shared.q_learning import QLearning
from jaxrl.kit import group, hyper
from jaxrl.kit.groups import Optimizer


@group
class Config(QLearning):
    """Settings of DQN with noisy networks."""

    optimizer: Optimizer = dqn.RMSPROP
    """DQN's optimizer: centered RMSProp, 2.5e-4, decay 0.95, epsilon 0.01 / 32^2."""
    huber: float = hyper(1.0, above=0)
    """Size from which errors count linearly."""


noisy_dqn = dqn.dqn.variant("noisy_dqn", Config=Config, noisy=True)

TINY = dqn.TINY
