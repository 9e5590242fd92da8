"""Munchausen DQN (Vieillard, Pietquin and Geist, 2020, "Munchausen reinforcement learning",
arXiv:2007.14430): soft DQN whose reward grows where its own policy already finds the action
likely."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.value import dqn
from jaxrl.algorithms.value.shared.heads import legal_values
from jaxrl.core.types import Array, Transition
from jaxrl.kit import Net, group, hyper
from jaxrl.kit.groups import Optimizer


@group
class Config(dqn.Config):
    """Settings of Munchausen DQN."""

    optimizer: Optimizer = Optimizer(learning_rate=5e-5, eps=0.01 / 32)
    """Adam, 5e-5, epsilon 0.01 / 32: Vieillard et al., appendix B, and the authors' code."""
    temperature: float = hyper(0.03, above=0, log=True)
    """Temperature (tau) of the entropy and of the policy that the target network's values
    define."""
    weight: float = hyper(0.9, low=0, high=1)
    """Weight (alpha) of the log-probability in the reward."""
    lowest: float = hyper(-1.0, high=0)
    """Lower bound of tau times the log-probability."""


def munchausen_target(
    net: Net, x: Transition, *, discount: Array, evaluated: Array, selector: Array
) -> Array:
    """Return the target of equation 1, [B], with the lower bound of section 3; the target network
    values both states."""
    q = legal_values(net.target.q(x.timestep), x.timestep)
    following, h = legal_values(evaluated, x.next_timestep), net.hyper
    return losses.munchausen_target(
        x.reward, x.terminated, discount, q, x.action, following, h.temperature, h.weight, h.lowest
    )


munchausen_dqn = dqn.dqn.variant("munchausen_dqn", Config=Config, target=munchausen_target)

TINY = dqn.TINY
