"""Behavior cloning by a generative model of single actions (Pearce et al., 2023,
"Imitating human behaviour with diffusion models", arXiv:2301.10677): the model that fine-tuning on
rewards begins with.

The model is a diffusion model in discrete levels, as in the paper, a flow on straight paths (Lipman
et al., 2023, "Flow matching for generative modeling"), or a consistency model trained without a
teacher (Song et al., 2023, "Consistency models", algorithm 3, with the distance and the constant
parameters of the target of Song and Dhariwal, 2024, "Improved techniques for training consistency
models"), by the setting `process`. The paper's architectures, its guidance and its selection of
likely actions by a density estimate (Diffusion-KDE, Diffusion-X) are left out.
"""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared import policies
from jaxrl.algorithms.diffusion.shared.data import Data
from jaxrl.algorithms.diffusion.shared.fine_tuning import Cloned
from jaxrl.algorithms.diffusion.shared.policies import (
    WITHIN_BOUNDS,
    action_denoiser,
    action_size,
    denoiser_inputs,
    denoising_error,
    from_units,
    to_units,
)
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.core.types import Environment
from jaxrl.diffusion import Consistency, Flow, VariancePreserving
from jaxrl.kit import AlgorithmBuilder, Part, Recipe, group, loss, static
from jaxrl.kit.groups import Normalization, Optimizer, Target, Torso

# The pseudo-Huber distance is quadratic below this; 0.00054 sqrt(D) in the paper, on images.
THRESHOLD = 0.03
PROCESSES = ("diffusion", "flow", "consistency")


@group
class Config:
    """Settings of diffusion BC: cloning by a generative model of actions (arXiv:2301.10677)."""

    data: Data = Data(name="demonstrations")
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    average: Target = Target(rate=0.005)
    """Running average of the denoiser, which acts."""
    torso: Torso = Torso(hidden=(256, 256, 256), activation="silu")
    normalization: Normalization = Normalization()

    process: str = static("diffusion", choices=PROCESSES)
    """Generative model: diffusion, flow or consistency."""
    steps: int = static(20, low=1)
    """Number of steps of the sampler; of a diffusion model also the number of its noise levels."""


def make_process(name: str, steps: int) -> Any:
    """Return the process of noise called `name`: its sampler takes `steps` steps."""
    return {
        "diffusion": lambda: VariancePreserving(steps, "cosine"),
        "flow": lambda: Flow(),
        "consistency": lambda: Consistency(),
    }[name]()


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process = make_process(config.process, config.steps)

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Denoise the data's actions."""
        predict = lambda noisy, level: net.denoiser(x.timestep, noisy, level)
        clean = to_units(space, x.action)
        if config.process == "consistency":
            first, second, sigma, lower = process.ends(net.key(), predict, clean)
            return losses.consistency(first, second, sigma, lower, THRESHOLD)
        return denoising_error(process, predict, net.key(), clean)

    def act(net, timestep, memory, key, greedy):
        predict = lambda noisy, level: net.target.denoiser(timestep, noisy, level)
        shape = (*timestep.reward.shape, size)
        options = {"steps": config.steps, "hooks": WITHIN_BOUNDS}
        return from_units(space, process.sample(key, predict, shape, **options)), memory, {}

    network, inputs = action_denoiser(env, config.torso), denoiser_inputs(env)
    return Recipe(
        parts={"denoiser": Part(network, inputs, config.optimizer, config.average)},
        act=act,
        losses=(denoiser_loss,),
        extra=Cloned(config.process),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box and there is a dataset alone."""
    policies.check(env, config, name)
    config.data.check_alone(name, "it clones")


diffusion_bc = AlgorithmBuilder("diffusion_bc", Config, recipe, check=check)

TINY = TINY_DATA | {"env": "mixture", "data.name": "demonstrations", "hidden": (8,), "steps": 2}
