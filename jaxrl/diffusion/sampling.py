"""The loop that samples from a process of noise, step by step, and the hooks that change its steps.

All that a sampler does besides denoising is a hook: guidance, inpainting, selection, and the chain
of steps itself, for algorithms that learn from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Key, struct

__all__ = ["Chain", "Hooks"]


class Predict(Protocol):
    """A network that predicts what it was trained on."""

    def __call__(self, noisy: Array, level: Array, /) -> Array:
        """Return the prediction [..., D].

        noisy: samples [..., D], as `Noised.noisy` in training.
        level: [...], as `Noised.level` in training; without the axes that share a level.
        """
        ...


@struct
class Chain:
    """All steps of a sampler, from noise to the sample: K steps between K + 1 samples."""

    samples: Array
    """[K + 1, ..., D]; the last is the result."""
    mean: Array
    """Mean of each next sample, [K, ..., D]."""
    scale: Array
    """Standard deviation of each next sample, [K]."""
    level: Array
    """Level at which each step began, as the network is given it, [K]."""


class Step(Protocol):
    """A step of a sampler."""

    def __call__(
        self, noisy: Array, denoise: Denoise, now: Any, memory: Array, key: Key, /
    ) -> tuple[Array, Array, Array]:
        """Return the mean [..., D] and scale [] of the next sample, and the memory of the step.

        denoise: noisy sample, time -> clean sample. now: times of this step.
        memory: clean sample predicted in the last step. key: noise within the step.
        """
        ...


class Denoise(Protocol):
    def __call__(self, noisy: Array, time: Any, /) -> Array:
        """Return the clean sample [..., D] that a noisy one at `time` implies."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Hooks:
    """Changes of a sampler's steps; None changes nothing.

    guide: (noisy [..., D], level []) -> gradient [..., D] of the log-probability of what is wanted,
        at the noisy sample; added to the score (Dhariwal and Nichol, 2021, "Diffusion models beat
        GANs on image synthesis", algorithm 2). A flow is not guided at time 0, where nothing is
        known of the sample yet.
    known: noisy [..., D] -> the same, with what is known of it in its place: `inpaint`.
    adjust: (mean [..., D], variance [], level []) -> mean of a step before its noise is added:
        `classifier_guidance` (the same, algorithm 1).
    choose: (candidates [N, ..., D], clean [N, ..., D]) -> [..., D], one of N next samples by the
        clean sample that each implies: `select_best`. N - 1 more predictions each step.
    candidates: N, 1 for no choice.
    bound: largest size of the numbers of a predicted clean sample; infinite for none.
    least_scale: least standard deviation of every step but the last, for exploration (DPPO). A
        sampler without noise keeps it.
    noisy_end: whether the last step has that least standard deviation too, as it must where every
        step is to have a density.
    draw: (candidates [N, ..., D], level [] at which they lie, key) -> [..., D], one of N next
        samples by a value of these themselves, drawn at random if wished (SVDD).
    shift: (noisy [..., D], denoise, number of the step []) -> where the step begins instead, with
        `denoise` a function from noisy samples at its level to clean ones: `policy_guidance`.
        A recorded chain has the samples before they are moved.
    temperature: factor on the standard deviation of each step's noise; below 1 for samples that are
        likelier and less diverse (Decision Diffuser). The start is not scaled.
    """

    guide: Callable[[Array, Array], Array] | None = None
    known: Callable[[Array], Array] | None = None
    adjust: Callable[[Array, Array, Array], Array] | None = None
    choose: Callable[[Array, Array], Array] | None = None
    candidates: int = 1
    bound: float = float("inf")
    least_scale: Any = 0.0
    noisy_end: bool = False
    draw: Callable[[Array, Array, Key], Array] | None = None
    shift: Callable[[Array, Callable[[Array], Array], Array], Array] | None = None
    temperature: Any = None

    def take_steps(
        self,
        key: Key,
        start: Array,
        times: Any,
        denoise: Denoise,
        step: Step,
        record: bool,
        name_level: Callable[[Any], Array],
    ) -> Any:
        """Take the steps of a sampler from the sample `start`, one for each row of `times`.

        times: pytree [K] of what `step` and `denoise` are told: `now`, `next` and `last`, a bool.
        """
        known = self.known or (lambda x: x)
        several = (self.choose or self.draw) and self.candidates > 1
        more = (self.candidates,) if several else ()

        def body(carry, item):
            noisy, memory = carry
            time, key, *number = item
            step_key, noise_key = jax.random.split(key)
            if self.shift is not None:
                noisy = self.shift(noisy, lambda x: denoise(x, time["now"]), *number)
            mean, scale, memory = step(noisy, denoise, time, memory, step_key)
            scale = self.floor_scale(scale, time["last"])
            if self.temperature is not None:
                scale = self.temperature * scale
            if self.adjust is not None:
                mean = self.adjust(mean, jnp.square(scale), name_level(time["now"]))
            after = mean + scale * jax.random.normal(noise_key, (*more, *mean.shape), mean.dtype)
            if more and self.draw is not None:
                after = self.draw(after, name_level(time["next"]), jax.random.fold_in(step_key, 1))
            elif more:
                assert self.choose is not None
                ahead = lambda x: denoise(x, time["next"])
                clean = jnp.where(time["last"], after, jax.vmap(ahead)(after))
                after = self.choose(after, clean)
            after = known(after)
            kept = (after, mean, scale, name_level(time["now"])) if record else None
            return (after, memory), kept

        start = known(start)
        count = len(times["last"])
        items = times, jax.random.split(key, count)
        items = items if self.shift is None else (*items, jnp.arange(count))
        (sample, _), kept = jax.lax.scan(body, (start, jnp.zeros_like(start)), items)
        if not record:
            return sample
        assert kept is not None
        after, mean, scale, level = kept
        return Chain(jnp.concatenate([start[None], after]), mean, scale, level)

    def floor_scale(self, scale: Array, last: Array) -> Array:
        """Return the standard deviation of a step, bounded from below."""
        floor = jnp.maximum(scale, self.least_scale)
        return floor if self.noisy_end else jnp.where(last, scale, floor)


NO_HOOKS = Hooks()
