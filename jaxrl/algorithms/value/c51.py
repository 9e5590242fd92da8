"""C51 (Bellemare, Dabney and Munos, 2017, "A distributional perspective on reinforcement learning",
arXiv:1707.06887): DQN that predicts the return's distribution."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.algorithms.value.shared.heads import categorical
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.kit import group, hyper, static
from jaxrl.kit.groups import EpsilonGreedy, Optimizer


@group
class Distributional(dqn_.Common):
    """Settings of who predicts the return's distribution."""

    optimizer: Optimizer = Optimizer(learning_rate=2.5e-4, eps=0.01 / 32)
    """Adam, 2.5e-4, epsilon 0.01 over the batch size 32: Bellemare et al., section 5."""
    num_atoms: int = static(51, low=2)
    """Atoms of a return's distribution."""
    lowest_return: float = hyper(-10.0)
    """The first atom."""
    highest_return: float = hyper(10.0)
    """The last atom."""


@group
class Config(Distributional):
    """Settings of C51."""

    exploration: EpsilonGreedy = EpsilonGreedy()


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` as DQN does, and for atoms in the wrong order."""
    dqn_.check(env, config, name)
    if not config.lowest_return < config.highest_return:
        raise UserError(
            f"lowest_return is {config.lowest_return} and highest_return {config.highest_return}; "
            "the atoms lie between them, in this order."
        )


c51 = dataclasses.replace(
    dqn_.dqn,
    name="c51",
    Config=Config,
    recipe=lambda env, config: dqn_.recipe(env, config, head=categorical(config.num_atoms)),
    check=check,
)

TINY = dqn_.TINY | {"num_atoms": 5}
