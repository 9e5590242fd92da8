"""Denoising chains on a line whose expected reward is computed on a grid, for claims about the
gradients that fine-tuning follows: in float64, but for the grid's points, which are float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Key, static, struct
from jaxrl.diffusion import Consistency, VariancePreserving
from jaxrl.diffusion.sampling import Hooks

SAMPLES, POINTS, REACH, LAST_SCALE = 80_000, 1001, 5.0, 0.15
HOOKS = Hooks(bound=1.0, least_scale=LAST_SCALE, noisy_end=True)  # so that every step has a density
GRID = jnp.linspace(-REACH, REACH, POINTS)
ALL = slice(None)
Process = VariancePreserving | Consistency


@struct
class Problem:
    """A denoiser of samples on a line, and a reward of these.

    theta: weights [5] of the denoiser. base: weights that a frozen model has. frequency, phase: the
    reward is a sine of the sample, or if it `jumps` 1 where that is positive and else -1.
    """

    theta: Array
    base: Array
    frequency: Array
    phase: Array
    jumps: bool = static(False)

    def reward(self, x: Array) -> Array:
        wave = jnp.sin(self.frequency * x + self.phase)
        return jnp.sign(wave) if self.jumps else wave


def draw(key: Key, jumps: bool = False) -> Problem:
    keys = jax.random.split(key, 4)
    return Problem(
        0.5 * jax.random.normal(keys[0], (5,)),
        0.5 * jax.random.normal(keys[1], (5,)),
        jax.random.uniform(keys[2], (), minval=2.0, maxval=4.0),
        jax.random.uniform(keys[3], (), minval=0.0, maxval=2 * jnp.pi),
        jumps,
    )


def output(theta: Array, noisy: Array, level: Array) -> Array:
    """Return what the denoiser with weights `theta` predicts for samples [..., 1] at levels
    [...]."""
    level = jnp.broadcast_to(level[..., None], noisy.shape)
    features = [jnp.ones_like(noisy), noisy, jnp.tanh(3 * noisy), level, jnp.sin(4 * noisy) * level]
    return 0.9 * noisy + 0.2 * (jnp.concatenate(features, -1) @ theta)[..., None]


def grids(process: Process, steps: int) -> Array:
    """Return points of the samples of a chain, [K + 1, G]."""
    begin = GRID * (process.largest if isinstance(process, Consistency) else 1.0)
    return jnp.stack([begin, *[GRID] * steps])


def steps_of(process: Process, theta: Array, steps: int) -> tuple[Array, Array, Array]:
    """Return the probabilities of each step between points, [K, G, G], the means [K, G] and scales
    [K]."""
    points = grids(process, steps)
    predict = lambda noisy, level: output(theta, noisy, level)
    mean, scale = process.rerun(predict, points[..., None], hooks=HOOKS)
    mean = mean[..., 0]
    apart = (points[1:, None, :] - mean[..., None]) / scale[:, None, None]
    return jax.nn.softmax(-jnp.square(apart) / 2, -1), mean, scale


def cell_reward(x: Problem) -> Array:
    """Return the mean reward within each cell of the grid, [G]."""
    width = GRID[1] - GRID[0]
    within = (jnp.arange(64) + 0.5) / 64 - 0.5
    return x.reward(GRID[:, None] + width * within).mean(-1)


def values(process: Process, x: Problem, theta: Array, steps: int) -> Array:
    """Return the expected reward at each point of a chain, [K + 1, G]: first of noise, last of a
    sample itself."""
    moves = steps_of(process, theta, steps)[0]
    back = lambda value, move: (move @ value, move @ value)
    end = cell_reward(x)
    _, earlier = jax.lax.scan(back, end, moves, reverse=True)
    return jnp.concatenate([earlier, end[None]])


START = jax.nn.softmax(-jnp.square(GRID) / 2)


def objective(
    process: Process, x: Problem, theta: Array, steps: int, beta: float = 0.0, learned: slice = ALL
) -> Array:
    """Return the expected reward, less beta times the expected KL divergences of all steps from the
    base model's.

    learned: the steps through whose own weights gradients flow.
    """
    own, mean, scale = steps_of(process, theta, steps)
    base_mean = steps_of(process, x.base, steps)[1]
    law, total = START, jnp.zeros(())
    for k in range(steps):
        total -= beta * law @ (0.5 * jnp.square((mean[k] - base_mean[k]) / scale[k]))
        frozen = k not in range(steps)[learned]
        law = law @ (jax.lax.stop_gradient(own[k]) if frozen else own[k])
    return total + law @ cell_reward(x)


def distance(gradient: Array, exact: Array) -> Array:
    """Return the distance of two gradients, relative to the exact one."""
    return jnp.linalg.norm(gradient - exact) / jnp.linalg.norm(exact)
