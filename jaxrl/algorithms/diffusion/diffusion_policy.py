"""Diffusion policy (Chi et al., 2023, "Diffusion policy: visuomotor policy learning via action
diffusion", arXiv:2303.04137): behavior cloning by a diffusion model of the next `horizon` actions,
given the last few observations.

A plan is denoised at once, its first `execute` steps are followed, then the next one is made. Plans
commit to one of several ways to act, where single actions would jump between them. At an episode's
edges the first observation and the last action are repeated, as in the authors' code.

The network is a temporal convolution without the authors' U-shape, and sees vectors: their image
encoders are left out. A plan begins at the current step, while theirs also holds the actions of the
observations before it. Averaging is at a constant rate, without their warm-up.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.algorithms.diffusion.shared import policies
from jaxrl.algorithms.diffusion.shared.chunks import (
    check_plans,
    flat_past,
    follow_plan,
    no_plan,
    rows_within_episodes,
    take_rows,
)
from jaxrl.algorithms.diffusion.shared.data import Data
from jaxrl.algorithms.diffusion.shared.policies import (
    WITHIN_BOUNDS,
    action_size,
    denoising_error,
    from_units,
    to_units,
)
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Environment, Source
from jaxrl.diffusion import VariancePreserving
from jaxrl.kit import AlgorithmBuilder, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Normalization, Optimizer, Target
from jaxrl.networks import encoders
from jaxrl.networks.denoisers import TrajectoryDenoiser


@group
class Config:
    """Settings of diffusion policy: cloning by a diffusion model of action sequences
    (arXiv:2303.04137)."""

    data: Data = Data(name="expert")
    optimizer: Optimizer = Optimizer(learning_rate=1e-4, weight_decay=1e-6, beta1=0.95)
    """Optimizer settings. AdamW, 1e-4, decay 1e-6, beta1 0.95: authors' code, which also warms up
    and anneals."""
    average: Target = Target(rate=0.001)
    """Running average of the denoiser, which acts."""
    normalization: Normalization = Normalization(observation=True)

    horizon: int = static(16, low=1)
    """Number of actions in a plan."""
    execute: int = static(8, low=1)
    """Number of actions of a plan that are followed."""
    observations: int = static(2, low=1)
    """Number of last observations that the denoiser sees."""
    levels: int = static(100, low=1)
    """Number of noise levels in training."""
    steps: int = static(100, low=1)
    """Number of denoising steps to act, at most all levels; fewer skip some of them, as DDIM
    does."""
    width: int = static(128, low=1, high=WIDE)
    """Channels of the convolutions."""
    blocks: int = static(3, low=1)
    """Number of residual blocks of the denoiser, whose reach doubles."""
    eta: float = hyper(1.0, low=0, high=1)
    """Noise of the denoising steps: 1 for DDPM, 0 for DDIM without noise."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    horizon, past = config.horizon, config.observations - 1
    process = VariancePreserving(config.levels, "cosine", axes=2)
    features = lambda timestep: encoders.features(env.observation_space, timestep)
    width = features(example_timestep(env)).shape[-1]

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Denoise the actions of a window, given the observations up to its first action."""
        rows = rows_within_episodes(x, past)
        seen = take_rows(features(x.timestep), rows)[: past + 1]
        actions = take_rows(to_units(space, x.action), rows)[past:]
        condition = jnp.moveaxis(seen, 0, 1).reshape(seen.shape[1], -1)
        predict = lambda noisy, level: net.denoiser(noisy, level, condition)
        error = denoising_error(process, predict, net.key(), jnp.moveaxis(actions, 0, 1))
        return jnp.broadcast_to(error, x.reward.shape)

    def act(net, timestep, memory, key, greedy):
        now = features(timestep)

        def make_plan(timestep, before, key):
            condition = jnp.concatenate([flat_past(before), now], -1)
            predict = lambda noisy, level: net.target.denoiser(noisy, level, condition)
            shape = (now.shape[0], horizon, size)
            options = {"steps": config.steps, "eta": net.hyper.eta, "hooks": WITHIN_BOUNDS}
            return process.sample(key, predict, shape, **options)

        action, memory = follow_plan(
            make_plan, timestep, memory, key, features=now, execute=config.execute
        )
        return from_units(space, action), memory, {}

    inputs = (jnp.zeros((1, horizon, size)), jnp.ones(1), jnp.zeros((1, (past + 1) * width)))
    network = TrajectoryDenoiser(size, config.width, config.blocks)
    return Recipe(
        parts={"denoiser": Part(network, inputs, config.optimizer, config.average)},
        act=act,
        losses=(denoiser_loss,),
        memory=lambda n: no_plan(n, horizon, size, past, width),
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows of the dataset: the observations before a plan, and its steps."""
    data, length = config.data, config.observations - 1 + config.horizon
    return data.windows(data.steps(env), data.batch_size, length)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, plans are as long as they are followed,
    and there is a dataset alone."""
    policies.check(env, config, name)
    check_plans(config, name)


diffusion_policy = AlgorithmBuilder("diffusion_policy", Config, recipe, source, check=check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "horizon": 4,
    "execute": 2,
    "levels": 2,
    "steps": 2,
    "width": 8,
    "blocks": 1,
}
