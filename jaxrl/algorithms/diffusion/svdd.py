"""SVDD, soft value-based decoding in diffusion models (Li et al., 2024, "Derivative-free guidance
in continuous and discrete diffusion models with soft value-based decoding").

The diffusion model stays as it is. At each denoising step, `candidates` next samples are drawn from
it, and one of them is drawn with probabilities proportional to exp(v / beta), where v is the soft
value of a noisy sample: beta log E[exp(r / beta)] over the clean samples that the model makes of
it. With exact values and ever more candidates the samples follow p(x) exp(r(x) / beta).

The value is regressed onto the rewards of chains of the model alone, which acts where actions are
not greedy; greedy samples are those that are guided. `values` says how: `soft` has the soft value
as its minimizer (the loss is ours, `losses.itakura_saito`), `mean` the expected reward, which the
paper's Monte Carlo regression has, and `clean` learns nothing: v is the reward of the clean sample
that is predicted from the noisy one, the paper's posterior mean approximation, for rewards that can
be computed.

The paper guides models of images, molecules and sequences; here the samples are actions of one
step.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared import fine_tuning
from jaxrl.algorithms.diffusion.shared.fine_tuning import (
    OneStep,
    begin_as_cloned_with,
    check_known_reward,
    measure_tilted,
    reward_of,
    tilted_scores,
    value_part,
)
from jaxrl.algorithms.diffusion.shared.policies import (
    WITHIN_BOUNDS,
    action_denoiser,
    action_size,
    denoiser_inputs,
    from_units,
)
from jaxrl.algorithms.diffusion.vard import levels_of, values_of_chain
from jaxrl.core.types import Array, Environment, Key
from jaxrl.diffusion import VariancePreserving
from jaxrl.kit import AlgorithmBuilder, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer, Torso

VALUES = ("soft", "mean", "clean")


@group
class Config:
    """Settings of SVDD: a diffusion model guided by soft values of its noisy samples
    (arXiv:2408.08252)."""

    rollouts: OneStep = OneStep()
    value: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the value of noisy samples."""
    torso: Torso = Torso(hidden=(256, 256, 256), activation="silu")

    steps: int = static(20, low=1)
    """Number of denoising steps and of noise levels."""
    candidates: int = static(20, low=1)
    """Number of next samples of which each step draws one; 1 for the model as it is."""
    values: str = static("soft", choices=VALUES)
    """Value of noisy samples: soft, mean (the expected reward), or clean (the reward of the clean
    sample that is predicted)."""
    updates: int = static(4, low=1)
    """Number of gradient steps of the value after each window."""
    beta: float = hyper(0.2, above=0, log=True)
    """Temperature of the soft value and of the draw, in units of the reward."""


def draw_candidate(candidates: Array, value: Array, key: Key) -> Array:
    """Draw one of N candidates [N, ..., D] with probabilities proportional to exp(value), [N,
    ...]."""
    index = jax.random.categorical(key, value, axis=0)
    return jnp.take_along_axis(candidates, index[None, ..., None], 0)[0]


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process, levels = VariancePreserving(config.steps, "cosine"), levels_of(config.steps)

    @loss("value")
    def value_loss(net, x):
        """Regress the values of a chain's samples onto the reward at its end."""
        chain = jnp.moveaxis(x.extras["chain"], -2, 0)
        value = lambda noisy, level: net.value(x.timestep, noisy, level)[..., 0]
        found = values_of_chain(value, chain, levels)
        reward = jnp.broadcast_to(x.reward, found.shape)
        if config.values == "soft":
            return losses.itakura_saito(found, reward, -1 / net.hyper.beta).mean(0)
        return losses.squared_error(found, reward).mean(0)

    def act(net, timestep, memory, key, greedy):
        predict = lambda noisy, level: net.base(timestep, noisy, level)
        shape = (*timestep.reward.shape, size)
        sample_key, step_key = jax.random.split(key)

        def value(noisy: Array, level: Array) -> Array:
            if config.values != "clean":
                return net.value(timestep, noisy, level)[..., 0]
            bar = process.alpha_bars()[jnp.round(level * config.steps).astype(int)]
            # At level 0 the sample is clean, and the network has not seen it.
            clean = process.clean(noisy, predict(noisy, level), bar)
            clean = jnp.where((level > 0)[..., None], clean, noisy)
            return reward_of(env, timestep, jnp.clip(clean, -1.0, 1.0), step_key)

        def draw(candidates: Array, level: Array, key: Key) -> Array:
            wide = jnp.full(candidates.shape[1:-1], level)
            values = jax.vmap(lambda x: value(x, wide))(candidates)
            return draw_candidate(candidates, values / net.hyper.beta, key)

        guided = {"draw": draw, "candidates": config.candidates} if greedy else {}
        hooks = dataclasses.replace(WITHIN_BOUNDS, **guided)
        chain = process.sample(sample_key, predict, shape, hooks=hooks, record=True).samples
        return from_units(space, chain[-1]), memory, {"chain": jnp.moveaxis(chain, 0, -2)}

    def update(net, batch):
        for _ in range(config.updates):
            net = net.descend(value_loss, batch)
        return net

    network, inputs = action_denoiser(env, config.torso), denoiser_inputs(env)
    parts, learned = {"base": Part(network, inputs)}, config.values != "clean"
    if learned:
        parts["value"] = value_part(env, config)
    return Recipe(
        parts=parts,
        act=act,
        losses=(value_loss,) if learned else (),
        update=update if learned else lambda net, batch: net,
        needs=("transitions.extras.chain",),
        adopt=begin_as_cloned_with("diffusion"),
        scores=tilted_scores(env),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, an episode is one step, and the reward
    of a sample can be computed where that is its value."""
    fine_tuning.check(env, config, name)
    if config.values == "clean":
        check_known_reward(env, name)


svdd = AlgorithmBuilder(
    "svdd", Config, recipe, check=check, measure=measure_tilted, goes_on_from="diffusion_bc"
)

TINY = {
    "env": "mixture", "env_params": {"reward": "modes"}, "num_envs": 8, "num_shards": 4,
    "hidden": (8,), "steps": 2, "updates": 2, "candidates": 3,
}  # fmt: skip
