"""PPO beside demonstrations: settings, source and checks of adversarial imitation from windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.imitation.shared.adversarial import (
    Beside,
    Discriminator,
    refuse_reward_scaling,
)
from jaxrl.algorithms.imitation.shared.demonstrations import (
    SMALL_DEMONSTRATIONS,
    Demonstrations,
)
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Batch, Environment, Source
from jaxrl.kit import Loss, Minibatch, Net, group
from jaxrl.kit.groups import Epochs


@group
class WindowDiscriminator(Discriminator):
    """Discriminator that learns from each window of the policy's steps."""

    passes: Epochs = Epochs(epochs=1, minibatches=4)
    """Gradient steps of the discriminator on each window."""


@group
class Adversarial(PPOConfig):
    """Settings shared by adversarial imitation with PPO."""

    demonstrations: Demonstrations = Demonstrations()
    discriminator: WindowDiscriminator = WindowDiscriminator()


def train_on_windows(passes: Epochs) -> Callable[[Net, Loss, Beside, Batch], Net]:
    """Return how a discriminator learns from a window: in epochs of shuffled minibatches."""

    def train(net: Net, loss: Loss, x: Beside, batch: Batch) -> Net:
        window: Any = Minibatch(x, batch.mask, batch.weight)
        return net.epochs(passes, window, lambda net, minibatch: net.descend(loss, minibatch))

    return train


def source(env: Environment, config: Any) -> Source:
    """Return windows of rollouts, with an expert's step beside each of their steps."""
    x = config.rollouts
    return config.demonstrations.beside(env, x.source(env), x.num_envs * x.num_steps, x.num_shards)


def check(env: Environment, config: Adversarial, name: str) -> None:
    """Raise `UserError` where PPO or the discriminator cannot learn in `env` with `config`."""
    check_ppo(env, config, config.discriminator.passes, name)
    if config.discriminator.penalized and not has_real_numbers(env):
        raise UserError(
            f"discriminator.penalized is on, but neither observations nor actions of '{env.name}' "
            "are real numbers, so there is no gradient to penalize; turn it off."
        )


def has_real_numbers(env: Environment) -> bool:
    """Return whether a discriminator has a gradient with respect to observations or actions."""
    inputs = example_timestep(env).observation, spaces.example(env.action_space)
    return any(jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in jax.tree.leaves(inputs))


def check_ppo(env: Environment, config: PPOConfig, passes: Epochs, name: str) -> None:
    """Raise `UserError` where PPO cannot learn in `env` with `config`, and for windows that do not
    divide into the minibatches of `passes`."""
    ppo.check(env, config, name)
    refuse_reward_scaling(config, name)
    x = config.rollouts
    passes.check(x.num_envs, x.num_steps, x.num_shards)


# The smallest settings.
SMALL_WINDOWS = SMALL_DEMONSTRATIONS | {
    "num_envs": 8,
    "num_steps": 4,
    "num_shards": 4,
    "passes.epochs": 2,
    "passes.minibatches": 2,
    "torso.hidden": (8,),
    "discriminator.torso.hidden": (8,),
    "discriminator.passes.minibatches": 2,
    "discriminator.penalized": True,
    "normalization.observation": True,
}
