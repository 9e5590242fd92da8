"""Diffusion-QL (Wang, Hunt and Zhou, 2023, "Diffusion policies as an expressive policy class for
offline reinforcement learning", arXiv:2208.06193): a diffusion policy that denoises the data's
actions and maximizes Q of its own samples, whose gradient flows through all denoising steps.

The critics learn from actions of the policy's running average. To act, many samples are drawn, and
one of them with the probability softmax(Q); greedy actions are those of the largest Q, where the
authors' code always samples. Activations are SiLU where the authors have Mish.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared.data import Data
from jaxrl.algorithms.diffusion.shared.policies import (
    WITHIN_BOUNDS,
    action_denoiser,
    action_size,
    check,
    critics,
    denoiser_inputs,
    denoising_error,
    from_units,
    pick,
    to_units,
    values_of,
)
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.core import spaces
from jaxrl.core.types import Environment
from jaxrl.diffusion import VariancePreserving
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Normalization, Optimizer, Target, Torso


@group
class Config:
    """Settings of Diffusion-QL: a diffusion policy that is cloned and maximizes Q
    (arXiv:2208.06193, algorithm 1)."""

    data: Data = Data()
    torso: Torso = Torso(hidden=(256, 256, 256), activation="silu")
    critic: Optimizer = Optimizer(learning_rate=3e-4, max_grad_norm=1.0)
    """Optimizer settings of the critics. Adam, 3e-4, gradients clipped to 1: authors' code."""
    actor: Optimizer = Optimizer(learning_rate=3e-4, max_grad_norm=1.0)
    """Optimizer settings of the policy. Adam, 3e-4, gradients clipped to 1: authors' code."""
    target: Target = Target(rate=0.005)
    average: Target = Target(rate=0.005, period=5)
    """Running average of the policy, of which the critics' next actions are samples. Rate 0.005 in
    every fifth update: authors' code."""
    normalization: Normalization = Normalization()

    levels: int = static(5, low=1)
    """Number of denoising steps."""
    candidates: int = static(50, low=1)
    """Number of samples from which an action is chosen."""
    backup_candidates: int = static(1, low=1)
    """Number of next actions of which the critics' target takes the largest value; 1 for none, 10
    in the authors' `max_q_backup`, for AntMaze."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards."""
    eta: float = hyper(1.0, low=0)
    """Weight of the value relative to cloning; 0 for cloning alone."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process = VariancePreserving(config.levels)

    def sample(actor, timestep, key, count=None):
        """Draw one action [B, D], or `count` of them [count, B, D], of the policy `actor`."""
        more = () if count is None else (count,)
        shape = (*more, *timestep.reward.shape, size)
        predict = lambda noisy, level: actor(timestep, noisy, level)
        return process.sample(key, predict, shape, hooks=WITHIN_BOUNDS)

    @loss("critic")
    def critic_loss(net, x):
        """Regress on r + gamma min_i Q'_i(s', a'), a' of the policy's running average."""
        count = config.backup_candidates
        action = sample(net.target.actor, x.next_timestep, net.key(), count)
        after = values_of(net.target.critic, space, x.next_timestep, action).max(0).min(-1)
        reward = net.hyper.reward_scale * x.reward
        target = losses.td_target(reward, x.terminated, net.hyper.discount, after)
        q = net.critic(x.timestep, x.action)
        error = losses.squared_error(q, target[..., None]).sum(-1)
        return LossOutput(error, {"value": q.mean(-1)})

    @loss("actor")
    def actor_loss(net, x):
        """Denoise the data's actions, and maximize one of two critics, chosen at random and divided
        by the mean size of the other."""
        predict = lambda noisy, level: net.actor(x.timestep, noisy, level)
        cloning = denoising_error(process, predict, net.key("noise"), to_units(space, x.action))
        action = sample(net.actor, x.timestep, net.key("sample"))
        q = net.critic(x.timestep, from_units(space, action))
        chosen = jax.random.randint(net.key("critic"), (), 0, 2)
        other = jax.lax.stop_gradient(jnp.abs(q[..., 1 - chosen]).mean())
        improvement = -q[..., chosen] / other
        return LossOutput(cloning + net.hyper.eta * improvement, {"cloning_loss": cloning})

    def act(net, timestep, memory, key, greedy):
        sample_key, choice_key = jax.random.split(key)
        actions = sample(net.actor, timestep, sample_key, config.candidates)
        q = values_of(net.target.critic, space, timestep, actions).min(-1)
        chosen = q.argmax(0) if greedy else jax.random.categorical(choice_key, q, axis=0)
        return from_units(space, pick(actions, chosen)), memory, {}

    inputs = denoiser_inputs(env)
    action = spaces.example(space)[None]
    denoiser = action_denoiser(env, config.torso)
    return Recipe(
        parts={
            "critic": Part(
                critics(env, config.torso, 2), (inputs[0], action), config.critic, config.target
            ),
            "actor": Part(denoiser, inputs, config.actor, config.average),
        },
        act=act,
        losses=(critic_loss, actor_loss),
    )


diffusion_ql = AlgorithmBuilder("diffusion_ql", Config, recipe, check=check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "hidden": (8,),
    "levels": 2,
    "candidates": 2,
    "backup_candidates": 2,
    "average.period": 2,
}
