"""Munchausen DQN (Vieillard, Pietquin and Geist, 2020, "Munchausen reinforcement learning",
arXiv:2007.14430): soft DQN whose reward grows where its own policy already finds the action
likely."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl import losses
from jaxrl.core.hyper import hyper
from jaxrl.core.settings import group
from jaxrl.core.types import Environment
from jaxrl.kit.groups import EpsilonGreedy, ImageTorso, Optimizer, Replay, Target
from jaxrl.kit.recipe import Recipe
from jaxrl.systems.value import dqn as dqn_
from jaxrl.systems.value.heads import MEAN


@group
class Config:
    """Settings of Munchausen DQN."""

    replay: Replay = Replay(batch_size=32)
    torso: ImageTorso = ImageTorso(hidden=(128, 128))
    optimizer: Optimizer = Optimizer(learning_rate=5e-5, eps=0.01 / 32)
    """Adam, 5e-5: appendix B.1."""
    target: Target = Target(rate=1.0, period=500)
    exploration: EpsilonGreedy = EpsilonGreedy()
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    huber: float = hyper(1.0, above=0)
    """Errors above this count linearly."""
    temperature: float = hyper(0.03, above=0)
    """Tau, of the entropy and of the policy that the copy's values make."""
    weight: float = hyper(0.9, low=0, high=1)
    """Alpha, of the log-probability in the reward."""
    lowest: float = hyper(-1.0, high=0)
    """What tau times the log-probability is cut at."""


def target(net, x, discount, evaluated, selector):
    """Equation 1, with the cut of section 3: both values are the copy's."""
    q = MEAN.values(net, net.target.q(x.timestep), x.timestep)
    following = MEAN.values(net, evaluated, x.next_timestep)
    h = net.hyper
    return losses.munchausen_target(
        x.reward, x.terminated, discount, q, x.action, following, h.temperature, h.weight, h.lowest
    )


def recipe(env: Environment, config: Any) -> Recipe:
    return dqn_.recipe(env, config, head=dataclasses.replace(MEAN, target=target))


munchausen_dqn = dataclasses.replace(dqn_.dqn, name="munchausen_dqn", Config=Config, recipe=recipe)
