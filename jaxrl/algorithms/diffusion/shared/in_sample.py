"""Policies that denoise the data's actions, beside values by implicit Q-learning."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl.algorithms.diffusion.shared.data import Data
from jaxrl.algorithms.diffusion.shared.policies import action_denoiser, denoiser_inputs
from jaxrl.algorithms.offline import iql
from jaxrl.core.types import Array, Environment
from jaxrl.kit import Act, Loss, Part, Recipe, group, hyper, static
from jaxrl.kit.groups import Normalization, Optimizer, Target, Torso


@group
class InSample:
    """Settings shared by generative policies whose values come from implicit Q-learning."""

    data: Data = Data()
    torso: Torso = Torso(hidden=(256, 256, 256), activation="silu")
    critic: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the value and of the critics, separately. Adam, 3e-4: authors' code."""
    actor: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the policy. Adam, 3e-4: authors' code."""
    target: Target = Target(rate=0.005)
    average: Target = Target(rate=0.001)
    """Running average of the policy, which acts."""
    normalization: Normalization = Normalization()

    num_critics: int = static(2, low=1)
    """Number of critics; the minimum of their values is used."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards."""
    expectile: float = hyper(0.7, above=0, below=1)
    """Expectile of the value over the data's actions: 0.5 is their mean, near 1 their maximum."""


def in_sample_recipe(
    env: Environment, config: Any, actor_loss: Loss, act: Act, *condition: Array
) -> Recipe:
    """Return implicit Q-learning with a denoiser in the place of the policy.

    condition: an example of what the denoiser is told besides the time step.
    """
    values = iql.recipe(env, config)
    denoiser = action_denoiser(env, config.torso)
    actor = Part(denoiser, denoiser_inputs(env, *condition), config.actor, config.average)
    return dataclasses.replace(
        values,
        parts={**values.parts, "actor": actor},
        act=act,
        losses=(iql.value_loss, iql.critic_loss, actor_loss),
        update=None,  # in the order of these losses
    )
