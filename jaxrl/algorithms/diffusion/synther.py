"""SynthER (Lu, Ball, Teh and Parker-Holder, 2023, "Synthetic experience replay", arXiv:2303.06614),
offline: a diffusion model of a dataset's transitions upsamples it, and TD3+BC learns from what is
generated.

The model is `experience_model`'s, which is trained first (`--warm-start`). The authors generate
five million transitions once; here some are generated anew before every `data.updates` gradient
steps, and the last ones are kept. `generated.real_share` mixes the data in. Their denoiser is 2,048
wide with 6 layers and takes 128 steps with added noise (`generator.churn` 80, and only at levels
between 0.05 and 50). The online form, where the model is trained again in the course of learning,
is not here.
"""

from __future__ import annotations

from jaxrl.algorithms.diffusion.shared import experience
from jaxrl.algorithms.diffusion.shared.experience import (
    FromGenerated,
    generated_source,
    learn_from_generated,
    measure_experience,
)
from jaxrl.algorithms.offline import td3_bc
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group
from jaxrl.kit.groups import Normalization


@group
class Config(FromGenerated, td3_bc.Config):
    """Settings of SynthER: TD3+BC on transitions that a diffusion model of the data generates
    (arXiv:2303.06614)."""

    normalization: Normalization = Normalization()


def recipe(env: Environment, config: Config) -> Recipe:
    return learn_from_generated(td3_bc.recipe(env, config), env, config)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as for all that learn from generated experience, and for trajectories."""
    experience.check(env, config, name)
    if config.generator.horizon != 1:
        raise UserError(
            f"generator.horizon is {config.generator.horizon}; {name} generates transitions, so it "
            "must be 1."
        )


synther = AlgorithmBuilder(
    "synther",
    Config,
    recipe,
    generated_source,
    check=check,
    measure=measure_experience,
    goes_on_from="experience_model",
)

TINY = experience.TINY
