"""A density in the plane as an environment of one step: the action is a sample, the reward says how
good it is, and the expert draws from the density.

A toy for the fine-tuning of generative models on rewards, as images and molecules are fine-tuned:
what a model cloned from the expert should become, the density p times exp(r / beta), is known on a
grid (`jaxrl.exact.tilted`).

Observation: float32 [1], always 0. Action: a point (x, y) of the square from -1 to 1. The density p
is a mixture of `modes` (8) equally likely Gaussians of standard deviation `spread` on a circle of
radius `radius`, the first one at the right, clipped to the square. Reward: with `reward="slope"`,
`strength` x, whose gradient is constant; with `reward="modes"`, `strength` where the nearest of the
modes is the first or second of four, counted from the right, and 0 elsewhere: no gradient.
Terminates after one step. Metric: `on_mode`, whether the last action was within 3 `spread` of a
mode. Mixtures on a circle are the usual toy of such models, as in Domingo-Enrich et al. (2025),
"Adjoint matching: fine-tuning flow and diffusion generative models with memoryless stochastic
optimal control".
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least, one_of

REWARDS = ("slope", "modes")


@struct
class Params:
    radius: float = 0.6  # of the circle of modes, from 0 to 1
    spread: float = 0.08  # standard deviation of each mode, positive
    strength: float = 1.0  # reward of what is best


@struct
class State:
    demonstration: Array  # float32 [2]: what the expert would draw


def centers(modes: int, params: Params) -> Array:
    """Return the modes [M, 2]."""
    angle = 2 * np.pi * jnp.arange(modes) / modes
    return params.radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)


def nearest(modes: int, point: Array, params: Params) -> tuple[Array, Array]:
    """Return the index [...] of the mode that is nearest to each point [..., 2], and its
    distance."""
    away = jnp.square(point[..., None, :] - centers(modes, params)).sum(-1)
    return away.argmin(-1), jnp.sqrt(away.min(-1))


def log_density(modes: int, point: Array, params: Params) -> Array:
    """Return the logarithm [...] of the density of points [..., 2], without the clipping."""
    away = jnp.square(point[..., None, :] - centers(modes, params)).sum(-1)
    variance = jnp.square(jnp.asarray(params.spread))
    each = -0.5 * away / variance - jnp.log(2 * np.pi * variance * modes)
    return jax.nn.logsumexp(each, -1)


def pay(modes: int, reward: str, point: Array, params: Params) -> Array:
    """Return the reward [...] of points [..., 2]."""
    if reward == "slope":
        return params.strength * point[..., 0]
    chosen = nearest(modes, point, params)[0] % 4 < 2
    return params.strength * chosen.astype(point.dtype)


@functools.cache
def mixture(modes: int = 8, reward: str = "slope") -> Environment:
    """The mixture of Gaussians on a circle. Raises `UserError` for no mode and an unknown
    reward."""
    one_of("mixture", "reward", reward, REWARDS)
    at_least("mixture", "modes", modes, 1)
    empty = jnp.zeros(1, jnp.float32)

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        mode_key, noise_key = jax.random.split(key)
        at = centers(modes, params)[jax.random.randint(mode_key, (), 0, modes)]
        noise = params.spread * jax.random.normal(noise_key, (2,), jnp.float32)
        drawn = jnp.clip(at + noise, -1.0, 1.0).astype(jnp.float32)
        return State(drawn), timesteps.first(empty, metrics={"on_mode": jnp.zeros(())})

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        distance = nearest(modes, action, params)[1]
        metrics = {"on_mode": (distance < 3 * params.spread).astype(jnp.float32)}
        paid = pay(modes, reward, action, params)
        return state, timesteps.following(empty, paid, jnp.bool_(True), metrics=metrics)

    return Environment(
        name="mixture",
        reset=reset,
        step=step,
        params=Params(),
        observation_space=Box(0.0, 0.0, (1,)),
        action_space=Box(-1.0, 1.0, (2,)),
        max_steps=1,
        scores={"on_mode": "on a mode"},
        render=functools.partial(_draw, modes, reward),
        expert=lambda state, params: state.demonstration,
        log_density=lambda action, params: log_density(modes, action, params),
        state_of=lambda timestep: State(jnp.zeros(2, jnp.float32)),
    )


def _draw(modes: int, reward: str, state: State, params: Params) -> np.ndarray:
    """Draw the modes, green where the reward is positive, and what the expert would draw."""
    canvas = drawing.Canvas(280, 280, scale=130.0, origin=(140, 140))
    for center in np.asarray(centers(modes, params)):
        good = float(pay(modes, reward, jnp.asarray(center), params)) > 0
        color = drawing.GREEN if good else drawing.BLUE
        canvas.circle(tuple(center), 2 * float(params.spread), color)
    canvas.circle(tuple(np.asarray(state.demonstration)), 0.03, drawing.INK)
    return canvas.frame()
