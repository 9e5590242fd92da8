"""Soft value-based decoding of a diffusion model on a line: the laws of its chain and the soft
values of noisy samples are computed on a grid, in float64, and samples are drawn by the algorithm's
own acting."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs, losses
from jaxrl.algorithms.diffusion import svdd
from jaxrl.algorithms.diffusion.shared.policies import WITHIN_BOUNDS
from jaxrl.core.types import Array, Key, struct
from jaxrl.diffusion import VariancePreserving

STEPS, CANDIDATES, SAMPLES, BETA, SPREAD = 20, 32, 4096, 0.5, 0.12
POINTS, REACH, CELLS = 501, 5.0, 8
PROCESS = VariancePreserving(STEPS, "cosine")


@struct
class Problem:
    """A density on a line, a mixture of Gaussians with these centers, and a reward that jumps
    between 0 and 1 where sin(frequency x + phase) changes its sign."""

    center: Array
    frequency: Array
    phase: Array

    def reward(self, x: Array) -> Array:
        return (jnp.sin(self.frequency * x + self.phase) > 0).astype(x.dtype)

    def noise(self, noisy: Array, level: Array) -> Array:
        """Return the expected noise [..., 1] in samples [..., 1] at levels [...]."""
        bar = PROCESS.alpha_bars()[jnp.round(level * STEPS).astype(int)][..., None]
        variance = bar * SPREAD**2 + 1 - bar
        apart = noisy - jnp.sqrt(bar) * self.center
        weight = jax.nn.softmax(-(apart**2) / (2 * variance), -1)
        return jnp.sqrt(1 - bar) * (weight * apart / variance).sum(-1, keepdims=True)


def draw(key: Key) -> Problem:
    keys = jax.random.split(key, 3)
    return Problem(
        jnp.linspace(-0.6, 0.6, 3) + jax.random.uniform(keys[0], (3,), minval=-0.1, maxval=0.1),
        jax.random.uniform(keys[1], (), minval=5.0, maxval=8.0),
        jax.random.uniform(keys[2], (), minval=0.0, maxval=2 * jnp.pi),
    )


@struct
class Laws:
    """The model's chain on a grid: samples [G] after the last step, their probabilities under the
    model and under the tilted law, and the soft values of noisy samples, [K + 1, G]."""

    sample: Array
    model: Array
    tilted: Array
    values: Array


GRID = jnp.linspace(-REACH, REACH, POINTS)


def laws_of(x: Problem) -> Laws:
    wide = jnp.broadcast_to(GRID[:, None], (STEPS + 1, POINTS, 1))
    predict = lambda noisy, level: x.noise(noisy, level)
    mean, scale = PROCESS.rerun(predict, wide, hooks=WITHIN_BOUNDS)
    mean = mean[..., 0]
    law = jax.nn.softmax(-(GRID**2) / 2)
    end = x.reward(mean[-1])
    soft = [jnp.exp(end / BETA)]
    for k in range(STEPS - 1):  # steps before the last one, which has no noise
        step = jax.nn.softmax(-(((GRID - mean[k][:, None]) / scale[k]) ** 2) / 2, -1)
        law = law @ step
    for k in reversed(range(STEPS - 1)):
        step = jax.nn.softmax(-(((GRID - mean[k][:, None]) / scale[k]) ** 2) / 2, -1)
        soft.append(step @ soft[-1])
    tilted = law * soft[0]
    values = BETA * jnp.log(jnp.stack([jnp.exp(x.reward(GRID) / BETA), *soft]))
    return Laws(mean[-1], law, tilted / tilted.sum(), values)


def cells(x: Array, weight: Array) -> Array:
    at = jnp.clip(((x + 1) / 2 * CELLS).astype(int), 0, CELLS - 1)
    return jnp.zeros(CELLS).at[at].add(weight)


def errors_of(key: Key, scale: float = 1.0, best: bool = False) -> dict[str, Array]:
    """Return how far each of these is from what it should be.

    "model", "tilted": total variation between samples and the model's law, or the tilted law with
    guidance. "reward": the mean reward with guidance. "slope": the slope of the loss of values at
    the soft value of a sample, whose reward is 1 with the probability 0.3.
    scale: of the values. best: take the best of as many samples of the model, instead of guidance.
    """
    problem_key, plain_key, key = jax.random.split(key, 3)
    x = draw(problem_key)
    laws = laws_of(x)
    table = scale * laws.values
    env = envs.make("pendulum")  # for its actions alone, one number within bounds
    config = dataclasses.replace(svdd.Config(), steps=STEPS, candidates=CANDIDATES)
    acting = svdd.recipe(env, config).act

    def value(timestep: Any, noisy: Array, level: Array) -> Array:
        row = table[jnp.round(level.reshape(-1)[0] * STEPS).astype(int)]
        at = jnp.clip((noisy + REACH) * (POINTS - 1) / (2 * REACH), 0, POINTS - 1.001)
        low = at.astype(int)
        return row[low] + (at - low) * (row[low + 1] - row[low])

    net: Any = SimpleNamespace(
        hyper=SimpleNamespace(beta=BETA),
        base=lambda timestep, noisy, level: x.noise(noisy, level),
        value=value,
    )

    def sample(key: Key, greedy: bool) -> Array:
        timestep: Any = SimpleNamespace(reward=jnp.zeros(SAMPLES))
        return acting(net, timestep, (), key, greedy)[0][:, 0] / 2  # half-widths are 2

    plain = sample(plain_key, False)
    if best:
        several = jax.random.choice(plain_key, plain, (SAMPLES, CANDIDATES))
        at = x.reward(several).argmax(-1)[:, None]
        guided = jnp.take_along_axis(several, at, -1)[:, 0]
    else:
        guided = sample(key, True)
    each = jnp.full(SAMPLES, 1 / SAMPLES)
    apart = lambda a, law: 0.5 * jnp.abs(cells(a, each) - cells(laws.sample, law)).sum()
    soft = BETA * jnp.log(0.3 * jnp.exp(1 / BETA) + 0.7)
    chance, paid = jnp.array([0.3, 0.7]), jnp.array([1.0, 0.0])
    slope = jax.grad(lambda v: losses.itakura_saito(v, paid, -1 / BETA) @ chance)
    return {
        "model": apart(plain, laws.model),
        "tilted": apart(guided, laws.tilted),
        "reward": jnp.abs(x.reward(guided).mean() - laws.tilted @ x.reward(laws.sample)),
        "slope": jnp.abs(slope(soft)),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of guidance as it is."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Derivative-Free Guidance in Continuous and Discrete Diffusion Models with Soft "
        "Value-Based Decoding",
        "Li et al.",
        2024,
        "2408.08252",
        "Drawing each denoising step among several by soft values optimizes rewards without "
        "gradients and without fine-tuning, and keeps samples natural.",
    ),
    claim="With exact soft values, samples follow the model's density times exp(r / beta) for a "
    "reward that jumps; the best candidate of each step, the best of as many samples, and values "
    "that are too small do not.",
    left_out="Networks, discrete diffusion, and values other than the soft one. There are 32 "
    "candidates, and laws are compared by 4,096 samples in 8 cells; the tolerance is of both.",
    parts=("jaxrl/algorithms/diffusion/svdd.py", "jaxrl/diffusion/sampling.py"),
    errors=errors,
    planted={
        "the best candidate": jax.jit(lambda key: errors_of(key, 1e3)),
        "the best of as many samples": jax.jit(lambda key: errors_of(key, best=True)),
        "half the values": jax.jit(lambda key: errors_of(key, 0.5)),
    },
    tolerance=0.05,
    effect=0.06,
    seeds=10,
    minutes=3.0,
    mutations=(
        Mutation(
            "candidates are drawn by half the value",
            "jaxrl.algorithms.diffusion.svdd:draw_candidate",
            lambda draw: lambda candidates, value, key: draw(candidates, value / 2, key),
        ),
        Mutation(
            "the loss of values has another temperature",
            "jaxrl.losses:itakura_saito",
            lambda loss: lambda value, target, beta: loss(value, target, 2 * beta),
        ),
    ),
)
