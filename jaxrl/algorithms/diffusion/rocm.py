"""ROCM (Shekhar and Zhang, 2025, "ROCM: RLHF on consistency models", arXiv:2503.06171).

A consistency model is fine-tuned by the gradient of a differentiable reward through the few steps
of its sampler, whose noise is drawn beforehand, less a divergence of each step from that of the
frozen model. Both steps are Gaussians of one variance, so the divergences have closed forms: with d
the distance of the means over the standard deviation, d^2 / 2 for KL in either direction, 1 -
exp(-d^2 / 8) for Hellinger's squared, and d^2 over the variance for Fisher's (the mean squared
difference of the scores), all derived here. The paper also has Jensen and Shannon's, which has none
and is left out.

The paper fine-tunes latent consistency models of images from text on models of human preference;
here the samples are actions of one step, and the reward is the environment's, whose gradient is
taken through its step. The last step, which has no noise, is given a standard deviation of
`last_scale` while learning, so that its divergence is finite. How the paper weighs steps was not
confirmed: here they count alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared import fine_tuning
from jaxrl.algorithms.diffusion.shared.fine_tuning import (
    FineTuning,
    begin_as_cloned_with,
    check_known_reward,
    generator_parts,
    measure_tilted,
    reward_of,
    tilted_scores,
)
from jaxrl.algorithms.diffusion.shared.policies import WITHIN_BOUNDS, action_size, from_units
from jaxrl.core.types import Array, Environment
from jaxrl.diffusion import Consistency
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper, loss, static

Divergence = Callable[[Array, Array], Array]


def kl(apart: Array, scale: Array) -> Array:
    """Return the KL divergence [...] of Gaussians of one scale [...], their means `apart`
    [..., D]."""
    return losses.denoising_kl(apart, jnp.zeros_like(apart), scale)


def hellinger(apart: Array, scale: Array) -> Array:
    """Return the squared Hellinger distance [...] of Gaussians as in `kl`."""
    return -jnp.expm1(-kl(apart, scale) / 4)


def fisher(apart: Array, scale: Array) -> Array:
    """Return the Fisher divergence [...] of Gaussians as in `kl`."""
    return 2 * kl(apart, scale) / jnp.square(scale)


DIVERGENCES: dict[str, Divergence] = {"kl": kl, "hellinger": hellinger, "fisher": fisher}


@group
class Config(FineTuning):
    """Settings of ROCM: reward gradients through a consistency model, near a frozen one."""

    steps: int = static(4, low=1)
    """Number of steps of the sampler."""
    divergence: str = static("kl", choices=DIVERGENCES)
    """Divergence of each step from the frozen model's: kl, hellinger (squared) or fisher."""
    beta: float = hyper(0.2, low=0)
    """Weight of the divergence, summed over steps, in units of the reward; 0 for none."""
    last_scale: float = hyper(0.05, above=0)
    """Least standard deviation of each step's noise while learning, in half-widths of the actions;
    the last step would have none."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process, divergence = Consistency(), DIVERGENCES[config.divergence]

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Compute the divergence from the frozen model less the reward of new samples."""
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[x.reward.ndim :]), x.timestep)
        noise = {"least_scale": net.hyper.last_scale, "noisy_end": True}
        hooks = dataclasses.replace(WITHIN_BOUNDS, **noise)
        predict = lambda noisy, level: net.denoiser(flat, noisy, level)
        base = lambda noisy, level: net.base(flat, noisy, level)
        shape = (x.reward.size, size)
        options = {"steps": config.steps, "hooks": hooks, "record": True}
        chain = process.sample(net.key("noise"), predict, shape, **options)
        reward = reward_of(env, flat, chain.samples[-1], net.key("step"))
        base_mean, _ = process.rerun(base, chain.samples, hooks=hooks)
        scale = jnp.broadcast_to(chain.scale[:, None], chain.mean.shape[:-1])
        distance = divergence(chain.mean - base_mean, scale).sum(0)
        value = net.hyper.beta * distance - reward
        metrics = {"divergence": distance, "sampled_reward": reward}
        shaped = lambda leaf: leaf.reshape(x.reward.shape)
        return LossOutput(shaped(value), jax.tree.map(shaped, metrics))

    def act(net, timestep, memory, key, greedy):
        predict = lambda noisy, level: net.denoiser(timestep, noisy, level)
        shape = (*timestep.reward.shape, size)
        options = {"steps": config.steps, "hooks": WITHIN_BOUNDS}
        return from_units(space, process.sample(key, predict, shape, **options)), memory, {}

    return Recipe(
        parts=generator_parts(env, config),
        act=act,
        losses=(denoiser_loss,),
        adopt=begin_as_cloned_with("consistency"),
        scores=tilted_scores(env),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, an episode is one step, and the reward
    of a sample can be computed."""
    fine_tuning.check(env, config, name)
    check_known_reward(env, name)


rocm = AlgorithmBuilder(
    "rocm", Config, recipe, check=check, measure=measure_tilted, goes_on_from="diffusion_bc"
)

TINY = {"env": "mixture", "num_envs": 8, "num_shards": 4, "hidden": (8,), "steps": 2}
