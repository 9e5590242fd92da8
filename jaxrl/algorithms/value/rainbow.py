"""Rainbow (Hessel et al., 2018, "Rainbow: combining improvements in deep reinforcement learning",
arXiv:1710.02298): DQN with double Q-learning, prioritized replay, a dueling network, n-step
returns, the return's distribution and noisy weights."""

from __future__ import annotations

import dataclasses

from jaxrl.algorithms.value import c51 as c51_
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.algorithms.value.shared.heads import categorical
from jaxrl.core.types import Environment
from jaxrl.kit import Recipe, group, static
from jaxrl.kit.groups import Optimizer, Priorities


@group
class Config(c51_.Distributional):
    """Settings of Rainbow."""

    optimizer: Optimizer = Optimizer(learning_rate=6.25e-5, eps=1.5e-4, max_grad_norm=10.0)
    """Adam, 6.25e-5, epsilon 1.5e-4: Hessel et al., table 1. Gradients are clipped to a norm of 10,
    which the paper does not say, in DQN Zoo, written by one of the authors."""
    priorities: Priorities = Priorities(exponent=0.5)
    n_step: int = static(3, low=2)
    """Rewards in a target before the value that it bootstraps from."""


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
    c51_.c51,
    name="rainbow",
    Config=Config,
    recipe=recipe,
    source=lambda env, config: config.replay.source(
        env, config.n_step, config.priorities.sampler("priorities")
    ),
)

TINY = c51_.TINY
