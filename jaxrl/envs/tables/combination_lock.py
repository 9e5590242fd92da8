"""Combination locks: one sequence of actions opens them, and no reward leads to it.

`combination_lock`: in each of `length` states one of `num_actions` actions, drawn from `seed`,
moves on and every other leads back to the first state; reward 1 for the last right action, else 0.
Observation: float32 [length + 1], one-hot. Terminates when open; time limit 10 x length steps
(ours). Koenig and Simmons (1993); Kakade (2003).

`diabolical_lock`: at each of `horizon` steps the agent is in a good state (a or b, each with its
own right action of `num_actions`, drawn from `seed`) or in the dead one. The right action leads to
either good state with the same probability and pays -1 / (horizon - 1), except for the last one,
which pays 5; any other leads to the dead state and pays 0.1 with probability 1 / 2, to mislead.
Starts in a or b; terminates after `horizon` steps. Observation: float32 [3 (horizon + 1)], one-hot
over steps and kinds; or 'rich': the one-hot kind (3) and the one-hot step (horizon + 1) with
Gaussian noise of standard deviation 0.1, rotated by a Hadamard matrix of the next power of two.
Misra, Henaff, Krishnamurthy and Langford (2020), "Kinematic State Abstraction and Provably
Efficient Rich-Observation Reinforcement Learning" (HOMER); the optimal return is 4.

Success means that the lock opens; the expert always opens it.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key
from jaxrl.envs import drawing
from jaxrl.envs.tables import mdp, pictures

GOOD, KINDS = 2, 3  # good states a and b, then the dead one
RICH_NOISE = 0.1


@functools.cache
def combination_lock(
    length: int = 10, num_actions: int = 2, seed: int = 0, observation: str = "one_hot"
) -> Environment:
    """The plain lock. Raises `UserError` for a length below 1 or fewer than 2 actions."""
    _check("combination_lock", "length", length, 1, num_actions)
    right = np.random.default_rng(seed).integers(0, num_actions, length)
    is_right = np.arange(num_actions) == right[:, None]
    successor = np.where(is_right, np.arange(1, length + 1)[:, None], 0)
    successor = np.concatenate([successor, np.full((1, num_actions), length)])[..., None]
    reward = np.zeros(successor.shape)
    reward[length - 1, right[-1]] = 1.0
    table = mdp.build(successor, 1.0, reward, terminal=length, success=length)
    colors = np.full((1, length + 1, 3), drawing.SHADE)
    colors[0, -1] = drawing.GREEN
    places = np.stack([np.zeros(length + 1, int), np.arange(length + 1)], -1)
    return mdp.environment(
        "combination_lock",
        table,
        observation=observation,
        max_steps=10 * length,
        render=pictures.board(colors, places),
    )


@functools.cache
def diabolical_lock(
    horizon: int = 10,
    num_actions: int = 10,
    seed: int = 0,
    observation: str = "one_hot",
) -> Environment:
    """HOMER's lock, observed as one of `mdp.OBSERVATIONS` or as 'rich'. Raises `UserError` for a
    horizon or a number of actions below 2."""
    _check("diabolical_lock", "horizon", horizon, 2, num_actions)
    rng = np.random.default_rng(seed)
    time, kind = np.divmod(np.arange(KINDS * (horizon + 1)), KINDS)
    ended, last = time == horizon, time == horizon - 1
    right = rng.integers(0, num_actions, time.shape)
    is_right = ((np.arange(num_actions) == right[:, None]) & (kind < GOOD)[:, None])[..., None]
    onward = KINDS * (time + ~ended)[:, None, None]
    good = np.where(last, 5.0, -1 / (horizon - 1))[:, None, None]
    bad = np.where(kind < GOOD, 0.1, 0.0)[:, None, None] * np.array([1, 0])
    table = mdp.build(
        onward + np.where(is_right, [0, 1], KINDS - 1),
        0.5,
        np.where(is_right, good, bad) * ~ended[:, None, None],
        start=np.arange(GOOD),
        terminal=np.flatnonzero(ended),
        success=np.flatnonzero(ended & (kind < GOOD)),
        discount=1.0,
    )
    colors = np.full((KINDS, horizon + 1, 3), drawing.SHADE)
    colors[:GOOD, -1], colors[GOOD] = drawing.GREEN, drawing.INK
    render = pictures.board(colors, np.stack([kind, time], -1))
    rich = observation == "rich"
    seen = "index" if rich else observation
    env = mdp.environment("diabolical_lock", table, observation=seen, render=render)
    env = dataclasses.replace(env, max_steps=horizon)
    return _rich(env, horizon) if rich else env


def _rich(env: Environment, horizon: int) -> Environment:
    """Give `env` HOMER's noisy, rotated observation."""
    wanted = KINDS + horizon + 1
    size = 2 ** math.ceil(math.log2(wanted))
    rotation = np.ones((1, 1), np.float32)
    while len(rotation) < size:
        rotation = np.block([[rotation, rotation], [rotation, -rotation]])
    rotation = rotation[:, :wanted]
    # kind and step of each state, rotated
    time, kind = np.divmod(np.arange(KINDS * (horizon + 1)), KINDS)
    clean = np.concatenate([np.eye(KINDS)[kind], np.eye(horizon + 1)[time]], 1) @ rotation.T
    clean = clean.astype(np.float32)

    def emit(key: Key, index: Array) -> Array:
        noise = jax.random.normal(key, (wanted,), jnp.float32)
        return mdp.look_up(clean, index) + RICH_NOISE * (rotation @ noise)

    def with_rich_observation(function):
        def emitting(key, *arguments):
            key, noise_key = jax.random.split(key)
            state, timestep = function(key, *arguments)
            seen = emit(noise_key, state.index)
            return state, dataclasses.replace(timestep, observation=seen)

        return emitting

    return dataclasses.replace(
        env,
        reset=with_rich_observation(env.reset),
        step=with_rich_observation(env.step),
        observation_space=Box(-math.inf, math.inf, (size,)),
        state_of=None,
    )


def _check(name: str, field: str, value: int, least: int, num_actions: int) -> None:
    if value < least or num_actions < 2:
        raise UserError(
            f"'{name}' has {field}={value} and num_actions={num_actions}; they must be at least "
            f"{least} and 2."
        )
