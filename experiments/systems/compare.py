"""Algorithms side by side: the same environment steps, seeds, tuning effort and evaluation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.core import settings
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.core.types import Algorithm, Environment, Hyper, Key
from jaxrl.evaluation.evaluate import evaluate

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class World:
    """An environment to compare algorithms in, and what all of them are told there."""

    env: str  # by name
    low: float  # the return that scores 0
    high: float  # the return that scores 1
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # by dotted names

    def make(self) -> Environment:
        return envs.make(self.env)

    def configure(self, config: Config) -> Config:
        """`config` with this world's settings, as far as it has settings of these names, or whose
        names end so."""
        known = [f".{name}" for name, _, _ in settings.walk(config)]
        has = lambda name: any(k.endswith(f".{name}") for k in known)
        return settings.replace(config, {k: v for k, v in self.settings.items() if has(k)})

    def score(self, returns: np.ndarray) -> np.ndarray:
        """Returns on a scale that worlds share: 0 at `low`, 1 at `high`."""
        return (returns - self.low) / (self.high - self.low)


# 0 is what a policy that does not learn gets in Pendulum, 1 what holds it upright.
CARTPOLE = World("cartpole", 0.0, 500.0)
PENDULUM = World(
    "pendulum",
    -1250.0,
    -150.0,
    {"discount": 0.9, "normalization.observation": True, "normalization.reward": True},
)


@functools.partial(jax.jit, static_argnums=(0, 1, 4, 5, 6))
def _curves(env, algorithm, keys, hyper, num_steps, points, episodes):
    def one(key, hyper):
        train_key, evaluation_key = jax.random.split(key)

        def part(run, key):
            run, _ = train(algorithm, run, num_steps)
            played = evaluate(env, algorithm.policy(run.state), key, episodes)
            return run, played.returns.mean()

        run = start(algorithm, train_key, hyper)
        return jax.lax.scan(part, run, jax.random.split(evaluation_key, points))[1]

    return jax.vmap(one)(keys, hyper)


def curves(
    env: Environment,
    algorithm: Algorithm,
    keys: Key,
    env_steps: int,
    points: int,
    episodes: int = 16,
    hyper: Hyper | None = None,
) -> np.ndarray:
    """Train a run for each of `keys` [runs] in one program, for `env_steps` in all, those of a
    warm-up among them. At `points` moments, evenly spaced after that and the last one at the end,
    play `episodes` complete greedy episodes with the policy so far: their mean returns, float64
    [runs, points].

    Run i and its evaluations depend on key i alone, so runs of two algorithms are paired. Each of
    `hyper` is a number or an array [runs]. Raises `UserError` unless `env_steps / points` is a
    whole number of the algorithm's steps, since budgets would differ otherwise.
    """
    num_steps, rest = divmod(env_steps - algorithm.initial_frames, algorithm.frames * points)
    if rest or num_steps < 1:
        raise UserError(
            f"{env_steps} environment steps, less {algorithm.initial_frames} at the start, in "
            f"{points} parts are no multiple of the {algorithm.frames} that '{algorithm.name}' "
            "takes at once."
        )
    spread = {k: jnp.broadcast_to(jnp.float32(v), keys.shape) for k, v in (hyper or {}).items()}
    returns = _curves(env, algorithm, keys, spread, num_steps, points, episodes)
    return np.asarray(returns, np.float64)


def tune(score: Callable[[Key, Hyper], Any], key: Key, name: str, grid: Sequence[float],
         seeds: int) -> float:  # fmt: skip
    """The value of `grid` with the best mean of `score(keys [runs], {name: [runs]})` over `seeds`
    seeds, all runs together; the first of equals."""
    keys = jnp.tile(jax.random.split(key, seeds), len(grid))
    scores = score(keys, {name: jnp.repeat(jnp.float32(grid), seeds)})
    return float(grid[int(np.argmax(np.asarray(scores).reshape(len(grid), seeds).mean(1)))])
