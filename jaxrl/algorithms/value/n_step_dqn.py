"""DQN with n-step returns (Sutton, 1988; as in Hessel et al., 2018, arXiv:1710.02298): several
rewards stand in a target before the value that it bootstraps from, uncorrected for what the policy
would do now. It descends as DQN does."""

from __future__ import annotations

import dataclasses

from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.kit import group, static


@group
class Config(dqn_.Config):
    """Settings of n-step DQN."""

    n_step: int = static(3, low=2)
    """Rewards in a target before the value that it bootstraps from."""


n_step_dqn = dataclasses.replace(
    dqn_.dqn,
    name="n_step_dqn",
    Config=Config,
    recipe=lambda env, config: dqn_.recipe(env, config, steps=config.n_step),
    source=lambda env, config: config.replay.source(env, length=config.n_step),
)

TINY = dqn_.TINY
