"""A diffusion model of experience, the first phase of `synther` and `pgd` (Lu, Ball, Teh and
Parker-Holder, 2023, "Synthetic experience replay", arXiv:2303.06614): of whole transitions of a
dataset, or of trajectories, in the noise levels of EDM (Karras et al., 2022, "Elucidating the
design space of diffusion-based generative models").

Observation, action, reward, whether the task ended and the next observation are generated jointly.
The policy is random; where it is not greedy it also says what the model generates. The model that
generates is a running average.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.algorithms.diffusion.shared.experience import (
    EXPERIENCE,
    TINY_MODEL,
    Generator,
    Layout,
    check_model,
    denoiser_part,
    experience_scores,
    first_scale,
    generate,
    measure_experience,
)
from jaxrl.algorithms.diffusion.shared.policies import denoising_error
from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.core import spaces
from jaxrl.core.types import Environment, Source
from jaxrl.kit import AlgorithmBuilder, Recipe, group, loss
from jaxrl.kit.groups import Optimizer, Target
from jaxrl.kit.normalization import add
from jaxrl.sources.played import windows


@group
class Config:
    """Settings of a diffusion model of transitions or trajectories (arXiv:2303.06614)."""

    data: Data = Data()
    generator: Generator = Generator()
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the denoiser. Adam, 3e-4: code of SynthER."""
    average: Target = Target(rate=0.005)
    """Running average of the denoiser, which generates. Decay 0.995: code of SynthER and PGD."""


def recipe(env: Environment, config: Config) -> Recipe:
    layout = Layout(env, config.generator.horizon)
    process = layout.process()

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Denoise the data's transitions or trajectories."""
        clean = layout.encode(net.extra, x)
        error = denoising_error(process, net.denoiser, net.key(), clean)
        return jnp.broadcast_to(error, x.reward.shape)

    def act(net, timestep, memory, key, greedy):
        count = len(timestep.reward)
        keys = jax.random.split(key, count)
        action = jax.vmap(lambda key: spaces.sample(env.action_space, key))(keys)
        if greedy:
            return action, memory, {}
        found = generate(
            env,
            config.generator,
            net.target.denoiser,
            scale=net.extra,
            count=count,
            key=jax.random.fold_in(key, 1),
        )
        return action, memory, {EXPERIENCE: found}

    def update(net, batch):
        net = net.replace(extra=add(net.extra, layout.numbers(batch.transitions)))
        return net.descend(denoiser_loss, batch).update_targets("denoiser")

    return Recipe(
        parts={"denoiser": denoiser_part(env, config.generator, config.optimizer, config.average)},
        act=act,
        losses=(denoiser_loss,),
        update=update,
        extra=first_scale(env),
        scores=experience_scores(env),
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows [T, B] of the dataset, each within one episode."""
    return config.data.view_source(env, windows(config.generator.horizon, whole=False))


experience_model = AlgorithmBuilder(
    "experience_model", Config, recipe, source, check=check_model, measure=measure_experience
)

TINY = TINY_MODEL
