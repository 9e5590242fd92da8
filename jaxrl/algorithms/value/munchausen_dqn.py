"""Munchausen DQN (Vieillard, Pietquin and Geist, 2020, "Munchausen reinforcement learning",
arXiv:2007.14430): soft DQN whose reward grows where its own policy already finds the action
likely."""

from __future__ import annotations

import dataclasses

from jaxrl import losses
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.algorithms.value.shared.heads import MEAN
from jaxrl.core.types import Array, Transition
from jaxrl.kit import Net, group, hyper
from jaxrl.kit.groups import Optimizer


@group
class Config(dqn_.Config):
    """Settings of Munchausen DQN."""

    optimizer: Optimizer = Optimizer(learning_rate=5e-5, eps=0.01 / 32)
    """Adam, 5e-5, epsilon 0.01 / 32: Vieillard et al., appendix B, and the authors' code."""
    temperature: float = hyper(0.03, above=0)
    """Tau, of the entropy and of the policy that the copy's values make."""
    weight: float = hyper(0.9, low=0, high=1)
    """Alpha, of the log-probability in the reward."""
    lowest: float = hyper(-1.0, high=0)
    """What tau times the log-probability is cut at."""


def target(net: Net, x: Transition, discount: Array, evaluated: Array, selector: Array) -> Array:
    """Equation 1, with the cut of section 3; both states are valued by the copy."""
    q = MEAN.values(net, net.target.q(x.timestep), x.timestep)
    following, h = MEAN.values(net, evaluated, x.next_timestep), net.hyper
    return losses.munchausen_target(
        x.reward, x.terminated, discount, q, x.action, following, h.temperature, h.weight, h.lowest
    )


HEAD = dataclasses.replace(MEAN, target=target)

munchausen_dqn = dataclasses.replace(
    dqn_.dqn,
    name="munchausen_dqn",
    Config=Config,
    recipe=lambda env, config: dqn_.recipe(env, config, head=HEAD),
)

TINY = dqn_.TINY
