"""A multi-armed bandit: every pull of an arm pays at random, and one arm pays best.

Observation: float32 [num_arms + 1]: the last arm, one-hot (zeros before the first pull), and its
reward. Action: the arm to pull. Reward: with `arms="bernoulli"`, 1 with the arm's mean as
probability, else 0; with `arms="gaussian"`, the mean plus Gaussian noise of standard deviation
`noise` (1). The means are drawn at each reset: uniform within `spread` of `means`, clipped to [0,
1] (Bernoulli; by default uniform in [0, 1]), or Gaussian about `means` with standard deviation
`spread` (by default standard normal); `spread` 0 fixes them. Terminates after `pulls` pulls: 1 by
default, more for meta-learning, where an agent with memory can find the best arm. Metrics:
`regret`, the best mean less the pulled arm's, summed over the episode, and `success`, whether the
last arm was the best one. The expert knows the means. Sutton and Barto (2018), Section 2.3; Duan et
al. (2016), "RL^2: Fast Reinforcement Learning via Slow Reinforcement Learning".
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.bandits import pulling
from jaxrl.envs.options import one_of

ARMS = ("bernoulli", "gaussian")


@struct
class Params:
    means: Any  # [A]: centers of the priors of the arms' means
    spread: float  # half width (Bernoulli) or standard deviation (Gaussian) of the priors
    noise: float = 1.0  # standard deviation of a Gaussian arm's reward


@struct
class State:
    means: Array  # [A]
    pulls: Array  # int32
    regret: Array  # float32: regret of the episode so far


@functools.cache
def bandit(num_arms: int = 10, arms: str = "bernoulli", pulls: int = 1) -> Environment:
    """The multi-armed bandit. Raises `UserError` for an unknown kind of arm, no arm or no pull."""
    one_of("bandit", "arms", arms, ARMS)
    pulling.check("bandit", num_arms, pulls)
    bernoulli = arms == "bernoulli"

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        center = jnp.asarray(params.means, jnp.float32)
        if bernoulli:
            offset = jax.random.uniform(key, (num_arms,), jnp.float32, -1.0, 1.0)
            means = jnp.clip(center + params.spread * offset, 0.0, 1.0)
        else:
            means = center + params.spread * jax.random.normal(key, (num_arms,), jnp.float32)
        state = State(means, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))
        observation = pulling.last(num_arms, jnp.int32(-1), jnp.zeros((), jnp.float32))
        return state, timesteps.first(observation, metrics=pulling.metrics(state.regret, math.inf))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        mean, gap = pulling.outcome(state.means, action)
        if bernoulli:
            reward = (jax.random.uniform(key, (), jnp.float32) < mean).astype(jnp.float32)
        else:
            reward = mean + params.noise * jax.random.normal(key, (), jnp.float32)
        state = State(state.means, state.pulls + 1, state.regret + gap)
        return state, timesteps.following(
            pulling.last(num_arms, action, reward),
            reward,
            state.pulls >= pulls,
            metrics=pulling.metrics(state.regret, gap),
        )

    # The possible rewards bound the observation of the last one.
    high = (1.0,) * (num_arms + 1) if bernoulli else (1.0,) * num_arms + (np.inf,)
    low = (0.0,) * (num_arms + 1) if bernoulli else (0.0,) * num_arms + (-np.inf,)
    center, spread = (0.5, 0.5) if bernoulli else (0.0, 1.0)
    return Environment(
        name="bandit",
        reset=reset,
        step=step,
        params=Params(np.full(num_arms, center, np.float32), spread),
        observation_space=Box(low, high, (num_arms + 1,)),
        action_space=Discrete(num_arms),
        max_steps=pulls,
        scores=pulling.SCORES,
        render=lambda state, params: pulling.bars(state.means),
        expert=lambda state, params: jnp.argmax(state.means).astype(jnp.int32),
    )
