"""Noisy networks (Fortunato et al., 2018, arXiv:1706.10295): DQN that explores by weights that are
drawn anew for every window of steps and every gradient step, with a scale that is learnt."""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.core.hyper import hyper
from jaxrl.core.settings import group
from jaxrl.kit.groups import ImageTorso, Optimizer, Replay, Target
from jaxrl.systems.value.dqn import dqn, recipe


@group
class Config:
    """Settings of DQN with noisy networks."""

    replay: Replay = Replay(batch_size=32)
    torso: ImageTorso = ImageTorso(hidden=(128, 128))
    optimizer: Optimizer = Optimizer(learning_rate=5e-4, max_grad_norm=10.0, eps=1e-5)
    target: Target = Target(rate=1.0, period=500)
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    huber: float = hyper(1.0, above=0)
    """Errors above this count linearly."""


noisy_dqn = dataclasses.replace(
    dqn, name="noisy_dqn", Config=Config, recipe=functools.partial(recipe, noisy=True)
)
