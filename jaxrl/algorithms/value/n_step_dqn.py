"""DQN with n-step returns (Sutton, 1988; as in Hessel et al., 2018, arXiv:1710.02298): targets sum
several rewards before the value that they bootstrap from, without a correction for what the current
policy would do. The optimizer is DQN's."""

from __future__ import annotations

from jaxrl.algorithms.value import dqn
from jaxrl.core.types import Environment
from jaxrl.kit import Recipe, group, static


@group
class Config(dqn.Config):
    """Settings of n-step DQN."""

    n_step: int = static(3, low=2)
    """Number of rewards in a target before the value that it bootstraps from."""


def recipe(env: Environment, config: Config) -> Recipe:
    return dqn.recipe(env, config, steps=config.n_step)


n_step_dqn = dqn.dqn.variant(
    "n_step_dqn",
    Config=Config,
    recipe=recipe,
    source=lambda env, config: config.replay.source(env, length=config.n_step),
)

TINY = dqn.TINY
