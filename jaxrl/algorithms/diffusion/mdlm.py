"""MDLM (Sahoo et al., 2024, "Simple and effective masked diffusion language models",
arXiv:2406.07524): a masked diffusion model clones strings; what DRAKES and SEPO begin with.

Each letter of a string is masked with probability t, t uniform from 0 to 1, and the model predicts
the masked letters from the others; weighted by 1 / t, the error bounds the negative log-likelihood.
Strings are drawn from all masks to none in `steps` steps, in which a masked letter is unmasked with
the probability of the schedule, and stays as it is.

The network here is a perceptron of whole strings, which is told t, where the paper has a
transformer; strings are actions of one step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared.data import Data
from jaxrl.algorithms.diffusion.shared.token_diffusion import (
    TokenDiffusion,
    check_strings,
    denoiser_part,
    one_hot,
    sample_strings,
    sizes_of,
)
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, loss
from jaxrl.kit.groups import Optimizer, Target


@group
class Config(TokenDiffusion):
    """Settings of MDLM: cloning of strings by masked diffusion (arXiv:2406.07524)."""

    data: Data = Data(name="demonstrations")
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the model."""
    average: Target = Target(rate=0.005)
    """Running average of the model, which acts."""


def recipe(env: Environment, config: Config) -> Recipe:
    size = length, letters = sizes_of(env)

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Bound the negative log-likelihood of the data's strings."""
        time_key, mask_key = jax.random.split(net.key())
        # Away from 0, where the weight is infinite.
        time = jax.random.uniform(time_key, x.reward.shape, minval=1e-3)
        masked = jax.random.uniform(mask_key, (*time.shape, length)) < time[..., None]
        string = one_hot(jnp.where(masked, letters, x.action), letters)
        log_probs = jax.nn.log_softmax(net.denoiser(string, time))
        log_prob = jnp.take_along_axis(log_probs, x.action[..., None], -1)[..., 0]
        weight = losses.masked_diffusion_weight(1 - time, -jnp.ones_like(time))
        return losses.masked_diffusion(log_prob, masked, weight)

    def act(net, timestep, memory, key, greedy):
        count = timestep.reward.shape[0]
        drawn = sample_strings(key, net.target.denoiser, count, size, config.steps)
        return drawn, memory, {}

    part = denoiser_part(env, config, optimizer=config.optimizer, target=config.average)
    return Recipe(parts={"denoiser": part}, act=act, losses=(denoiser_loss,))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are strings and there is a dataset alone."""
    check_strings(env, config, name)
    config.data.check_alone(name, "it clones")


mdlm = AlgorithmBuilder("mdlm", Config, recipe, check=check)

TINY = TINY_DATA | {
    "env": "strings", "env_params": {"length": 3, "letters": 2}, "data.name": "demonstrations",
    "hidden": (8,), "steps": 2,
}  # fmt: skip
