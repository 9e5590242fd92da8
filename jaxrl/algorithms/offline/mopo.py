"""MOPO (Yu, Thomas, Yu, Ermon, Zou, Levine, Finn and Ma, 2020, "MOPO: Model-based offline policy
optimization", arXiv:2005.13239): SAC on short rollouts of a learned model that branch from the
data, whose rewards are lowered by the model's uncertainty, and on a small share of the data.

The penalty is lambda times the largest norm of the standard deviations that any member predicts, of
next observation and reward together. Here both are in standard deviations of the data, so that
units do not matter. The model is `dynamics_model`'s, which is trained first (`--warm-start`).
"""

from __future__ import annotations

from jaxrl.algorithms.continuous_control import sac
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.offline.shared import model_rollouts, soft_offline
from jaxrl.algorithms.offline.shared.model_rollouts import PENALTIES, InModel, in_model
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper, static


@group
class Config(InModel, soft_offline.SoftOffline):
    """Settings of MOPO: SAC on rollouts of a learned model, with rewards less the model's
    uncertainty (arXiv:2005.13239)."""

    penalty: str = static("max_aleatoric", choices=PENALTIES)
    """Measure of the model's uncertainty that rewards of rollouts are lowered by."""
    penalty_weight: float = hyper(1.0, low=0)
    """Weight of the penalty, lambda in the paper: reward per standard deviation of the data."""


def recipe(env: Environment, config: Config) -> Recipe:
    plain = sac.recipe(env, config, reward=scaled_reward)
    return in_model(plain, env, config, penalty=config.penalty)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as for all that learn in a model, and for a penalty that compares members
    where there is one."""
    model_rollouts.check(env, config, name)
    compares = config.penalty in ("leave_one_out_kl", "max_pairwise_difference")
    if compares and config.model.members < 2:
        raise UserError(f"penalty is {config.penalty}, which needs a model of at least 2 members.")


mopo = AlgorithmBuilder(
    "mopo",
    Config,
    recipe,
    model_rollouts.model_source,
    check=check,
    goes_on_from="dynamics_model",
)

TINY = model_rollouts.TINY
