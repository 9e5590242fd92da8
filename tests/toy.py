"""The smallest agent and source that the joint can join: no environment, compiled in no time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import metrics as m
from jaxrl.core.learn import learn
from jaxrl.core.types import Agent, Batch, Info, Source, struct

NOT = float("inf")


@struct
class AgentState:
    weight: jax.Array
    updates: jax.Array
    hyper: dict


@struct
class SourceState:
    collected: jax.Array
    sampled_from: jax.Array  # what the next sample is: changed by feedback only


def toy_agent(needs=(), hyper=None, update=None):
    """Return an agent with weight -= rate * (weight - x), which it feeds back.

    It reports NaN in update `breaks_at`.
    """

    def init(key, hyper):
        return AgentState(jax.random.normal(key), jnp.int32(0), dict(hyper))

    def act(state, timestep, memory, key, greedy):
        return state.weight, memory, {}

    def default_update(state, batch, key):
        error = state.weight - batch.transitions
        weight = state.weight - state.hyper["rate"] * error
        breaks = state.updates >= state.hyper["breaks_at"]
        loss = jnp.where(breaks, jnp.nan, 0.5 * error**2)
        weight = jnp.where(breaks, jnp.nan, weight)
        return AgentState(weight, state.updates + 1, state.hyper), Info(
            {"loss": loss}, {"weight": weight}
        )

    # NumPy arrays, as settings are: jax 0.11 and 0.12 fail for arrays of JAX that two jits close
    # over.
    defaults = {"rate": np.asarray(0.25, np.float32), "breaks_at": np.asarray(NOT, np.float32)}
    return Agent(
        "toy", init, act, update or default_update, hyper=defaults | (hyper or {}), needs=needs
    )


def toy_source(hyper=None):
    """Collects a random number; samples it plus what was fed back last."""

    def collect(state, policy, key):
        number = jax.random.normal(key) + policy.state.weight * 0.1
        collected = state.collected + 1
        metrics = {
            "number": m.mean(number),
            "most": m.Maximum(number),
            "windows": m.Sum(jnp.float32(1)),
        }
        return SourceState(collected, state.sampled_from), number, metrics

    def sample(state, fresh, key):
        return Batch(
            fresh + 0.5 * state.sampled_from + 0.01 * jax.random.normal(key), jnp.float32(0)
        )

    def feedback(state, batch, feedback):
        return SourceState(state.collected, feedback["weight"])

    return Source(
        "numbers",
        lambda key, hyper, policy: SourceState(jnp.int32(0), jnp.float32(0)),
        collect,
        sample,
        feedback,
        env_steps=1,
        hyper=hyper or {},
    )


def toy(updates=1):
    return learn(toy_agent(), toy_source(), updates)
