"""Randomized ensembled double Q-learning (Chen, Wang, Zhou and Ross, 2021, "Randomized ensembled
double Q-learning: learning fast without a model", arXiv:2101.05982): SAC with many critics, many
updates for each step of the environment, targets by a random few of the critics, and a policy that
climbs the mean of all.

Targets of the entropy are SAC's (the authors' differ by environment), as is the temperature's loss
(of its logarithm in their code), and the warm-up acts by the first policy (theirs at random).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from jaxrl import losses
from jaxrl.algorithms.continuous_control import sac as sac_
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.kit import Net, Recipe, group, static
from jaxrl.kit.groups import Replay


@group
class Config(sac_.Config):
    """Settings of REDQ. The defaults are those of the authors' code, but for the replay's capacity,
    a million there."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=20, batch_size=256, warmup=5000)
    """G of the paper is `updates` by `num_envs` and `num_steps`: 20."""
    num_critics: int = static(10, low=1)
    """N, of the ensemble."""
    subset: int = static(2, low=1)
    """M, of the critics of a target."""
    delay: int = static(20, low=1)
    """Updates of the critics for one of policy and temperature: as many as there are for a step of
    the environment (algorithm 1)."""


def recipe(env: Environment, config: Config) -> Recipe:
    def target(net: Net, x: Transition, next_q: Array, log_prob: Array) -> Array:
        """Algorithm 1: the least of M of the N copies, the same for the whole batch."""
        key = net.key("subset")
        chosen = jax.random.choice(key, config.num_critics, (config.subset,), replace=False)
        return losses.redq_target(
            x.reward, x.terminated, net.hyper.discount, next_q, chosen, log_prob, net.temperature()
        )

    critics = sac_.Critics(target=target, opinions=lambda q: q.mean(-1, keepdims=True))
    return sac_.recipe(env, config, critics, delay=config.delay)


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` as SAC does, and for a subset that is larger than the ensemble."""
    sac_.check(env, config, name)
    if config.subset > config.num_critics:
        raise UserError(
            f"subset is {config.subset}; it must be at most num_critics={config.num_critics}."
        )


redq = dataclasses.replace(sac_.sac, name="redq", Config=Config, recipe=recipe, check=check)

TINY = sac_.TINY | {"updates": 4, "num_critics": 3, "delay": 2}
