"""Rainbow (Hessel et al., 2018, "Rainbow: combining improvements in deep reinforcement learning",
arXiv:1710.02298): C51 with double Q-learning, prioritized replay, a dueling network, n-step returns
and noisy weights."""

from __future__ import annotations

from jaxrl.algorithms.value import c51
from jaxrl.algorithms.value.shared.q_learning import q_learning_recipe
from jaxrl.core.types import Environment
from jaxrl.kit import Recipe, group, static
from jaxrl.kit.groups import Optimizer, Priorities


@group
class Config(c51.Categorical):
    """Settings of Rainbow."""

    optimizer: Optimizer = Optimizer(learning_rate=6.25e-5, eps=1.5e-4, max_grad_norm=10.0)
    """Adam, 6.25e-5, epsilon 1.5e-4: Hessel et al., table 1. The gradient norm of 10, which the
    paper does not mention, is that of DQN Zoo, written by one of the authors."""
    priorities: Priorities = Priorities(exponent=0.5)
    n_step: int = static(3, low=2)
    """Number of rewards in a target before the value that it bootstraps from."""


def recipe(env: Environment, config: Config) -> Recipe:
    return q_learning_recipe(
        env,
        config.torso,
        c51.categorical_head(config.num_atoms),
        optimizer=config.optimizer,
        target=config.target,
        exploration=None,
        double=True,
        dueling=True,
        steps=config.n_step,
    )


rainbow = c51.c51.variant(
    "rainbow",
    Config=Config,
    recipe=recipe,
    source=lambda env, config: config.replay.source(
        env, config.n_step, config.priorities.sampler("priorities")
    ),
)

TINY = c51.TINY
