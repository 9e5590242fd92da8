"""Adjoint matching on Gaussians, in float64: everything is linear, so the control that has no error
against the mean lean adjoint state, and the law that it ends in, are known without a network."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import diffusion
from jaxrl.algorithms.diffusion import adjoint_matching
from jaxrl.core.types import Array, Key

STEPS = 2000
Velocity = Callable[[Array, Array], Array]


def memoryless(velocity: Velocity, noisy: Array, time: Array) -> tuple[Array, Array]:
    """Return the drift and the noise scale of the memoryless process."""
    size = 1 / STEPS
    drift = adjoint_matching.drift(velocity, noisy, time, size)
    return drift, diffusion.memoryless_scale(time, size)


def constant_noise(velocity: Velocity, noisy: Array, time: Array) -> tuple[Array, Array]:
    """Return the drift and the noise scale, always 1, of another process with the flow's laws."""
    shared = jnp.full(noisy.shape[:-1], time)
    given = velocity(noisy, shared)
    return given + 0.5 * diffusion.flow_score(noisy, given, shared), jnp.ones_like(time)


def adjoints(velocity: Velocity) -> Array:
    """Return the lean adjoint state of the memoryless process at each step, [K], where the reward's
    gradient is -1 at the end; the same along all paths, since the drift is linear."""
    path, gradient = jnp.zeros((STEPS + 1, 1, 1)), -jnp.ones((1, 1))
    return adjoint_matching.lean_adjoint(velocity, path, gradient)[:, 0, 0]


def errors_of(key: Key, process: Callable[..., tuple[Array, Array]], own: bool) -> dict[str, Array]:
    """Return how far the laws of the controlled process and of the flow with its velocity are from
    the tilted law, in standard deviations of the data.

    The data are N(mean, spread^2), the reward over beta is -(x - goal)^2 / (2 width^2).
    own: whether the adjoint is that of the memoryless process; else that of `process`.
    """
    keys = jax.random.split(key, 4)
    draw = lambda i, low, high: jax.random.uniform(keys[i], (), minval=low, maxval=high)
    mean, spread = draw(0, -1.0, 1.0), draw(1, 0.3, 0.8)
    goal = mean + spread * draw(2, 1.0, 2.0)
    width = spread * draw(3, 0.5, 1.0)

    def velocity(noisy: Array, time: Array) -> Array:
        time = time[..., None]
        variance = jnp.square(1 - time) + jnp.square(time * spread)
        slope = (time * spread**2 - (1 - time)) / variance
        return mean + slope * (noisy - time * mean)

    size, times = 1 / STEPS, jnp.arange(STEPS) / STEPS

    def linear(time: Array) -> tuple[Array, Array, Array]:
        """Return slope and offset of the drift, and the noise scale."""
        at = lambda x: process(velocity, jnp.full((1,), x), time)
        (zero, scale), (one, _) = at(0.0), at(1.0)
        return (one - zero)[0], zero[0], scale

    slope, offset, scale = jax.vmap(linear)(times)
    carried = jnp.cumprod((1 + size * slope)[::-1])[::-1]
    adjoint = adjoints(velocity) if own else carried
    pull = jnp.square(scale) * adjoint / width**2  # of the distance from the goal, by the control

    def back(later: tuple[Array, Array], item: tuple[Array, ...]) -> tuple:
        """Return slope and offset of the expected end, given the point at a step."""
        (p, q), (slope, offset, pull) = later, item
        held = 1 + p * size * pull
        p, q = p * (1 + size * slope) / held, (p * size * (offset + pull * goal) + q) / held
        return (p, q), (p, q)

    ends = (jnp.ones(()), jnp.zeros(()))
    _, (p, q) = jax.lax.scan(back, ends, (slope, offset, pull), reverse=True)
    added = -pull * p, -pull * (q - goal)  # slope and offset of scale times control

    def forth(law: tuple[Array, Array], item: tuple[Array, ...]) -> tuple:
        (m, v), (slope, offset, scale) = law, item
        rate = 1 + size * slope
        return (rate * m + size * offset, rate**2 * v + size * scale**2), None

    def end_of(slope: Array, offset: Array, scale: Array) -> tuple[Array, Array]:
        begin = (jnp.zeros(()), jnp.ones(()))
        return jax.lax.scan(forth, begin, (slope, offset, scale))[0]

    own_slope = jax.vmap(lambda t: velocity(jnp.ones(1), t)[0] - velocity(jnp.zeros(1), t)[0])
    own_offset = jax.vmap(lambda t: velocity(jnp.zeros(1), t)[0])
    flow = own_slope(times) + added[0] / 2, own_offset(times) + added[1] / 2
    precision = 1 / spread**2 + 1 / width**2
    center = (mean / spread**2 + goal / width**2) / precision
    found = {}
    for name, (m, v) in {
        "process": end_of(slope + added[0], offset + added[1], scale),
        "flow": end_of(*flow, jnp.zeros(STEPS)),
    }.items():
        found[f"mean of the {name}"] = jnp.abs(m - center) / spread
        found[f"deviation of the {name}"] = jnp.abs(jnp.sqrt(v) - precision**-0.5) / spread
    return found


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the memoryless process."""
    return errors_of(key, memoryless, True)


CLAIM = Exact(
    paper=Paper(
        "Adjoint Matching: Fine-tuning Flow and Diffusion Generative Models with Memoryless "
        "Stochastic Optimal Control",
        "Domingo-Enrich, Drozdzal, Karrer and Chen",
        2025,
        "2409.08861",
        "Fine-tuned as optimal control with the memoryless noise schedule, flows and diffusion "
        "models sample p(x) exp(r(x)), without the bias of other schedules; regression onto the "
        "lean adjoint state solves that control problem.",
    ),
    claim="Of a flow to a Gaussian and a quadratic reward, the control that equals the mean lean "
    "adjoint state ends in the tilted law, with the memoryless noise and, with the same velocity, "
    "without noise; with constant noise it does not.",
    left_out="Networks, sampling, images and models of human preference. Paths have 2,000 steps, "
    "whose size the tolerance is of.",
    parts=("jaxrl/algorithms/diffusion/adjoint_matching.py", "jaxrl/diffusion/flows.py"),
    errors=errors,
    planted={
        "constant noise": jax.jit(lambda key: errors_of(key, constant_noise, False)),
    },
    tolerance=1e-2,
    effect=3e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "the adjoint is not carried back",
            "jaxrl.algorithms.diffusion.adjoint_matching:lean_adjoint",
            lambda adjoint: (
                lambda base, path, gradient: jnp.broadcast_to(-gradient, path[:-1].shape)
            ),
        ),
    ),
)
