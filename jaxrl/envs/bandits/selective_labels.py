"""Choose some of several candidates; only those that were chosen show their labels, and later.

Lenders see whether a loan is repaid only if they grant it, and processors of payments see whether a
payment goes through only in the way that they took: labels are selective, and delayed.

In each round come `candidates` (n) candidates, each of a type that is drawn evenly from `types` (K)
ones, the first `quota` (k) for certain and the others with probability `presence`. Observation: a
dict of `candidates`, float32 [n, F], the features of each one's type (zeros where there is none),
and `available`, float32 [n], 1 or 0; and of the choice of `delay` rounds ago: `seen`, float32 [k,
F], its features, `labels`, float32 [k], 1 or 0, and `known`, float32 [k], 1 where there was a
choice, else 0. With `features` above 0 a type has so many numbers (F), standard normal by the root
of F, drawn once from `seed`; with 0 they are one-hot (F = K), so that no type tells of another.
Action: float32 [n], scores; the available candidates with the `quota` highest are chosen, of equal
ones the first. The label of a candidate is 1 with probability sigmoid(bias + features . weights).
Reward: `gain` for a label of 1 and minus `loss` for one of 0, summed over the labels that arrive in
this round. Terminates after `rounds` rounds; what would arrive later is lost.

Weights are `weights` (normal with standard deviation 2, drawn from `seed`) plus normal noise of
standard deviation `spread` (0) at each reset. Metrics: `regret`, the expected reward of the best
choices minus that of those made, summed, and `success`, whether the last choice was a best one. The
expert knows the weights. The exact value of rules is in `jaxrl.exact.selection`. Made for
Kiatsupaibul et al. (2024), "Reinforcement learning in credit scoring and underwriting", and Vangara
and Egg (2024), "Contextual bandits in payment processing: non-uniform exploration and supervised
learning at Adyen".
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.bandits import pulling
from jaxrl.envs.options import at_least


@struct
class Params:
    features: Any  # [K, F]: of the types
    weights: Any  # [F]
    bias: float = 0.0  # log-odds of a label of 1 where features or weights are 0
    spread: float = 0.0  # standard deviation of the weights between episodes
    presence: float = 1.0  # probability that a candidate beyond the quota is there
    gain: float = 1.0  # reward of a label of 1
    loss: float = 0.0  # cost of a label of 0, nonnegative


@struct
class Choices:
    """Choices whose labels are known to the environment, [k, ...]."""

    features: Array  # [..., k, F]
    labels: Array  # [..., k]: 1 or 0
    known: Array  # [..., k]: 1 or 0


@struct
class State:
    weights: Array  # [F]
    kinds: Array  # int32 [n]: types of the candidates
    available: Array  # bool [n]
    pending: Choices  # [delay, k, ...], the oldest first
    rounds: Array  # int32
    regret: Array  # float32: regret of the episode so far


def chance(weights: Array, features: Array, params: Params) -> Array:
    """Return the probability [...] of a label of 1, from features [..., F] and weights [F]."""
    return jax.nn.sigmoid(params.bias + (features * weights).sum(-1))


def pay(chance: Array, params: Params) -> Array:
    """Return the expected reward [...] of a choice whose label is 1 with the given probability."""
    return params.gain * chance - params.loss * (1 - chance)


@functools.cache
def selective_labels(
    candidates: int = 4,
    quota: int = 1,
    types: int = 8,
    features: int = 4,
    delay: int = 0,
    rounds: int = 32,
    seed: int = 0,
) -> Environment:
    """The choice among candidates. Raises `UserError` for sizes that are no sizes, and for a quota
    above the number of candidates."""
    for option, value, least in (
        ("candidates", candidates, 1),
        ("quota", quota, 1),
        ("types", types, 1),
        ("features", features, 0),
        ("delay", delay, 0),
        ("rounds", rounds, 1),
    ):
        at_least("selective_labels", option, value, least)
    if quota > candidates:
        raise UserError(
            f"The quota of 'selective_labels' is {quota}; it must be at most the number of "
            f"candidates, {candidates}."
        )
    width = features or types

    def arrive(key: Key, params: Params) -> tuple[Array, Array]:
        """Draw the types of the candidates, and which are available."""
        kind_key, present_key = jax.random.split(key)
        kinds = jax.random.randint(kind_key, (candidates,), 0, types)
        present = jax.random.uniform(present_key, (candidates,)) < params.presence
        return kinds, present | (jnp.arange(candidates) < quota)

    def see(state: State, shown: Choices, params: Params) -> dict[str, Array]:
        table = jnp.asarray(params.features, jnp.float32)
        there = state.available.astype(jnp.float32)
        return {
            "available": there,
            "candidates": table[state.kinds] * there[:, None],
            "known": shown.known,
            "labels": shown.labels,
            "seen": shown.features,
        }

    def nothing(*sizes: int) -> Choices:
        zeros = jnp.zeros((*sizes, quota), jnp.float32)
        return Choices(jnp.zeros((*sizes, quota, width), jnp.float32), zeros, zeros)

    def worth(state: State, params: Params) -> Array:
        """Return the expected reward of each candidate, [n], -inf where there is none."""
        table = jnp.asarray(params.features, jnp.float32)
        paid = pay(chance(state.weights, table[state.kinds], params), params)
        return jnp.where(state.available, paid, -jnp.inf)

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        key, weights_key = jax.random.split(key)
        noise = params.spread * jax.random.normal(weights_key, (width,), jnp.float32)
        weights = jnp.asarray(params.weights, jnp.float32) + noise
        regret = jnp.zeros((), jnp.float32)
        count = jnp.zeros((), jnp.int32)
        state = State(weights, *arrive(key, params), nothing(delay), count, regret)
        observation = see(state, nothing(), params)
        return state, timesteps.first(observation, metrics=pulling.metrics(regret, math.inf))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        label_key, arrive_key = jax.random.split(key)
        lowest = jnp.finfo(jnp.float32).min
        scores = jnp.where(state.available, jnp.clip(action, lowest / 2), -jnp.inf)
        chosen = jax.lax.top_k(scores, quota)[1]
        taken = jnp.asarray(params.features, jnp.float32)[state.kinds[chosen]]
        odds = chance(state.weights, taken, params)
        labels = (jax.random.uniform(label_key, (quota,)) < odds).astype(jnp.float32)
        made = Choices(taken, labels, jnp.ones(quota, jnp.float32))
        queue = jax.tree.map(lambda old, new: jnp.append(old, new[None], 0), state.pending, made)
        shown = jax.tree.map(lambda x: x[0], queue)
        reward = (shown.known * pay(shown.labels, params)).sum()
        values = worth(state, params)
        gap = jax.lax.top_k(values, quota)[0].sum() - values[chosen].sum()
        state = State(
            state.weights,
            *arrive(arrive_key, params),
            jax.tree.map(lambda x: x[1:], queue),
            state.rounds + 1,
            state.regret + gap,
        )
        return state, timesteps.following(
            see(state, shown, params),
            reward,
            state.rounds >= rounds,
            metrics=pulling.metrics(state.regret, gap),
        )

    rng = np.random.default_rng(seed)
    table = np.eye(types) if features == 0 else rng.standard_normal((types, features))
    table = table / (math.sqrt(width) if features else 1)
    weights = 2 * rng.standard_normal(width)
    bounds = Box(-math.inf, math.inf, (quota, width))
    return Environment(
        name="selective_labels",
        reset=reset,
        step=step,
        params=Params(table.astype(np.float32), weights.astype(np.float32)),
        observation_space={
            "available": Box(0.0, 1.0, (candidates,)),
            "candidates": Box(-math.inf, math.inf, (candidates, width)),
            "known": Box(0.0, 1.0, (quota,)),
            "labels": Box(0.0, 1.0, (quota,)),
            "seen": bounds,
        },
        action_space=Box(-math.inf, math.inf, (candidates,)),
        max_steps=rounds,
        scores=pulling.SCORES,
        render=lambda state, params: pulling.bars(
            jnp.where(state.available, worth(state, params), 0.0)
        ),
        expert=lambda state, params: jnp.where(state.available, worth(state, params), 0.0),
    )
