"""A linear contextual bandit: which arm pays best depends on a context seen before each pull.

Observation: float32 [num_features + num_arms + 1]: the context, then the last arm, one-hot (zeros
before the first pull), and its reward. Action: the arm to pull. Reward: the inner product of the
context with the arm's weights, plus Gaussian noise of standard deviation `noise` (0.1). Contexts
are standard normal divided by the root of num_features, fresh for each pull. The weights are
`weights` (standard normal, drawn once from `seed`), to which each reset adds Gaussian noise of
standard deviation `spread` (0: every episode is the same problem; else a prior, for meta-learning).
Terminates after `pulls` pulls (1). Metrics: `regret`, the best arm's expected reward less the
pulled one's, summed over the episode, and `success`, whether the last arm was the best one for its
context. The expert knows the weights. Li, Chu, Langford and Schapire (2010), "A Contextual-Bandit
Approach to Personalized News Article Recommendation" (with disjoint weights).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.bandits import pulling


@struct
class Params:
    weights: Any  # [A, F]: weights of the arms
    spread: float = 0.0  # standard deviation of the weights between episodes
    noise: float = 0.1  # standard deviation of the reward's noise


@struct
class State:
    weights: Array  # [A, F]
    context: Array  # [F]
    pulls: Array  # int32
    regret: Array  # float32: regret of the episode so far


@functools.cache
def contextual_bandit(
    num_arms: int = 5, num_features: int = 8, pulls: int = 1, seed: int = 0
) -> Environment:
    """The linear bandit. Raises `UserError` for no arm, no feature or no pull."""
    pulling.check("contextual_bandit", num_arms, pulls)
    if num_features < 1:
        raise UserError(
            f"'contextual_bandit' has {num_features} features; it must have at least 1."
        )
    scale = 1 / math.sqrt(num_features)

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        numbers = jax.random.normal(key, (num_arms + 1, num_features), jnp.float32)
        weights = jnp.asarray(params.weights, jnp.float32) + params.spread * numbers[1:]
        regret = jnp.zeros((), jnp.float32)
        state = State(weights, numbers[0] * scale, jnp.zeros((), jnp.int32), regret)
        last = pulling.last(num_arms, jnp.int32(-1), regret)
        observation = jnp.concatenate([state.context, last])
        return state, timesteps.first(observation, metrics=pulling.metrics(regret, math.inf))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        mean, gap = pulling.outcome(_means(state), action)
        numbers = jax.random.normal(key, (num_features + 1,), jnp.float32)
        reward = mean + params.noise * numbers[0]
        state = State(state.weights, numbers[1:] * scale, state.pulls + 1, state.regret + gap)
        return state, timesteps.following(
            jnp.concatenate([state.context, pulling.last(num_arms, action, reward)]),
            reward,
            state.pulls >= pulls,
            metrics=pulling.metrics(state.regret, gap),
        )

    size = num_features + num_arms + 1
    weights = np.random.default_rng(seed).standard_normal((num_arms, num_features))
    return Environment(
        name="contextual_bandit",
        reset=reset,
        step=step,
        params=Params(weights.astype(np.float32)),
        observation_space=Box(-math.inf, math.inf, (size,)),
        action_space=Discrete(num_arms),
        max_steps=pulls,
        scores=pulling.SCORES,
        render=lambda state, params: pulling.bars(_means(state)),
        expert=lambda state, params: jnp.argmax(_means(state)).astype(jnp.int32),
    )


def _means(state: State) -> Array:
    """Return the expected reward of each arm, [A]."""
    return jnp.sum(state.weights * state.context, axis=-1)
