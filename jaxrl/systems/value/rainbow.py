"""Rainbow (Hessel et al., 2018, "Rainbow: combining improvements in deep reinforcement learning",
arXiv:1710.02298): DQN with double Q-learning, prioritised replay, a dueling network, n-step
returns, the return's distribution and noisy weights."""

from __future__ import annotations

import dataclasses

from jaxrl.core.hyper import hyper, static
from jaxrl.core.settings import group
from jaxrl.core.types import Environment
from jaxrl.kit.groups import ImageTorso, Optimizer, Priorities, Replay, Target
from jaxrl.kit.recipe import Recipe
from jaxrl.systems.value import dqn as dqn_
from jaxrl.systems.value.c51 import c51
from jaxrl.systems.value.heads import categorical


@group
class Config:
    """Settings of Rainbow."""

    replay: Replay = Replay(batch_size=32)
    priorities: Priorities = Priorities(exponent=0.5)
    torso: ImageTorso = ImageTorso(hidden=(128, 128))
    optimizer: Optimizer = Optimizer(learning_rate=5e-4, max_grad_norm=10.0, eps=1e-5)
    target: Target = Target(rate=1.0, period=500)
    n_step: int = static(3, low=2)
    """Rewards in a target before the value that it bootstraps from."""
    num_atoms: int = static(51, low=2)
    """Atoms of a return's distribution."""
    lowest_return: float = hyper(-10.0)
    """The first atom."""
    highest_return: float = hyper(10.0)
    """The last atom."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""


def recipe(env: Environment, config: Config) -> Recipe:
    return dqn_.recipe(
        env,
        config,
        head=categorical(config.num_atoms),
        double=True,
        dueling=True,
        noisy=True,
        steps=config.n_step,
    )


rainbow = dataclasses.replace(
    c51,
    name="rainbow",
    Config=Config,
    recipe=recipe,
    source=lambda env, config: config.replay.source(
        env, config.n_step, config.priorities.sampler("priorities")
    ),
)
