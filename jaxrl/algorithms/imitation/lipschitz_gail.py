"""Off-policy adversarial imitation with a Lipschitz reward (Blonde, Strasser and Kalousis, 2022,
"Lipschitzness is all you need to tame off-policy generative adversarial imitation learning",
arXiv:2006.16785, and the authors' code): TD3 learns from replayed steps, whose reward -log(1 - D)
is that of the discriminator as it is now. A penalty keeps the discriminator's slope below
`discriminator.slope` between the policy's steps and the expert's.

With `preconditioned` rewards are multiplied by a factor of at least `floor` that is small where a
learned model of the dynamics is steep, so the return is a pessimistic one. As in the authors' code
it is one factor for a batch, exp(-penalty / deviation), of the mean penalty on the model's slopes
above `dynamics_slope` and the running deviation of such means.

The discriminator takes one step for each of the critics' and sees observation and action; the
authors' goes through all of the expert's data for each step of the critics (their setting for
MuJoCo). Their penalty draws a point between the policy's and the expert's observations and another
one between their actions; here the two are one. Left out of the authors' code: spectral
normalization, label smoothing, the entropy bonus of the discriminator, Huber losses and the softer
minimum of the critics, n-step returns and parameter noise.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.algorithms.continuous_control.td3 import TINY as TINY_TD3
from jaxrl.algorithms.continuous_control.td3 import Config as TD3Config
from jaxrl.algorithms.continuous_control.td3 import td3
from jaxrl.algorithms.imitation.shared.adversarial import (
    Beside,
    Discriminator,
    adversarial,
    discriminator_loss,
    gradient_of,
    log_odds,
    step_discriminator,
)
from jaxrl.algorithms.imitation.shared.demonstrations import SMALL_DEMONSTRATIONS, Demonstrations
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, Source, Transition, struct
from jaxrl.kit import AlgorithmBuilder, Loss, Minibatch, Net, Part, Recipe, group, hyper, loss
from jaxrl.kit.groups import INF
from jaxrl.kit.normalization import Moments, add, no_moments
from jaxrl.networks import encoders
from jaxrl.networks.critics import ActionValues


@group
class Config(TD3Config):
    """Settings of off-policy adversarial imitation with a Lipschitz reward: TD3 on the reward of a
    discriminator with bounded slopes (arXiv:2006.16785)."""

    demonstrations: Demonstrations = Demonstrations()
    discriminator: Discriminator = Discriminator(penalized=True, one_sided=True)
    preconditioned: bool = False
    """Shrink rewards where a learned model of the dynamics is steep."""
    dynamics_slope: float = hyper(9.0, low=0, high=INF)
    """Slope of the learned dynamics above which rewards shrink. 9: authors' code."""
    floor: float = hyper(0.7, low=0, high=1)
    """Smallest factor on rewards. 0.7: authors' code."""


@struct
class Pessimism:
    """Extra state: how steep the learned dynamics were, and the factor on rewards that follows."""

    steepness: Moments
    factor: Array


def recipe(env: Environment, config: Config) -> Recipe:
    torso, optimizer = config.discriminator.torso, config.discriminator.optimizer
    space, timestep = env.observation_space, example_timestep(env)
    inputs = (timestep, spaces.example(env.action_space)[None])
    size = encoders.flatten(space, timestep.observation).shape[-1]
    more = (torso.activation, torso.initializer)
    model = ActionValues(space, env.action_space, torso.hidden, 1, *more, outputs=size)

    @loss("dynamics")
    def dynamics_loss(net: Net, x: Transition) -> Array:
        """Regress the next observation."""
        after = encoders.flatten(space, x.next_timestep.observation)
        return losses.squared_error(net.dynamics(x.timestep, x.action)[..., 0], after).mean(-1)

    def total(net: Net, x: Transition) -> Array:
        return net.dynamics(x.timestep, x.action)[..., 0].sum(-1)

    def train(net: Net, discriminator_loss: Loss, x: Beside, batch: Batch) -> Net:
        rows = Minibatch(x, batch.mask, batch.weight)
        net = net.descend(discriminator_loss, rows)
        if not config.preconditioned:
            return net
        net = net.descend(dynamics_loss, dataclasses.replace(rows, x=x.played))
        slope = gradient_of(total, net, x.played)
        penalty = losses.gradient_penalty(slope, net.hyper.dynamics_slope, True).mean()
        steepness = add(net.extra.steepness, penalty)
        scaled = penalty / jnp.maximum(steepness.deviation, 1e-8)
        factor = losses.lipschitz_preconditioner(scaled, net.hyper.floor)
        return net.replace(extra=Pessimism(steepness, factor)).report(reward_factor=factor)

    def reward(net: Net, x: Transition) -> Array:
        paid = losses.adversarial_reward(log_odds(net, x))
        return paid * net.extra.factor if config.preconditioned else paid

    pessimistic: Any = {
        "more_parts": {"dynamics": Part(model, inputs, optimizer)},
        "more_losses": (dynamics_loss,),
        "extra": Pessimism(no_moments(()), jnp.float32(1)),
    }
    return adversarial(
        td3.recipe(env, config),
        env,
        {"discriminator": step_discriminator(env, config.discriminator)},
        discriminator_loss(("discriminator",), log_odds, config.discriminator),
        train,
        reward,
        **(pessimistic if config.preconditioned else {}),
    )


def source(env: Environment, config: Config) -> Source:
    x = config.replay
    return config.demonstrations.beside(env, x.source(env), x.batch_size, x.num_shards)


lipschitz_gail = AlgorithmBuilder(
    "lipschitz_gail", Config, recipe, source, check=deterministic.check
)

TINY = (
    {k: v for k, v in TINY_TD3.items() if k != "hidden"}
    | SMALL_DEMONSTRATIONS
    | {"discriminator.torso.hidden": (8,), "torso.hidden": (8,), "preconditioned": True}
)
