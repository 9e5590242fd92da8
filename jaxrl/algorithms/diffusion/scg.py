"""SCG, stochastic control guidance (Huang et al., 2024, "Symbolic music generation with
non-differentiable rule guided diffusion", arXiv:2402.14285): a diffusion model is guided by a rule
that can only be evaluated.

The model stays as it is and nothing is learned. At each denoising step `candidates` next samples
are drawn from it, each implies a clean sample, and the candidate whose clean sample follows the
rule best is kept (algorithm 1). The rule is the environment's reward.

The paper generates piano rolls in the latent space of an autoencoder; here the samples are actions
of one step. Samples that are not greedy are those of the model alone. SVDD draws among the
candidates with probabilities, so that its samples keep a law.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import diffusion
from jaxrl.algorithms.diffusion.shared import fine_tuning
from jaxrl.algorithms.diffusion.shared.fine_tuning import (
    OneStep,
    begin_as_cloned_with,
    check_known_reward,
    reward_of,
)
from jaxrl.algorithms.diffusion.shared.policies import (
    WITHIN_BOUNDS,
    action_denoiser,
    action_size,
    denoiser_inputs,
    from_units,
)
from jaxrl.core.types import Array, Environment
from jaxrl.diffusion import VariancePreserving
from jaxrl.kit import AlgorithmBuilder, Part, Recipe, group, static
from jaxrl.kit.groups import Torso


@group
class Config:
    """Settings of SCG: a diffusion model guided by a rule without gradients (arXiv:2402.14285)."""

    rollouts: OneStep = OneStep()
    torso: Torso = Torso(hidden=(256, 256, 256), activation="silu")

    steps: int = static(20, low=1)
    """Number of denoising steps and of noise levels."""
    candidates: int = static(16, low=1)
    """Number of next samples of which each step keeps the best; 1 for the model as it is."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process = VariancePreserving(config.steps, "cosine")

    def act(net, timestep, memory, key, greedy):
        predict = lambda noisy, level: net.base(timestep, noisy, level)
        sample_key, rule_key = jax.random.split(key)

        def choose(candidates: Array, clean: Array) -> Array:
            rule = lambda x: reward_of(env, timestep, jnp.clip(x, -1.0, 1.0), rule_key)
            score = jnp.moveaxis(jax.vmap(rule)(clean), 0, -1)
            return diffusion.select_best(jnp.moveaxis(candidates, 0, -2), score)

        guided = {"choose": choose, "candidates": config.candidates} if greedy else {}
        hooks = dataclasses.replace(WITHIN_BOUNDS, **guided)
        sample = process.sample(sample_key, predict, (*timestep.reward.shape, size), hooks=hooks)
        return from_units(space, sample), memory, {}

    network, inputs = action_denoiser(env, config.torso), denoiser_inputs(env)
    return Recipe(
        parts={"base": Part(network, inputs)},
        act=act,
        losses=(),
        update=lambda net, batch: net,
        adopt=begin_as_cloned_with("diffusion"),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, an episode is one step, and the reward
    of any sample can be computed."""
    fine_tuning.check(env, config, name)
    check_known_reward(env, name)


scg = AlgorithmBuilder("scg", Config, recipe, check=check, goes_on_from="diffusion_bc")

TINY = {
    "env": "mixture", "env_params": {"reward": "modes"}, "num_envs": 8, "num_shards": 4,
    "hidden": (8,), "steps": 2, "candidates": 3,
}  # fmt: skip
