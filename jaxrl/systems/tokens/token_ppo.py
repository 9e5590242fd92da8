"""PPO (Schulman et al., 2017) for tokens, as in Ouyang et al., 2022, "Training language models to
follow instructions with human feedback", arXiv:2203.02155: a critic judges each token, and a
penalty keeps the policy near a reference."""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.core.hyper import hyper
from jaxrl.core.settings import group
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit.groups import INF
from jaxrl.kit.net import Net
from jaxrl.kit.recipe import Recipe
from jaxrl.kit.system import System
from jaxrl.systems.policy_gradient.ppo import advantages
from jaxrl.systems.tokens.recipe import (
    TINY_GROUPS,
    Grouped,
    check,
    clipped,
    decisions,
    on_answers,
)


@group
class Config(Grouped):
    """Settings of PPO for tokens."""

    discount: float = hyper(1.0, low=0, high=1)
    """Gamma, per token."""
    gae_lambda: float = hyper(1.0, low=0, high=1)
    """Lambda of generalised advantage estimation."""
    clip: float = hyper(0.2, above=0, high=INF)
    """How far the probability ratio may move from 1 before its gradient stops."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""


def judge(net: Net, batch: Batch) -> tuple[Array, Array]:
    """Generalised advantages, standardised over all decisions, and what the critic learns."""
    x: Any = advantages(net, batch).transitions
    mask: Any = batch.mask
    return losses.standardize(x.advantage, decisions(x.timestep, mask)), x.target


def recipe(env: Environment, config: Config) -> Recipe:
    return on_answers(env, config, judge, clipped)


token_ppo = System("token_ppo", Config, recipe, check=check)

TINY = TINY_GROUPS
