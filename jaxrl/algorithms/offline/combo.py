"""COMBO (Yu, Kumar, Rafailov, Rajeswaran, Levine and Finn, 2021, "COMBO: Conservative offline
model-based policy optimization", arXiv:2102.08363): CQL on the data and on short rollouts of a
learned model. Its term lowers the values of actions in the states of rollouts and raises those of
the data's state-action pairs alone, so nothing has to say how uncertain the model is.

As in the implementation of OfflineRL-Kit, values are lowered by CQL(H)'s soft maximum over sampled
actions, in the states of whole batches (`mix`) or of rollouts alone (`model`), which is the
paper's rho. Weights are half of that code's, as in `cql`.

The model is `dynamics_model`'s, which is trained first (`--warm-start`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl.algorithms.offline import cql
from jaxrl.algorithms.offline.shared import model_rollouts
from jaxrl.algorithms.offline.shared.model_rollouts import (
    Branches,
    InModel,
    in_model,
    real_rows,
)
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static
from jaxrl.sources.imagined import REAL


@group
class Config(InModel, cql.Config):
    """Settings of COMBO: CQL on the data and on rollouts of a learned model, which raises the
    values of the data alone (arXiv:2102.08363)."""

    branches: Branches = Branches(real_share=0.5)
    """Rollouts of the model, and the fraction of the data beside them. 0.5: paper."""
    lowered: str = static("mix", choices=("mix", "model"))
    """States where values of actions are lowered: those of whole batches (mix) or of rollouts alone
    (model)."""


def recipe(env: Environment, config: Config) -> Recipe:
    real_share = real_rows(config) / config.data.batch_size

    def shares(net: Any, x: Any) -> tuple[Array, Array]:
        real = x.extras[REAL].astype(jnp.float32)
        raised = real / real_share
        if config.lowered == "mix":
            return jnp.ones_like(real), raised
        return (1 - real) / (1 - real_share), raised

    plain = in_model(cql.recipe(env, config, shares=shares), env, config)
    return dataclasses.replace(plain, needs=(f"transitions.extras.{REAL}",))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as for all that learn in a model, and for batches without data."""
    model_rollouts.check(env, config, name)
    if not real_rows(config):
        raise UserError(
            f"branches.real_share is {config.branches.real_share}; {name} raises the values of the "
            f"data, so a batch of {config.data.batch_size} needs at least one of its transitions."
        )


combo = AlgorithmBuilder(
    "combo",
    Config,
    recipe,
    model_rollouts.model_source,
    check=check,
    goes_on_from="dynamics_model",
)

TINY = model_rollouts.TINY | {"num_samples": 2, "next_samples": 2, "lagrange": True}
