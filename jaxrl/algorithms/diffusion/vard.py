"""VARD, value-based reinforced diffusion (Dai et al., 2025, "VARD: efficient and dense fine-tuning
for diffusion models with value-based RL").

A value learns the expected reward of the clean sample from noisy ones: it is regressed onto the
rewards that chains end with, at every sample of the chain. The diffusion model then ascends the
value of each denoising step's output, through one step only, less a divergence from the step of the
frozen model: so the signal is dense, and the reward needs no gradient.

The paper fine-tunes models of proteins and of images from text; here the samples are actions of one
step. By its abstract the paper learns the value first. Here the value learns from the chains of the
model as it is now, alongside it; whether it goes on to learn in the paper is not confirmed. The
last step, which has no noise, is given a standard deviation of `last_scale` while learning, so that
its divergence is finite.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared import fine_tuning
from jaxrl.algorithms.diffusion.shared.fine_tuning import (
    FineTuning,
    begin_as_cloned_with,
    generator_parts,
    measure_tilted,
    tilted_scores,
    value_part,
)
from jaxrl.algorithms.diffusion.shared.policies import WITHIN_BOUNDS, action_size, from_units
from jaxrl.core.types import Array, Environment
from jaxrl.diffusion import Hooks, VariancePreserving
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer


@group
class Config(FineTuning):
    """Settings of VARD: fine-tuning of a diffusion model on a value of its noisy samples."""

    value: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the value of noisy samples."""

    steps: int = static(20, low=1)
    """Number of denoising steps and of noise levels."""
    updates: int = static(4, low=1)
    """Number of gradient steps of value and model after each window."""
    beta: float = hyper(0.2, above=0, log=True)
    """Weight of the divergence from the frozen model, summed over steps, in units of the
    reward."""
    last_scale: float = hyper(0.05, above=0)
    """Least standard deviation of each step's noise while learning, in half-widths of the actions;
    the last step would have none."""


def levels_of(steps: int) -> Array:
    """Return the level of each sample of a chain, [K + 1], from 1 to 0."""
    return 1 - jnp.arange(steps + 1) / steps


def values_of_chain(value: Any, chain: Array, levels: Array) -> Array:
    """Return values [K + 1, ...] of the samples of a chain [K + 1, ..., D] at levels [K + 1].

    value: (noisy [..., D], level [...]) -> [...].
    """
    wide = jnp.broadcast_to(levels.reshape(-1, *(1,) * (chain.ndim - 2)), chain.shape[:-1])
    return jax.vmap(value)(chain, wide)


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process, levels = VariancePreserving(config.steps, "cosine"), levels_of(config.steps)

    def hooks_of(net: Any, greedy: bool) -> Hooks:
        noise = {} if greedy else {"least_scale": net.hyper.last_scale, "noisy_end": True}
        return dataclasses.replace(WITHIN_BOUNDS, **noise)

    @loss("value")
    def value_loss(net, x):
        """Regress the values of a chain's samples onto the reward at its end."""
        chain = jnp.moveaxis(x.extras["chain"], -2, 0)
        value = lambda noisy, level: net.value(x.timestep, noisy, level)[..., 0]
        error = losses.squared_error(values_of_chain(value, chain, levels), x.reward[None])
        return error.mean(0)

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Ascend the value of each step's output, less the divergence from the frozen model."""
        chain, hooks = jnp.moveaxis(x.extras["chain"], -2, 0), hooks_of(net, False)
        tuned = lambda noisy, level: net.denoiser(x.timestep, noisy, level)
        base = lambda noisy, level: net.base(x.timestep, noisy, level)
        mean, scale = process.rerun(tuned, chain, hooks=hooks)
        base_mean, _ = process.rerun(base, chain, hooks=hooks)
        wide = jnp.broadcast_to(scale.reshape(-1, *(1,) * x.reward.ndim), mean.shape[:-1])
        noise = jax.random.normal(net.key("noise"), mean.shape)
        value = lambda noisy, level: net.value(x.timestep, noisy, level)[..., 0]
        after = values_of_chain(value, mean + wide[..., None] * noise, levels[1:])
        each = losses.vard(after, mean, base_mean, wide, net.hyper.beta)
        distance = losses.denoising_kl(mean, base_mean, wide).sum(0)
        return LossOutput(each.mean(0), {"divergence": distance, "value_of_steps": after.mean(0)})

    def act(net, timestep, memory, key, greedy):
        predict = lambda noisy, level: net.denoiser(timestep, noisy, level)
        shape = (*timestep.reward.shape, size)
        options = {"hooks": hooks_of(net, greedy), "record": True}
        chain = process.sample(key, predict, shape, **options).samples
        return from_units(space, chain[-1]), memory, {"chain": jnp.moveaxis(chain, 0, -2)}

    return Recipe(
        parts=generator_parts(env, config) | {"value": value_part(env, config)},
        act=act,
        losses=(value_loss, denoiser_loss),
        needs=("transitions.extras.chain",),
        adopt=begin_as_cloned_with("diffusion"),
        scores=tilted_scores(env),
    )


vard = AlgorithmBuilder(
    "vard",
    Config,
    recipe,
    # One update each, and not a loop in one of them, which would draw the same noise every time.
    updates=lambda config: config.updates,
    check=fine_tuning.check,
    measure=measure_tilted,
    goes_on_from="diffusion_bc",
)

TINY = {
    "env": "mixture", "env_params": {"reward": "modes"}, "num_envs": 8, "num_shards": 4,
    "hidden": (8,), "steps": 2, "updates": 2,
}  # fmt: skip
