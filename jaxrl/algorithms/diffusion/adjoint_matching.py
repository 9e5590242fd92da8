"""Adjoint matching (Domingo-Enrich, Drozdzal, Karrer and Chen, 2025, "Adjoint matching: fine-tuning
flow and diffusion generative models with memoryless stochastic optimal control").

A flow is fine-tuned on a differentiable reward as a problem of optimal control: the control is what
its velocity adds to that of the frozen model, its cost the squared control. With the noise at which
samples forget the noise that they began with (`diffusion.memoryless_scale`), the controlled process
ends in the law p(x) exp(r(x) / beta), and so does the flow without noise that has the same
velocity. The control is regressed onto the lean adjoint state: the negative gradient of the reward
at the end of a sampled path, carried back along it by the derivative of the frozen model's drift
alone.

The paper fine-tunes models of images from text on models of human preference; here the samples are
actions of one step, and the reward is the environment's, whose gradient is taken through its step.
Every step of a path is regressed at, where the paper draws some of them, and there is no bound on
the error of a step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import diffusion, losses
from jaxrl.algorithms.diffusion.shared import fine_tuning
from jaxrl.algorithms.diffusion.shared.fine_tuning import (
    FineTuning,
    begin_as_cloned_with,
    check_known_reward,
    generator_parts,
    measure_tilted,
    reward_of,
    tilted_scores,
)
from jaxrl.algorithms.diffusion.shared.policies import action_size, from_units
from jaxrl.core.types import Array, Environment, Key
from jaxrl.diffusion import Flow
from jaxrl.diffusion.sampling import Predict
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper, loss, static


@group
class Config(FineTuning):
    """Settings of adjoint matching: fine-tuning of a flow on rewards (arXiv:2409.08861)."""

    steps: int = static(20, low=2)
    """Number of steps of a sampled path."""
    beta: float = hyper(0.2, above=0, log=True)
    """Weight of the divergence from the frozen model, in units of the reward."""


def drift(velocity: Predict, noisy: Array, time: Array, offset: float) -> Array:
    """Return the drift [..., D] of the memoryless process at a time []."""
    shared = jnp.full(noisy.shape[:-1], time)
    return diffusion.memoryless_drift(noisy, velocity(noisy, shared), shared, offset)


def sample_path(key: Key, velocity: Predict, shape: tuple[int, ...], steps: int) -> Array:
    """Return points [K + 1, ..., D] of paths of the memoryless process, from noise to samples."""
    size = 1 / steps

    def step(noisy: Array, item: Any) -> tuple[Array, Array]:
        time, noise = item
        scale = diffusion.memoryless_scale(time, size)
        noisy = noisy + size * drift(velocity, noisy, time, size) + jnp.sqrt(size) * scale * noise
        return noisy, noisy

    start_key, key = jax.random.split(key)
    start = jax.random.normal(start_key, shape)
    noise = jax.random.normal(key, (steps, *shape))
    _, points = jax.lax.scan(step, start, (jnp.arange(steps) / steps, noise))
    return jnp.concatenate([start[None], points])


def lean_adjoint(base: Predict, path: Array, gradient: Array) -> Array:
    """Return the lean adjoint state [K, ..., D] at the points of a path but the last.

    base: velocity of the frozen model. path: [K + 1, ..., D]. gradient: of the reward over beta, at
    the path's end, [..., D].
    """
    steps = len(path) - 1
    size = 1 / steps

    def back(adjoint: Array, item: Any) -> tuple[Array, Array]:
        noisy, time = item
        _, pull = jax.vjp(lambda x: drift(base, x, time, size), noisy)
        adjoint = adjoint + size * pull(adjoint)[0]
        return adjoint, adjoint

    times = jnp.arange(steps) / steps
    _, adjoints = jax.lax.scan(back, -gradient, (path[:-1], times), reverse=True)
    return jax.lax.stop_gradient(adjoints)


def matching_error(tuned: Predict, base: Predict, path: Array, adjoint: Array) -> Array:
    """Return the squared error [...] between the control and the lean adjoint state, the mean over
    the K steps of a path.

    |2 (v - v_base) / sigma + sigma adjoint|^2
    """
    steps = len(path) - 1

    def one(noisy: Array, time: Array, adjoint: Array) -> Array:
        shared = jnp.full(noisy.shape[:-1], time)
        scale = diffusion.memoryless_scale(time, 1 / steps)
        velocities = tuned(noisy, shared), base(noisy, shared)
        return losses.adjoint_matching(*velocities, adjoint, scale)

    times = jnp.arange(steps) / steps
    return jax.vmap(one)(path[:-1], times, adjoint).mean(0)


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)

    @loss("denoiser")
    def matching_loss(net, x):
        """Regress the control of sampled paths onto the lean adjoint state."""
        path = jnp.moveaxis(x.extras["path"], -2, 0)
        tuned = lambda noisy, time: net.denoiser(x.timestep, noisy, time)
        base = lambda noisy, time: net.base(x.timestep, noisy, time)

        def total(vector):
            flat = lambda leaf: leaf.reshape(-1, *leaf.shape[x.reward.ndim :])
            timestep = jax.tree.map(flat, x.timestep)
            return reward_of(env, timestep, flat(vector), net.key("step")).sum()

        gradient = jax.grad(total)(path[-1]) / net.hyper.beta
        adjoint = lean_adjoint(base, path, gradient)
        size_of = jnp.sqrt(jnp.square(gradient).sum(-1))
        return LossOutput(matching_error(tuned, base, path, adjoint), {"slope": size_of})

    def act(net, timestep, memory, key, greedy):
        predict = lambda noisy, time: net.denoiser(timestep, noisy, time)
        shape = (*timestep.reward.shape, size)
        if greedy:
            return (
                from_units(space, Flow().sample(key, predict, shape, steps=config.steps)),
                memory,
                {},
            )
        path = sample_path(key, predict, shape, config.steps)
        return from_units(space, path[-1]), memory, {"path": jnp.moveaxis(path, 0, -2)}

    return Recipe(
        parts=generator_parts(env, config),
        act=act,
        losses=(matching_loss,),
        needs=("transitions.extras.path",),
        adopt=begin_as_cloned_with("flow"),
        scores=tilted_scores(env),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, an episode is one step, and the reward
    of a sample can be computed."""
    fine_tuning.check(env, config, name)
    check_known_reward(env, name)


adjoint_matching = AlgorithmBuilder(
    "adjoint_matching",
    Config,
    recipe,
    check=check,
    measure=measure_tilted,
    goes_on_from="diffusion_bc",
)

TINY = {"env": "mixture", "num_envs": 8, "num_shards": 4, "hidden": (8,), "steps": 3}
