"""Plans of random linear systems with Gaussian noise, whose laws and exact denoisers are known, for
claims about planners that are diffusion models of trajectories."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Key, TimeStep, struct
from jaxrl.diffusion import VariancePreserving

SIZE, QUIET, LOUD, START = 2, 0.05, 0.15, 0.1  # numbers of a state, and deviations of noise
PLAIN = envs.make("pendulum")
Linear = Callable[[Array, Array], Array]  # states [T + 1, S], actions [T, 1] -> numbers


def reset(key: Key, params: Any) -> tuple[Any, TimeStep]:
    state, shown = PLAIN.reset(key, PLAIN.params)
    return state, dataclasses.replace(shown, observation=jnp.zeros(SIZE), goal=jnp.zeros(SIZE))


# An environment for its spaces alone: states are seen and are goals, actions are one number.
ENV = dataclasses.replace(
    PLAIN,
    observation_space=Box(-1.0, 1.0, (SIZE,)),
    action_space=Box(-1.0, 1.0, (1,)),
    reset=reset,
)


@struct
class System:
    """A linear system and who acts in it: x' = turn x + push u + noise, u = behavior x + noise."""

    turn: Array
    push: Array
    behavior: Array
    start: Array

    def play(self, noise: Array) -> tuple[Array, Array]:
        """Return states [T + 1, S] and actions [T, 1] of standard normal noise [T + 1, S + 1]."""

        def step(state: Array, noise: Array) -> tuple[Array, tuple[Array, Array]]:
            action = self.behavior @ state + LOUD * noise[-1:]
            after = self.turn @ state + self.push * action + QUIET * noise[:-1]
            return after, (state, action)

        state = self.start + START * noise[0, :SIZE]
        last, (states, actions) = jax.lax.scan(step, state, noise[1:])
        return jnp.concatenate([states, last[None]]), actions

    def law(self, steps: int, of: Linear) -> Law:
        """Return the law of linear numbers of so many steps, in their order."""
        quiet = jnp.zeros((steps + 1, SIZE + 1))
        numbers = lambda noise: of(*self.play(noise)).ravel()
        root = jax.jacfwd(numbers)(quiet).reshape(-1, quiet.size)
        return Law(numbers(quiet), root @ root.T)


def draw(key: Key) -> System:
    keys = jax.random.split(key, 4)
    angle = jax.random.uniform(keys[0], (), minval=0.3, maxval=1.2)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turn = 0.95 * jnp.stack([jnp.stack([cos, -sin]), jnp.stack([sin, cos])])
    unit = lambda key: (lambda x: x / jnp.linalg.norm(x))(jax.random.normal(key, (SIZE,)))
    return System(turn, unit(keys[1]), 0.2 * unit(keys[2])[None], 0.3 * unit(keys[3]))


@struct
class Law:
    """A Gaussian of D numbers: mean [D], covariance [D, D]."""

    mean: Array
    covariance: Array

    def gain(self, known: np.ndarray) -> Array:
        """Return the slope [D, K] of expected numbers in those that are known, bool [D]."""
        own = self.covariance[np.ix_(known, known)] + 1e-12 * jnp.eye(int(known.sum()))
        return jnp.linalg.solve(own, self.covariance[known]).T

    def condition(self, known: np.ndarray, values: Array) -> Law:
        """Return the law where the numbers that are known, bool [D], have these values [K]."""
        gain = self.gain(known)
        mean = self.mean + gain @ (values - self.mean[known])
        return Law(mean, self.covariance - gain @ self.covariance[known])

    def denoiser(
        self, process: VariancePreserving, known: np.ndarray
    ) -> Callable[[Array, Array], Array]:
        """Return the expected clean trajectories of noisy ones [B, T, F] at levels [B], of which
        the entries `known`, bool [T, F], have no noise."""
        known = known.ravel()
        gain = self.gain(known)
        spread, basis = jnp.linalg.eigh(self.covariance - gain @ self.covariance[known])
        spread = jnp.where(spread > 1e-9, spread, 0.0)

        def predict(noisy: Array, level: Array) -> Array:
            bar = process.alpha_bars()[jnp.round(level * process.levels).astype(int)][:, None]
            x = noisy.reshape(len(noisy), -1)
            mean = self.mean + (x[:, known] - self.mean[known]) @ gain.T
            share = jnp.sqrt(bar) * spread / (bar * spread + 1 - bar)
            clean = mean + ((x - jnp.sqrt(bar) * mean) @ basis * share) @ basis.T
            return clean.reshape(noisy.shape)

        return predict


def marginal(law: Law, numbers: np.ndarray) -> Law:
    """Return the law of some of the numbers, int [K]."""
    return Law(law.mean[numbers], law.covariance[np.ix_(numbers, numbers)])


def show(observation: Array, goal: Array, count: int) -> TimeStep:
    """Return so many first time steps with this observation and goal."""
    none = jnp.zeros(count, bool)
    wide = lambda x: jnp.broadcast_to(x, (count, SIZE))
    return TimeStep(wide(observation), jnp.zeros(count), none, none, ~none, goal=wide(goal))


def errors_of_actions(actions: Array, law: Law) -> tuple[Array, Array]:
    """Return how far actions [B, N] are from a law: the largest error of a mean in deviations, and
    the relative error of the covariance."""
    deviation = jnp.sqrt(jnp.diag(law.covariance))
    mean = jnp.abs(actions.mean(0) - law.mean) / deviation
    apart = jnp.cov(actions.T) - law.covariance
    return mean.max(), jnp.linalg.norm(apart) / jnp.linalg.norm(law.covariance)
