"""RAVL (Sims, Lu and Teh, 2024, "The edge-of-reach problem in offline model-based reinforcement
learning", arXiv:2402.12527): EDAC on short rollouts of a learned model, without a
penalty for the model's uncertainty.

Rollouts of k steps reach states that they never go on from, so that values are bootstrapped from
states where no value is ever learned. With few critics errors there explode, even where the model
is true (`branches.dynamics=true`, where the environment can tell its state). Many critics that must
differ disagree in those states, and their minimum is pessimistic there. As in the authors' code,
the minimum is that of SAC-N and the diversity that of EDAC.

The model is `dynamics_model`'s, which is trained first (`--warm-start`).
"""

from __future__ import annotations

from jaxrl.algorithms.offline import edac
from jaxrl.algorithms.offline.shared import model_rollouts
from jaxrl.algorithms.offline.shared.model_rollouts import InModel, in_model
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group


@group
class Config(InModel, edac.Config):
    """Settings of RAVL: EDAC on rollouts of a learned model, which are not penalized
    (arXiv:2402.12527)."""


def recipe(env: Environment, config: Config) -> Recipe:
    return in_model(edac.recipe(env, config), env, config)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as for all that learn in a model, and for a single critic."""
    model_rollouts.check(env, config, name)
    edac.check(env, config, name)


ravl = AlgorithmBuilder(
    "ravl",
    Config,
    recipe,
    model_rollouts.model_source,
    check=check,
    goes_on_from="dynamics_model",
)

TINY = model_rollouts.TINY | {"num_critics": 3}
