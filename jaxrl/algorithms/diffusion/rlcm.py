"""RL for consistency models, RLCM (Oertell, Chang, Zhang, Brantley and Sun, 2024, "RL for
consistency models: faster reward guided text-to-image generation").

The few steps of a consistency model's sampler are a decision process: its state is the noisy
sample and the step, its action the next noisy sample, which is Gaussian about the clean sample that
the model predicts, and the sample at the end is paid. PPO's clipped surrogate of all steps descends
it, with the reward of the sample, standardized, as the advantage of each step. As in the authors'
code, a step's log-likelihood is the mean over the sample's numbers.

The paper fine-tunes latent consistency models of images from text, standardizes rewards for each
prompt and adapts few weights (LoRA); here the samples are actions of one step, all are standardized
together, and all weights are trained. The last step of the sampler has noise of standard deviation
`last_scale` here while it learns, so that it is an action with a density too; in the authors' code
its likelihood is that of a further noisy sample, which nothing sees.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared import fine_tuning
from jaxrl.algorithms.diffusion.shared.fine_tuning import (
    FineTuning,
    begin_as_cloned_with,
    generator_parts,
)
from jaxrl.algorithms.diffusion.shared.policies import WITHIN_BOUNDS, action_size, from_units
from jaxrl.core.types import Array, Environment, TimeStep, struct
from jaxrl.diffusion import Consistency, Hooks
from jaxrl.kit import (
    STEP,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.groups import INF, Passes


@group
class Config(FineTuning):
    """Settings of RLCM: a clipped policy gradient over the steps of a consistency model
    (arXiv:2404.03673)."""

    passes: Passes = Passes(epochs=2, minibatches=2)

    steps: int = static(4, low=1)
    """Number of steps of the sampler."""
    clip: float = hyper(0.1, above=0, high=INF)
    """Clipping range of the probability ratio of a step around 1."""
    last_scale: float = hyper(0.05, above=0)
    """Least standard deviation of each step's noise while learning, in half-widths of the actions;
    the last step would have none."""


@struct
class Sample:
    """Samples [n] with their chains.

    chain: [n, K + 1, D]. log_prob: of each step when the sample was drawn, [n, K].
    """

    timestep: TimeStep
    chain: Array
    log_prob: Array
    advantage: Array


def hooks_of(net: Net, greedy: bool) -> Hooks:
    """Return the hooks of a sampler whose last step has noise unless it is greedy."""
    noise = {} if greedy else {"least_scale": net.hyper.last_scale, "noisy_end": True}
    return dataclasses.replace(WITHIN_BOUNDS, **noise)


def step_log_probs(chain: Array, mean: Array, scale: Array) -> Array:
    """Return the log-likelihood [K, ...] of each step of a chain [K + 1, ..., D] whose means are
    [K, ..., D] and scales [K], averaged over numbers."""
    wide = jnp.broadcast_to(scale.reshape(-1, *(1,) * (mean.ndim - 2)), mean.shape[:-1])
    return losses.denoising_log_prob(chain[1:], mean, wide, 0.0) / mean.shape[-1]


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process = Consistency()

    @loss("denoiser")
    def denoiser_loss(net: Net, x: Sample) -> LossOutput:
        """Compute the clipped surrogate of the steps of samples [n], the mean over steps."""
        predict = lambda noisy, level: net.denoiser(x.timestep, noisy, level)
        chain, old = jnp.moveaxis(x.chain, 1, 0), x.log_prob.T
        moments = process.rerun(predict, chain, hooks=hooks_of(net, False))
        log_prob = step_log_probs(chain, *moments)
        advantage = jnp.broadcast_to(x.advantage, log_prob.shape)
        each = losses.clipped_surrogate(log_prob, old, advantage, net.hyper.clip)
        drift = losses.kl_k3(old, log_prob).mean(0)
        return LossOutput(each.mean(0), {"approximate_kl": drift}, drift=drift)

    def step(net: Net, minibatch: Minibatch) -> Net:
        return net.descend(denoiser_loss, minibatch)

    def update(net: Net, batch: Any) -> Net:
        x = batch.transitions
        advantage = losses.standardize(x.reward, batch.mask)
        sample = Sample(x.timestep, x.extras["chain"], x.extras["log_prob"], advantage)
        window = Minibatch(sample, batch.mask, batch.weight)
        limit = net.hyper.passes.target_kl
        return net.epochs(config.passes, window, step, unit=STEP, max_drift=limit)

    def act(net, timestep, memory, key, greedy):
        predict = lambda noisy, level: net.denoiser(timestep, noisy, level)
        shape, hooks = (*timestep.reward.shape, size), hooks_of(net, greedy)
        options = {"steps": config.steps, "hooks": hooks}
        chain = process.sample(key, predict, shape, record=True, **options)
        log_prob = step_log_probs(chain.samples, chain.mean, jnp.maximum(chain.scale, 1e-6))
        extras = {
            "chain": jnp.moveaxis(chain.samples, 0, -2),
            "log_prob": jnp.moveaxis(log_prob, 0, -1),
        }
        return from_units(space, chain.samples[-1]), memory, extras

    return Recipe(
        parts={"denoiser": generator_parts(env, config)["denoiser"]},
        act=act,
        losses=(denoiser_loss,),
        update=update,
        needs=("transitions.extras.chain", "transitions.extras.log_prob"),
        adopt=begin_as_cloned_with("consistency"),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, an episode is one step, and samples
    divide into minibatches."""
    fine_tuning.check(env, config, name)
    x = config.rollouts
    config.passes.check(x.num_envs, x.num_steps, x.num_shards, STEP)


rlcm = AlgorithmBuilder("rlcm", Config, recipe, check=check, goes_on_from="diffusion_bc")

TINY = {
    "env": "mixture", "num_envs": 8, "num_shards": 4, "hidden": (8,), "steps": 2, "epochs": 2,
    "minibatches": 2, "early_stop": True,
}  # fmt: skip
