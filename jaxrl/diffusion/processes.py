"""Whole processes of noise: what a network is trained on, and how samples are drawn from it.

Four values, `VariancePreserving`, `EDM`, `Flow` and `Consistency`, say how samples lose their form
in noise. Each makes training examples (`add_noise`; the last one pairs, `ends`) and samples
(`sample`) from a network that predicts what it was trained on, with the loop and the hooks of
`sampling`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Key, struct
from jaxrl.diffusion import edm, flows
from jaxrl.diffusion import variance_preserving as vp
from jaxrl.diffusion.sampling import (
    NO_HOOKS,
    Denoise,
    Hooks,
    Predict,
    Step,
)

__all__ = ["EDM", "Consistency", "Flow", "Noised", "VariancePreserving"]


@struct
class Noised:
    """Training examples of a network."""

    noisy: Array
    """Input of the network, [..., D]."""
    level: Array
    """Level of the noise, an input of the network too, [...]; one for each sample."""
    target: Array
    """Correct prediction, [..., D]."""
    weight: Array
    """Weight of the error, [...]."""


def _share(level: Array, axes: int) -> Array:
    """Return levels [...] with an axis for each further axis but the last of a sample."""
    return level.reshape(*level.shape, *(1,) * (axes - 1))


@dataclasses.dataclass(frozen=True)
class VariancePreserving:
    """Diffusion that keeps the variance of its samples, in K discrete levels of noise.

    levels: K. schedule: `linear` (Song et al., 2021, appendix C) or `cosine` (Nichol and Dhariwal,
    2021, eq. 17). rate: noise rates at both ends of the linear schedule, (0.1, 10) in the
    `vp_beta_schedule` of published diffusion policies. prediction: what the network predicts:
    `noise`, the `clean` sample, or `v`. axes: number of last axes of a sample that share a level.

    The network is given the level as k / K, from 1 / K (least noise) to 1.
    """

    levels: int
    schedule: str = "linear"
    rate: tuple[float, float] = (0.1, 10.0)
    prediction: str = "noise"
    axes: int = 1

    def alpha_bars(self) -> Array:
        """Return the share of signal of a clean sample, 1, and at each level, [K + 1]."""
        time = jnp.linspace(0.0, 1.0, self.levels + 1)
        if self.schedule == "linear":
            return vp.linear_alpha_bar(time, *self.rate)
        steps = vp.beta_from_alpha_bar(vp.cosine_alpha_bar(time)[1:])
        return jnp.concatenate([jnp.ones(1), vp.alpha_bar_from_beta(steps)])

    def add_noise(self, key: Key, clean: Array) -> Noised:
        """Add noise to clean samples [..., D] at levels drawn uniformly."""
        level_key, noise_key = jax.random.split(key)
        shape = clean.shape[: clean.ndim - self.axes]
        level = jax.random.randint(level_key, shape, 1, self.levels + 1)
        noise = jax.random.normal(noise_key, clean.shape, clean.dtype)
        alpha_bar = _share(self.alpha_bars()[level], self.axes)
        target = {
            "noise": lambda: noise,
            "clean": lambda: clean,
            "v": lambda: vp.v_target(clean, noise, alpha_bar),
        }[self.prediction]()
        noisy = vp.add_noise(clean, noise, alpha_bar)
        return Noised(noisy, level / self.levels, target, jnp.ones(shape))

    def clean(self, noisy: Array, output: Array, alpha_bar: Array) -> Array:
        """Return the clean sample [..., D] that the network's output implies."""
        if self.prediction == "clean":
            return output
        convert = vp.clean_from_noise if self.prediction == "noise" else vp.clean_from_v
        return convert(noisy, output, alpha_bar)

    def sample(
        self,
        key: Key,
        predict: Predict,
        shape: tuple[int, ...],
        *,
        steps: int | None = None,
        eta: Array | float = 1.0,
        solver: str = "ddim",
        hooks: Hooks = NO_HOOKS,
        start: Array | None = None,
        record: bool = False,
    ) -> Any:
        """Draw samples of `shape`, or return the whole `Chain` if `record`.

        steps: number of levels that are visited, evenly spaced; all by default.
        eta: noise of `ddim` steps: 1 with all levels is DDPM, 0 is the deterministic DDIM.
        solver: `ddim` or `dpm_solver`, deterministic, of second order.
        start: noise to begin with; standard normal by default.
        """
        start_key, key = jax.random.split(key)
        times = self._times(steps)
        functions = self._functions(predict, shape, eta, solver, hooks)
        start = jax.random.normal(start_key, shape) if start is None else start
        level_of = lambda level: level / self.levels
        return hooks.take_steps(key, start, times, *functions, record, level_of)

    def rerun(
        self,
        predict: Predict,
        samples: Array,
        *,
        steps: int | None = None,
        eta: Array | float = 1.0,
        hooks: Hooks = NO_HOOKS,
    ) -> tuple[Array, Array]:
        """Return the means [J, ..., D] and scales [J] of the last J steps of a chain under another
        network.

        samples: `Chain.samples` [J + 1, ..., D] of these steps, the last J + 1 of the chain.
        steps, eta, hooks: as in `sample`; of the hooks, `guide`, `bound` and the least scale count.
        """
        count = len(samples) - 1
        times = jax.tree.map(lambda x: x[-count:], self._times(steps))
        denoise, step = self._functions(predict, samples.shape[1:], eta, "ddim", hooks)

        def one(noisy: Array, time: Any) -> tuple[Array, Array]:
            unused = jax.random.key(0)  # no step of this sampler draws noise of its own
            mean, scale, _ = step(noisy, denoise, time, noisy, unused)
            return mean, hooks.floor_scale(scale, time["last"])

        return jax.vmap(one)(samples[:-1], times)

    def levels_between(self, steps: int | None = None) -> list[int]:
        """Return the levels between which a sampler steps, from K to 0, rounded evenly."""
        steps = self.levels if steps is None else min(steps, self.levels)
        return [(self.levels * (steps - i) + steps // 2) // steps for i in range(steps + 1)]

    def _times(self, steps: int | None) -> dict[str, Array]:
        """Return the levels of each step: `now`, `next` and `earlier`, and which one is `last`."""
        at = jnp.asarray(self.levels_between(steps))
        earlier = jnp.concatenate([at[:1], at[:-2]])
        last = jnp.arange(len(at) - 1) == len(at) - 2
        return {"now": at[:-1], "next": at[1:], "earlier": earlier, "last": last}

    def _functions(
        self,
        predict: Predict,
        shape: tuple[int, ...],
        eta: Array | float,
        solver: str,
        hooks: Hooks,
    ) -> tuple[Denoise, Step]:
        """Return how samples of `shape` are denoised, and the step of the sampler."""
        alpha_bar, lead = self.alpha_bars(), shape[: len(shape) - self.axes]

        def denoise(noisy, level):
            bar = alpha_bar[level]
            output = predict(noisy, jnp.full(lead, level / self.levels))
            clean = self.clean(noisy, output, bar)
            if hooks.guide is not None:
                slope = hooks.guide(noisy, level / self.levels)
                clean = clean + (1 - bar) / jnp.sqrt(bar) * slope
            return jnp.clip(clean, -hooks.bound, hooks.bound)

        def step(noisy, denoise, time, memory, key):
            clean = denoise(noisy, time["now"])
            bar, next_bar, earlier = (alpha_bar[time[n]] for n in ("now", "next", "earlier"))
            if solver == "ddim":
                return *vp.ddim_step(noisy, clean, bar, next_bar, eta), clean
            mean = vp.dpm_solver_step(noisy, clean, memory, bar, next_bar, earlier)
            return mean, jnp.zeros_like(bar), clean

        return denoise, step


@dataclasses.dataclass(frozen=True)
class EDM:
    """Diffusion in continuous noise levels with EDM's preconditioning (Karras et al., 2022,
    "Elucidating the design space of diffusion-based generative models").

    data_scale: standard deviation of the data. largest, smallest, rho: levels of the sampler.
    density: law of the levels in training: `log_normal`, whose logarithm has that `mean` and
    `deviation` (table 1), or `log_logistic` about `data_scale` with the scale 0.5, between the
    smallest and the largest level (published score-based policies). axes: as in
    `VariancePreserving`. The network is given scaled inputs and log(sigma) / 4.
    """

    data_scale: float = 0.5
    largest: float = 80.0
    smallest: float = 0.002
    rho: float = 7.0
    mean: float = -1.2
    deviation: float = 1.2
    density: str = "log_normal"
    axes: int = 1

    def draw_levels(self, key: Key, shape: tuple[int, ...]) -> Array:
        """Draw levels of the given `shape` from their law in training."""
        if self.density == "log_normal":
            return jnp.exp(self.mean + self.deviation * jax.random.normal(key, shape))
        place, scale = math.log(self.data_scale), 0.5
        ends = [(math.log(x) - place) / scale for x in (self.smallest, self.largest)]
        low, high = (1 / (1 + math.exp(-x)) for x in ends)
        share = jax.random.uniform(key, shape, minval=low, maxval=high)
        return jnp.exp(place + scale * jax.scipy.special.logit(share))

    def add_noise(self, key: Key, clean: Array) -> Noised:
        """Add noise to clean samples [..., D] at levels drawn from their law."""
        level_key, noise_key = jax.random.split(key)
        shape = clean.shape[: clean.ndim - self.axes]
        sigma = self.draw_levels(level_key, shape)
        noise = jax.random.normal(noise_key, clean.shape, clean.dtype)
        wide = _share(sigma, self.axes)[..., None]
        skip, out, into, level = edm.edm_preconditioning(wide, self.data_scale)
        noisy = clean + wide * noise
        # The weight of the loss is 1 / out^2, so that of the raw output is 1.
        target = (clean - skip * noisy) / out
        return Noised(into * noisy, level.reshape(shape), target, jnp.ones(shape))

    def sample(
        self,
        key: Key,
        predict: Predict,
        shape: tuple[int, ...],
        *,
        steps: int = 18,
        churn: float = 0.0,
        heun: bool = True,
        hooks: Hooks = NO_HOOKS,
        start: Array | None = None,
        record: bool = False,
    ) -> Any:
        """Draw samples of `shape`, or return the whole `Chain` if `record`.

        steps: number of noise levels. churn: S_churn, noise that is added before each step.
        heun: whether steps are of second order, with two predictions each.
        start: noise to begin with, of standard deviation `largest`; drawn by default.
        """
        start_key, key = jax.random.split(key)
        lead = shape[: len(shape) - self.axes]
        fraction = jnp.linspace(0.0, 1.0, steps)
        sigma = edm.karras_sigmas(fraction, self.largest, self.smallest, self.rho)
        sigma = jnp.append(sigma, 0.0)
        times = {"now": sigma[:-1], "next": sigma[1:], "last": jnp.arange(steps) == steps - 1}
        amount = min(churn / steps, 2**0.5 - 1)
        level_of = lambda sigma: 0.25 * jnp.log(sigma)

        def denoise(noisy, sigma):
            # The last of two predictions would be at level 0, where it is not used.
            sigma = jnp.maximum(sigma, self.smallest)
            into = edm.edm_preconditioning(sigma, self.data_scale)[2]
            output = predict(into * noisy, jnp.full(lead, level_of(sigma)))
            clean = edm.edm_denoised(noisy, output, sigma, self.data_scale)
            if hooks.guide is not None:
                clean = clean + jnp.square(sigma) * hooks.guide(noisy, level_of(sigma))
            return jnp.clip(clean, -hooks.bound, hooks.bound)

        def step(noisy, denoise, time, memory, key):
            now, after = time["now"], time["next"]
            if amount:
                noise = jax.random.normal(key, noisy.shape, noisy.dtype)
                noisy, now = edm.edm_churn(noisy, noise, now, amount)
            clean = denoise(noisy, now)
            mean = edm.edm_euler_step(noisy, clean, now, after)
            if heun:
                mean = edm.edm_heun_step(noisy, clean, denoise(mean, after), now, after)
            return mean, jnp.zeros_like(after), clean

        start = self.largest * jax.random.normal(start_key, shape) if start is None else start
        return hooks.take_steps(key, start, times, denoise, step, record, level_of)


@dataclasses.dataclass(frozen=True)
class Flow:
    """Flow on straight paths from noise (time 0) to data (time 1): flow matching, rectified flow.

    axes: as in `VariancePreserving`. The network is given the time, and predicts the velocity.
    """

    axes: int = 1

    def add_noise(self, key: Key, clean: Array) -> Noised:
        """Draw points on the paths to clean samples [..., D] at times drawn uniformly."""
        time_key, noise_key = jax.random.split(key)
        shape = clean.shape[: clean.ndim - self.axes]
        time = jax.random.uniform(time_key, shape)
        noise = jax.random.normal(noise_key, clean.shape, clean.dtype)
        noisy = flows.flow_interpolant(noise, clean, _share(time, self.axes))
        return Noised(noisy, time, flows.flow_velocity(noise, clean), jnp.ones(shape))

    def sample(
        self,
        key: Key,
        predict: Predict,
        shape: tuple[int, ...],
        *,
        steps: int = 10,
        hooks: Hooks = NO_HOOKS,
        start: Array | None = None,
        record: bool = False,
    ) -> Any:
        """Draw samples of `shape` by Euler's method, or return the whole `Chain` if `record`.

        steps: number of steps of equal length. start: noise to begin with; drawn by default.
        """
        start_key, key = jax.random.split(key)
        lead = shape[: len(shape) - self.axes]
        at = jnp.arange(steps + 1) / steps
        times = {"now": at[:-1], "next": at[1:], "last": jnp.arange(steps) == steps - 1}

        def denoise(noisy, time):
            clean = flows.flow_clean(noisy, predict(noisy, jnp.full(lead, time)), time)
            if hooks.guide is not None:
                size = jnp.where(time > 0, jnp.square(1 - time) / jnp.where(time > 0, time, 1), 0)
                clean = clean + size * hooks.guide(noisy, time)
            return jnp.clip(clean, -hooks.bound, hooks.bound)

        def step(noisy, denoise, time, memory, key):
            clean = denoise(noisy, time["now"])
            velocity = flows.velocity_from_clean(noisy, clean, time["now"])
            mean = flows.flow_step(noisy, velocity, time["next"] - time["now"])
            return mean, jnp.zeros_like(time["now"]), clean

        start = jax.random.normal(start_key, shape) if start is None else start
        return hooks.take_steps(key, start, times, denoise, step, record, lambda time: time)


@dataclasses.dataclass(frozen=True)
class Consistency:
    """Consistency model: a network that maps any sample of a noise path to its clean end (Song et
    al., 2023, "Consistency models").

    data_scale, largest, smallest, rho: as in `EDM`. levels: number of noise levels in training.
    axes: as in `VariancePreserving`. The network is given
    scaled inputs and log(sigma) / 4.
    """

    data_scale: float = 0.5
    largest: float = 10.0
    smallest: float = 0.01
    rho: float = 7.0
    levels: int = 40
    axes: int = 1

    def clean(self, predict: Predict, noisy: Array, sigma: Array) -> Array:
        """Return the clean samples [..., D] of noisy ones at levels sigma [...]."""
        wide = _share(sigma, self.axes)
        _, _, into, level = edm.edm_preconditioning(wide, self.data_scale)
        output = predict(into[..., None] * noisy, level.reshape(sigma.shape))
        return edm.consistency_output(noisy, output, wide, self.data_scale, self.smallest)

    def ends(self, key: Key, predict: Predict, clean: Array) -> tuple[Array, Array, Array, Array]:
        """Return what a network maps two neighbors on paths of noise to, [..., D], the noisier one
        first, and their levels [...]: the arguments of `losses.consistency` (algorithm 3)."""
        level_key, noise_key = jax.random.split(key)
        shape = clean.shape[: clean.ndim - self.axes]
        at = jax.random.randint(level_key, shape, 1, self.levels)
        noise = jax.random.normal(noise_key, clean.shape, clean.dtype)

        def end(at: Array) -> tuple[Array, Array]:
            fraction = 1 - at / (self.levels - 1)
            sigma = edm.karras_sigmas(fraction, self.largest, self.smallest, self.rho)
            return self.clean(
                predict, clean + _share(sigma, self.axes)[..., None] * noise, sigma
            ), sigma

        (first, sigma), (second, lower) = end(at), end(at - 1)
        return first, second, sigma, lower

    def sample(
        self,
        key: Key,
        predict: Predict,
        shape: tuple[int, ...],
        *,
        steps: int = 4,
        hooks: Hooks = NO_HOOKS,
        start: Array | None = None,
        record: bool = False,
    ) -> Any:
        """Draw samples of `shape` in several steps (algorithm 1), or return the whole `Chain`.

        Each step predicts the clean sample and adds noise of the next level; the last adds none,
        unless `hooks` say so.
        """
        start_key, key = jax.random.split(key)
        functions = self._functions(predict, shape, hooks)
        start = self.largest * jax.random.normal(start_key, shape) if start is None else start
        level_of = lambda sigma: 0.25 * jnp.log(jnp.maximum(sigma, self.smallest))
        return hooks.take_steps(key, start, self._times(steps), *functions, record, level_of)

    def rerun(
        self,
        predict: Predict,
        samples: Array,
        *,
        hooks: Hooks = NO_HOOKS,
    ) -> tuple[Array, Array]:
        """Return the means [K, ..., D] and scales [K] of the steps of a chain under another
        network; samples: `Chain.samples` [K + 1, ..., D]."""
        denoise, step = self._functions(predict, samples.shape[1:], hooks)
        unused = jax.random.key(0)

        def one(noisy: Array, time: Any) -> tuple[Array, Array]:
            mean, scale, _ = step(noisy, denoise, time, noisy, unused)
            return mean, hooks.floor_scale(scale, time["last"])

        return jax.vmap(one)(samples[:-1], self._times(len(samples) - 1))

    def _times(self, steps: int) -> dict[str, Array]:
        sigma = edm.karras_sigmas(jnp.arange(steps) / steps, self.largest, self.smallest, self.rho)
        last = jnp.arange(steps) == steps - 1
        return {"now": sigma, "next": jnp.append(sigma[1:], 0.0), "last": last}

    def _functions(
        self, predict: Predict, shape: tuple[int, ...], hooks: Hooks
    ) -> tuple[Denoise, Step]:
        lead = shape[: len(shape) - self.axes]

        def denoise(noisy, sigma):
            sigma = jnp.full(lead, jnp.maximum(sigma, self.smallest))
            return jnp.clip(self.clean(predict, noisy, sigma), -hooks.bound, hooks.bound)

        def step(noisy, denoise, time, memory, key):
            clean = denoise(noisy, time["now"])
            variance = jnp.square(time["next"]) - self.smallest**2
            return clean, jnp.sqrt(jnp.maximum(variance, 0.0)), clean

        return denoise, step
