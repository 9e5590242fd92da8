"""Diffusion-reward adversarial imitation (DRAIL; Lai, Wang, Hsieh, Wang, Chen and Sun, 2024,
"Diffusion-reward adversarial imitation learning", arXiv:2405.16194): GAIL whose discriminator is a
diffusion model of observations and actions, which denoises them under the label of the expert (1)
and of the policy (0).

    D(s, a) = exp(-L(s, a, 1)) / (exp(-L(s, a, 1)) + exp(-L(s, a, 0)))
    reward  = log D - log(1 - D) = L(s, a, 0) - L(s, a, 1)

L is the mean squared error of the predicted noise, at one random level. The discriminator is
trained as GAIL's, so each label's error falls on its own side and rises on the other; the policy
learns by PPO. The form of the reward, labels as a vector of equal numbers, the cosine schedule and
the sizes are those of the authors' code. That draws level and noise anew for the second label; here
both labels see the same noisy pair, so that the difference of their errors varies less, and the
expert's and the policy's steps share level and noise. There levels come in pairs t and n - 1 - t.
"""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.imitation.shared import windows
from jaxrl.algorithms.imitation.shared.adversarial import adversarial, discriminator_loss
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.diffusion import VariancePreserving
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, static
from jaxrl.kit.groups import Epochs, Optimizer, RolloutNormalization, Torso
from jaxrl.networks import encoders
from jaxrl.networks.denoisers import LevelFeatures
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP

EXPERT, POLICY = 1.0, 0.0  # labels


@group
class DiffusionDiscriminator(windows.WindowDiscriminator):
    """Diffusion model that denoises under two labels, and so tells the policy's steps from an
    expert's."""

    torso: Torso = Torso(hidden=(128, 128, 128, 128))
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of the diffusion model."""
    passes: Epochs = Epochs(epochs=1, minibatches=4)
    """Gradient steps of the diffusion model on each window."""
    levels: int = static(1000, low=1, high=MANY)
    """Number of noise levels, of a cosine schedule."""
    label_size: int = static(10, low=1, high=WIDE)
    """Length of the vector of equal numbers that stands for a label."""
    draws: int = static(1, low=1)
    """Number of noisy pairs that an error is the mean of."""


@group
class Config(windows.Adversarial):
    """Settings of DRAIL: PPO on the reward of a diffusion model of observations and actions
    (arXiv:2405.16194)."""

    discriminator: DiffusionDiscriminator = DiffusionDiscriminator()
    normalization: RolloutNormalization = RolloutNormalization(observation=True)
    form: str = static("logit", choices=("positive", "negative", "logit"))
    """Reward of a step: logit (log D - log(1 - D)), positive (-log(1 - D)) or negative (log D),
    where D is the probability that the step is the expert's. The second favors long episodes, the
    third short ones."""


class LabeledDenoiser(nn.Module):
    """The noise in noisy vectors, given a label: [..., D], level [...], label [...] -> [..., D]."""

    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"
    label_size: int = 10
    level_features: int = 16

    @nn.compact
    def __call__(self, noisy: Array, level: Array, label: Array) -> Array:
        shape = noisy.shape[:-1]
        labels = jnp.broadcast_to(label[..., None], (*shape, self.label_size))
        levels = LevelFeatures(self.level_features)(jnp.broadcast_to(level, shape))
        x = jnp.concatenate([noisy, labels, levels], -1)
        x = MLP(self.widths, self.activation, self.initializer)(x)
        return dense(noisy.shape[-1], initializer(self.initializer, 1.0))(x)


def recipe(env: Environment, config: Config) -> Recipe:
    x = config.discriminator
    process = VariancePreserving(x.levels, "cosine")

    def pair(timestep, action) -> Array:
        space = env.observation_space
        return encoders.state_action_features(space, env.action_space, timestep, action)

    def log_odds(net: Net, steps: Transition) -> Array:
        """Return the log-odds [...] that steps are the expert's: the policy's error less the
        expert's, for the same noise."""
        clean = pair(steps.timestep, steps.action)
        clean = jnp.broadcast_to(clean, (x.draws, *clean.shape))
        noised = process.add_noise(net.key("noise"), clean)

        def error(label: float) -> Array:
            told = jnp.full(noised.level.shape, label)
            predicted = net.discriminator(noised.noisy, noised.level, told)
            return jnp.square(noised.target - predicted).mean(-1)

        return losses.drail_logits(error(EXPERT), error(POLICY)).mean(0)

    example = pair(example_timestep(env), spaces.example(env.action_space)[None])
    torso, number = x.torso, jnp.zeros(len(example))
    denoiser = LabeledDenoiser(torso.hidden, torso.activation, torso.initializer, x.label_size)
    return adversarial(
        ppo.recipe(env, config),
        env,
        {"discriminator": Part(denoiser, (example, number, number), x.optimizer)},
        discriminator_loss(("discriminator",), log_odds, x),
        windows.train_on_windows(x.passes),
        lambda net, steps: losses.adversarial_reward(log_odds(net, steps), config.form),
    )


drail = AlgorithmBuilder("drail", Config, recipe, windows.source, check=windows.check)

TINY = windows.SMALL_WINDOWS | {"env": "pendulum", "levels": 8, "label_size": 2, "draws": 2}
