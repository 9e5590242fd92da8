"""Batch-constrained Q-learning (Fujimoto, Meger and Precup, 2019, "Off-policy deep reinforcement
learning without exploration", arXiv:1812.02900): Q-learning from a dataset whose actions are those
that a generator of the data's actions makes, perturbed a little toward higher values.

The generator is a conditional variational autoencoder. A state's candidates are actions decoded
from latent vectors that are drawn from a clipped standard normal distribution; the perturbation
network moves each by at most `perturbation` half-widths. The critics' target takes the best
candidate, each worth `minimum_weight` times the smaller and else the larger of the critics' values;
the policy takes the candidate that the first critic likes best, greedily or not.

Actions count in half-widths of their bounds, as in the authors' environments, and Adam's settings
are PyTorch's there. `discrete_bcq` is the variant for discrete actions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.diffusion.shared.policies import (
    action_size,
    critics,
    from_units,
    pick,
    to_units,
    values_of,
)
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Normalization, Optimizer, Target, Torso
from jaxrl.networks.denoisers import ActionDenoiser
from jaxrl.networks.heads import check_bounded


@group
class Config:
    """Settings of BCQ: Q-learning among perturbed samples of a model of the data's actions
    (arXiv:1812.02900, algorithm 1). The defaults are those of the authors' code."""

    data: Data = Data(batch_size=100)
    torso: Torso = Torso(hidden=(400, 300))
    """Hidden layers of the critics and of the perturbation."""
    generator: Torso = Torso(hidden=(750, 750))
    """Hidden layers of the autoencoder's encoder and decoder."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of each network."""
    target: Target = Target(rate=0.005)
    normalization: Normalization = Normalization()

    latents: int = static(2, low=1)
    """Number of latent variables for each dimension of an action."""
    candidates: int = static(100, low=1)
    """Number of actions from which the policy takes the best."""
    backup_candidates: int = static(10, low=1)
    """Number of next actions of which the critics' target takes the best."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards."""
    perturbation: float = hyper(0.05, low=0)
    """Largest change of a generated action, in half-widths, Phi; 0 for none."""
    minimum_weight: float = hyper(0.75, low=0, high=1)
    """Weight of the smaller of the critics' values in the target, lambda; the larger has the
    rest."""
    divergence_weight: float = hyper(0.5, low=0)
    """Weight of the mean divergence of a latent variable from its prior, beside the mean squared
    error of an action's dimension."""
    latent_bound: float = hyper(0.5, low=0)
    """Largest magnitude of the latent variables that actions are generated from."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    count = config.latents * size

    def perturb(perturbation, hyper, timestep, unit: Array) -> Array:
        """Move actions [..., B, D] by at most Phi, in half-widths; `from_units` clips them."""
        return unit + hyper.perturbation * jnp.tanh(perturbation(timestep, unit))

    def generate(net, timestep, key, *more: int) -> Array:
        """Generate actions [*more, B, D] like the data's, in half-widths."""
        latent = jax.random.normal(key, (*more, *timestep.reward.shape, count))
        bound = net.hyper.latent_bound
        return jnp.tanh(net.decoder(timestep, jnp.clip(latent, -bound, bound)))

    @loss("encoder", "decoder")
    def generator_loss(net, x):
        """Compute the mean squared error of the reconstructed action plus the weighted mean
        divergence of its latents from the prior (the negative evidence lower bound, scaled)."""
        unit = to_units(space, x.action)
        mean, log_scale = jnp.split(net.encoder(x.timestep, unit), 2, -1)
        scale = jnp.exp(jnp.clip(log_scale, -4.0, 15.0))
        latent = mean + scale * jax.random.normal(net.key(), mean.shape)
        error = jnp.square(jnp.tanh(net.decoder(x.timestep, latent)) - unit).mean(-1)
        weight = net.hyper.divergence_weight / count
        value = losses.information_bottleneck(-error, mean, scale, weight)
        return LossOutput(value, {"reconstruction": error})

    @loss("critic")
    def critic_loss(net, x):
        """Regress on r + gamma max_n (lambda min_i Q'_i + (1 - lambda) max_i Q'_i) of perturbed
        candidates (algorithm 1)."""
        following = x.next_timestep
        unit = generate(net, following, net.key(), config.backup_candidates)
        unit = perturb(net.target.perturbation, net.hyper, following, unit)
        next_q = jnp.moveaxis(values_of(net.target.critic, space, following, unit), 0, -2)
        weights = net.hyper.discount, next_q, net.hyper.minimum_weight
        target = losses.bcq_target(scaled_reward(net, x), x.terminated, *weights)
        q = net.critic(x.timestep, x.action)
        error = losses.squared_error(q, target[..., None]).sum(-1)
        return LossOutput(error, {"value": q.mean(-1)})

    @loss("perturbation")
    def perturbation_loss(net, x):
        """Maximize the first critic's value of perturbed candidates (algorithm 1)."""
        unit = generate(net, x.timestep, net.key())
        unit = perturb(net.perturbation, net.hyper, x.timestep, unit)
        return -net.critic(x.timestep, from_units(space, unit))[..., 0]

    def act(net, timestep, memory, key, greedy):
        unit = generate(net, timestep, key, config.candidates)
        unit = perturb(net.perturbation, net.hyper, timestep, unit)
        best = values_of(net.critic, space, timestep, unit)[..., 0].argmax(0)
        return from_units(space, pick(unit, best)), memory, {}

    def network(torso: Torso, outputs: int) -> ActionDenoiser:
        more = torso.hidden, torso.activation, torso.initializer
        return ActionDenoiser(env.observation_space, outputs, *more)

    timestep, action = example_timestep(env), spaces.example(space)[None]
    optimizer, target = config.optimizer, config.target
    unit, latent = jnp.zeros((1, size)), jnp.zeros((1, count))
    return Recipe(
        parts={
            "encoder": Part(network(config.generator, 2 * count), (timestep, unit), optimizer),
            "decoder": Part(network(config.generator, size), (timestep, latent), optimizer),
            "critic": Part(critics(env, config.torso, 2), (timestep, action), optimizer, target),
            "perturbation": Part(network(config.torso, size), (timestep, unit), optimizer, target),
        },
        act=act,
        losses=(generator_loss, critic_loss, perturbation_loss),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box."""
    if isinstance(env.action_space, Discrete):
        raise UserError(f"{name} needs continuous actions; discrete_bcq is for discrete ones.")
    check_bounded(env.action_space, name)


bcq = AlgorithmBuilder("bcq", Config, recipe, check=check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "torso.hidden": (8,),
    "generator.hidden": (8,),
    "candidates": 3,
    "backup_candidates": 2,
    "normalization.observation": True,
}
