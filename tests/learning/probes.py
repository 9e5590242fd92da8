"""Environments so small that the right value and action are known (after Andy Jones, "Debugging RL,
without the agonizing pain"). Which probe is played is a parameter, so all share one program."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Environment, TimeStep, struct

DISCOUNT = 0.8
MAX_STEPS = 5


@dataclasses.dataclass(frozen=True)
class Probe:
    """The reward is constant + sign * x + push * a + match * a * x, with a in [-1, 1] the action
    and x = +-1 drawn at the reset; given at the last step only if `delayed`, and not at the first
    if `later`."""

    constant: float = 0.0
    sign: float = 0.0
    push: float = 0.0
    match: float = 0.0
    length: int = 1
    truncated: bool = False
    delayed: bool = False
    later: bool = False

    def vector(self) -> np.ndarray:
        return np.asarray(dataclasses.astuple(self), np.float32)

    def value(self, x: float, t: int) -> float:
        """Return the value of the best policy, at the t-th step of an episode."""
        last = self.length - 1
        best = self.constant + self.sign * x + abs(self.push + self.match * x)
        if self.truncated:
            return best / (1 - DISCOUNT) * (DISCOUNT if self.later and t == 0 else 1)
        steps = range(last, last + 1) if self.delayed else range(t, last + 1)
        return sum(best * DISCOUNT ** (k - t) for k in steps)

    def action(self, x: float) -> float | None:
        """The best one, None where all are as good."""
        slope = self.push + self.match * x
        return float(np.sign(slope)) if slope else None


PROBES = {
    "constant reward": Probe(constant=1.0),
    "reward equals observation": Probe(sign=1.0),
    "delayed reward": Probe(constant=1.0, length=2, delayed=True),
    "reward equals action": Probe(push=1.0),
    "reward depends on both": Probe(match=1.0),
    # 0.5 / (1 - 0.8) = 2.5; were the clock's end the task's end it would be at most 1.7.
    "truncated constant reward": Probe(constant=0.5, length=MAX_STEPS, truncated=True),
    # As much at the clock's end, unless what follows the reset is taken for the successor.
    "truncated later reward": Probe(constant=0.5, length=MAX_STEPS, truncated=True, later=True),
}


@struct
class State:
    x: jax.Array
    t: jax.Array


def probe(continuous: bool = False) -> Environment:
    """Observation: x, and t (0 at a reset, 1 after it). Action: 0 and 1 stand for -1 and 1."""

    def emit(state, reward, ended, truncated, first):
        return TimeStep(
            jnp.stack([state.x, jnp.minimum(state.t, 1).astype(jnp.float32)]),
            jnp.float32(reward),
            terminated=ended & ~truncated,
            truncated=ended & truncated,
            first=jnp.bool_(first),
        )

    def reset(key, params):
        state = State(jax.random.rademacher(key, (), jnp.float32), jnp.int32(0))
        return state, emit(state, 0.0, jnp.bool_(False), jnp.bool_(False), True)

    def step(key, state, action, params):
        constant, sign, push, match, length, truncated, delayed, later = params["probe"]
        a = jnp.clip(action[0], -1.0, 1.0) if continuous else 2.0 * action - 1
        ended = state.t + 1 >= length
        reward = constant + sign * state.x + push * a + match * a * state.x
        given = (ended | (delayed == 0)) & ((state.t > 0) | (later == 0))
        reward = jnp.where(given, reward, 0.0)
        state = State(state.x, state.t + 1)
        return state, emit(state, reward, ended, truncated > 0, False)

    return Environment(
        "continuous probe" if continuous else "probe",
        reset,
        step,
        params={"probe": PROBES["constant reward"].vector()},
        observation_space=Box(-1.0, 1.0, (2,)),
        action_space=Box(-1.0, 1.0, (1,)) if continuous else Discrete(2),
        max_steps=MAX_STEPS,
    )


def play(state, vector):
    """`state` of any algorithm with the probe replaced wherever a source keeps it."""
    found = []

    def replace(path, leaf):
        if getattr(path[-1], "key", None) != "probe":
            return leaf
        found.append(path)
        return jnp.asarray(vector)

    state = jax.tree_util.tree_map_with_path(replace, state)
    assert found, "no source of this state keeps the parameters of its environment"
    return state
