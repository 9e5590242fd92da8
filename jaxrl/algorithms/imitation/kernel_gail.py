"""GAIL with a kernel reward (Chen, Wang, Liu, Yang, Li, Wang and Zhao, 2020, "On computation and
generalization of generative adversarial imitation learning", arXiv:2001.02792): the reward is
linear in features whose inner products are a kernel, with weights in a ball, so that the
adversary's problem is strongly concave:

    max over theta:  E_expert[theta . g(s, a)] - E_policy[theta . g(s, a)] - weight |theta|^2 / 2

After each gradient step the weights are projected onto the ball.
The features are random Fourier features of a Gaussian kernel (Rahimi and Recht, 2007). The distance
of the mean features of both, the largest gap under a reward of norm 1, is logged as `feature_gap`.
The policy learns by PPO, where the paper's analysis has steps of stochastic gradients.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.imitation.shared import windows
from jaxrl.algorithms.imitation.shared.adversarial import Beside, adversarial
from jaxrl.algorithms.imitation.shared.demonstrations import Demonstrations
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Transition, Tree
from jaxrl.kit import (
    AlgorithmBuilder,
    Loss,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.groups import INF, Epochs, Optimizer
from jaxrl.networks import encoders


@group
class KernelReward:
    """Reward that is linear in random features of a kernel."""

    features: int = static(256, low=1, high=MANY)
    """Number of random features."""
    scale: float = static(1.0, above=0, high=INF)
    """Scale of the Gaussian kernel: exp(-distance^2 / (2 scale^2)) of observations and actions."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-2)
    """Optimizer settings of the reward's weights."""
    passes: Epochs = Epochs(epochs=1, minibatches=4)
    """Gradient steps of the reward on each window."""
    radius: float = hyper(10.0, above=0, high=INF)
    """Largest norm of the weights."""
    penalty_weight: float = hyper(0.01, low=0, high=INF)
    """Weight of half the squared norm of the weights."""


@group
class Config(PPOConfig):
    """Settings of GAIL with a kernel reward: PPO on a reward that is linear in random features
    (arXiv:2001.02792)."""

    demonstrations: Demonstrations = Demonstrations()
    kernel: KernelReward = KernelReward()


class RandomFeatures(nn.Module):
    """Random Fourier features [..., M] of a time step and an action [...], drawn at the start."""

    observation_space: Space
    action_space: Space
    features: int
    scale: float

    @nn.compact
    def __call__(self, timestep: TimeStep, action: Tree) -> Array:
        x = encoders.state_action_features(
            self.observation_space, self.action_space, timestep, action
        )
        normal = nn.initializers.normal(1 / self.scale)
        uniform = nn.initializers.uniform(2 * math.pi)
        frequency = self.param("frequency", normal, (x.shape[-1], self.features))
        phase = self.param("phase", uniform, (self.features,))
        return losses.random_features(x, frequency, phase)


class Weights(nn.Module):
    """Weights [M], 0 at the start."""

    size: int

    @nn.compact
    def __call__(self) -> Array:
        return self.param("weights", nn.initializers.zeros, (self.size,))


def features_of(net: Net, x: Transition) -> Array:
    """Return the features [..., M] of transitions [...]."""
    return net.features(x.timestep, x.action)


def reward(net: Net, x: Transition) -> Array:
    """Return the learned reward [...] of transitions."""
    return losses.kernel_reward(features_of(net, x), net.weights(), net.hyper.kernel.radius)


@loss("weights")
def reward_loss(net: Net, x: Beside) -> LossOutput:
    """Compute the policy's reward less the expert's, with a penalty on the norm of the weights
    within the ball."""
    h = net.hyper.kernel
    weights = losses.ball_projection(net.weights(), h.radius)
    gap = reward(net, x.shown) - reward(net, x.played)
    penalty = h.penalty_weight * jnp.square(weights).sum() / 2
    return LossOutput(penalty - gap, {"reward_gap": gap})


def descend_in_ball(net: Net, minibatch: Any) -> Net:
    """Take a gradient step of the weights, and project them onto the ball."""
    net = net.descend(reward_loss, minibatch)
    project = lambda w: losses.ball_projection(w, net.hyper.kernel.radius)
    return net.with_params(weights=jax.tree.map(project, net.parts["weights"].params))


def recipe(env: Environment, config: Config) -> Recipe:
    x, space = config.kernel, env.action_space
    inputs = (example_timestep(env), spaces.example(space)[None])
    features = RandomFeatures(env.observation_space, space, x.features, x.scale)

    def train(net: Net, loss: Loss, rows: Beside, batch: Batch) -> Net:
        net = net.epochs(x.passes, Minibatch(rows, batch.mask, batch.weight), descend_in_ball)
        over_time = lambda x: features_of(net, x).mean(0)  # reshaped, it would be gathered
        gap = losses.feature_gap(over_time(rows.played), over_time(rows.shown))
        return net.report(feature_gap=gap)

    parts: dict[str, Any] = {
        "weights": Part(Weights(x.features), (), x.optimizer),
        "features": Part(features, inputs),
    }
    return adversarial(ppo.recipe(env, config), env, parts, reward_loss, train, reward)


def check(env: Environment, config: Config, name: str) -> None:
    windows.check_ppo(env, config, config.kernel.passes, name)


kernel_gail = AlgorithmBuilder("kernel_gail", Config, recipe, windows.source, check=check)

TINY = {k: v for k, v in windows.SMALL_WINDOWS.items() if not k.startswith("discriminator")} | {
    "env": "pendulum",
    "kernel.features": 8,
    "kernel.passes.minibatches": 2,
}
