"""Classifier-free guidance reinforcement learning (Frans, Park, Abbeel and Levine, 2025, "Diffusion
guidance is a controllable policy improvement operator", arXiv:2505.23458).

A flow clones the data's actions, told whether each is optimal, which it is if its advantage is not
negative, and in a part of the cases told nothing. Guidance from the flow that is told nothing
toward the flow that is told "optimal" stands for the product policy pi(a | s) p(optimal | s, a)^w,
which improves with the weight w: 0 is the data's policy, 1 the clone of its optimal actions. The
weight is a setting of acting alone and needs no training.

The advantages are those of implicit Q-learning. The paper's goal-conditioned form, which needs no
values, is not here. That the condition is dropped for a tenth of the actions is from ports of the
authors' goal-conditioned code; they are told of actions that are not optimal too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import diffusion
from jaxrl.algorithms.diffusion.shared.in_sample import InSample, in_sample_recipe
from jaxrl.algorithms.diffusion.shared.policies import (
    action_size,
    check,
    denoising_error,
    from_units,
    to_units,
)
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.core.types import Array, Environment
from jaxrl.diffusion import Flow
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper, loss, static

# What the flow is told of an action.
NOTHING, NOT_OPTIMAL, OPTIMAL = 0, 1, 2
KINDS = 3


@group
class Config(InSample):
    """Settings of CFGRL: a flow policy guided toward optimal actions (arXiv:2505.23458)."""

    steps: int = static(10, low=1)
    """Number of steps of the flow."""
    drop: float = hyper(0.1, low=0, high=1)
    """Probability that the flow is not told in training whether an action is optimal."""
    guidance: float = hyper(3.0, low=0)
    """Weight w of the guidance toward optimal actions when acting: 0 for the data's policy, 1 for
    the clone of its optimal actions, more for larger improvements."""


def conditions(key: Array, advantage: Array, drop: Array) -> Array:
    """Return what the flow is told of actions with these advantages [B], one-hot [B, KINDS]."""
    kind = jnp.where(advantage >= 0, OPTIMAL, NOT_OPTIMAL)
    dropped = jax.random.uniform(key, advantage.shape) < drop
    return jax.nn.one_hot(jnp.where(dropped, NOTHING, kind), KINDS)


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process = Flow()

    @loss("actor")
    def actor_loss(net, x):
        """Match the flow to the data's actions, given whether they are optimal."""
        advantage = net.target.critic(x.timestep, x.action).min(-1) - net.value(x.timestep)
        told = conditions(net.key("drop"), jax.lax.stop_gradient(advantage), net.hyper.drop)
        predict = lambda noisy, level: net.actor(x.timestep, noisy, level, told)
        error = denoising_error(process, predict, net.key("noise"), to_units(space, x.action))
        return LossOutput(error, {"optimal": (advantage >= 0).astype(jnp.float32)})

    def act(net, timestep, memory, key, greedy):
        told = jax.nn.one_hot(jnp.array([NOTHING, OPTIMAL]), KINDS)[:, None]

        def predict(noisy, level):
            both = [jnp.stack([x, x]) for x in (noisy, level)]
            plain, optimal = net.target.actor(timestep, *both, told)
            return diffusion.classifier_free_guidance(optimal, plain, net.hyper.guidance)

        shape = (*timestep.reward.shape, size)
        action = process.sample(key, predict, shape, steps=config.steps)
        return from_units(space, action), memory, {}

    return in_sample_recipe(env, config, actor_loss, act, jnp.zeros((1, KINDS)))


cfgrl = AlgorithmBuilder("cfgrl", Config, recipe, check=check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "hidden": (8,),
    "steps": 2,
}
