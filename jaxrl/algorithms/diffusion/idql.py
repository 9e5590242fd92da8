"""Implicit diffusion Q-learning (Hansen-Estruch, Kostrikov, Janner, Kuba and Levine, 2023, "IDQL:
implicit Q-learning as an actor-critic method with diffusion policies", arXiv:2304.10573).

Implicit Q-learning gives the values, and a diffusion model clones all of the data. Its samples
become those of the policy that the values belong to, the implicit actor, when they are weighted by
how the loss of V weighs their advantages: |expectile - 1(Q < V)|. To act, one of many samples is
drawn by these weights; greedy actions are those of the largest Q, as in the authors' evaluation.

The denoiser is a perceptron with SiLU, where the authors have residual blocks with layer
normalization and dropout. Predicted clean actions are clipped to the bounds, and steps have the
variance of the posterior; the authors clip noisy actions, with noise of variance beta.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.algorithms.diffusion.shared.in_sample import InSample, in_sample_recipe
from jaxrl.algorithms.diffusion.shared.policies import (
    WITHIN_BOUNDS,
    action_size,
    check,
    denoising_error,
    from_units,
    pick,
    to_units,
    values_of,
)
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.core.types import Array, Environment
from jaxrl.diffusion import VariancePreserving
from jaxrl.kit import AlgorithmBuilder, Recipe, group, loss, static


@group
class Config(InSample):
    """Settings of IDQL: implicit Q-learning, and samples of a cloned diffusion policy that are
    weighted by their values (arXiv:2304.10573)."""

    levels: int = static(5, low=1)
    """Number of denoising steps."""
    candidates: int = static(64, low=1)
    """Number of samples from which an action is chosen."""


def implicit_weights(q: Array, value: Array, expectile: Array) -> Array:
    """Return the weights [...] that make samples of the data those of the implicit actor of an
    expectile: |expectile - 1(Q < V)|, up to a factor."""
    return jnp.where(q > value, expectile, 1 - expectile)


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process = VariancePreserving(config.levels)

    @loss("actor")
    def actor_loss(net, x):
        """Denoise the data's actions, all alike."""
        predict = lambda noisy, level: net.actor(x.timestep, noisy, level)
        return denoising_error(process, predict, net.key(), to_units(space, x.action))

    def act(net, timestep, memory, key, greedy):
        sample_key, choice_key = jax.random.split(key)
        predict = lambda noisy, level: net.target.actor(timestep, noisy, level)
        shape = (config.candidates, *timestep.reward.shape, size)
        actions = process.sample(sample_key, predict, shape, hooks=WITHIN_BOUNDS)
        q = values_of(net.target.critic, space, timestep, actions).min(-1)
        weights = implicit_weights(q, net.value(timestep), net.hyper.expectile)
        by_weight = jax.random.categorical(choice_key, jnp.log(weights), axis=0)
        chosen = q.argmax(0) if greedy else by_weight
        return from_units(space, pick(actions, chosen)), memory, {}

    return in_sample_recipe(env, config, actor_loss, act)


idql = AlgorithmBuilder("idql", Config, recipe, check=check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "hidden": (8,),
    "levels": 2,
    "candidates": 2,
}
