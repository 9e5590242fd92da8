"""Signals: each agent has to name its own signal, and only another agent has seen which that is.

Every one of `agents` has a signal, one of `signals`, drawn for each alone. Agent i sees that of
agent i + 1, and the last one that of agent 0, and nobody sees its own. All name a signal at the
same time, once. Actions: the signal that an agent names. Observation of each agent, float32 [10 +
signals], of the same length for any number of agents: its own name and that of the agent it
watches, each as five signs (a binary number, so there are up to 32 agents), and the signal of the
watched agent, one-hot. Reward, which all share, and metric `named`: the share of the agents that
named their own signal. Terminates after one step. Privileged: `state`, all signals, one-hot.
Expert: knows all signals.

Agents that tell each other what they see before they act can always earn 1. Agents that act by
their own observations earn 1 / signals on average, whatever they do, since an agent's own signal is
independent of everything that it sees; so does random play.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least

BITS = 5  # of a name


@struct
class State:
    signal: Array  # int32 [N], of each agent
    named: Array  # int32 [N], what it named; -1 before


@functools.cache
def signals(agents: int = 3, signals: int = 4) -> Environment:
    """2 to 32 `agents`, each with one of 2 or more `signals`."""
    name = "signals"
    at_least(name, "agents", agents, 2)
    at_least(name, "signals", signals, 2)
    if agents > 2**BITS:
        raise UserError(f"The agents of '{name}' are {agents}; they have names for {2**BITS}.")
    names = tuple(f"agent_{i}" for i in range(agents))
    watched = np.roll(np.arange(agents), -1)
    code = np.where(np.arange(agents)[:, None] >> np.arange(BITS) & 1, 1.0, -1.0)
    told = jnp.asarray(np.concatenate([code, code[watched]], 1), jnp.float32)

    def channels(state: State) -> tuple[dict, dict]:
        """Return the observations and the other channels."""
        one_hot = jax.nn.one_hot(state.signal, signals)
        seen = jnp.concatenate([told, one_hot[watched]], 1)
        right = (state.named == state.signal).mean(dtype=jnp.float32)
        more = {"privileged": {"state": one_hot.reshape(-1)}, "metrics": {"named": right}}
        return {n: seen[i] for i, n in enumerate(names)}, more

    def reset(key: Key, params: tuple) -> tuple[State, TimeStep]:
        del params
        signal = jax.random.randint(key, (agents,), 0, signals)
        state = State(signal, jnp.full(agents, -1, jnp.int32))
        seen, more = channels(state)
        return state, timesteps.first(seen, **more)

    def step(key: Key, state: State, action: dict, params: tuple) -> tuple[State, TimeStep]:
        del key, params
        named = jnp.stack([action[n] for n in names]).astype(jnp.int32)
        state = State(state.signal, named)
        seen, more = channels(state)
        return state, timesteps.following(seen, more["metrics"]["named"], True, **more)

    def expert(state: State, params: tuple) -> dict:
        del params
        return {n: state.signal[i] for i, n in enumerate(names)}

    def render(state: State, params: tuple) -> np.ndarray:
        """Draw a row for each agent, its own signal green, and red what it named instead."""
        del params
        colors = np.full((agents, signals, 3), drawing.PAPER, np.uint8)
        own, named = np.asarray(state.signal), np.asarray(state.named)
        for i in range(agents):
            if named[i] >= 0:
                colors[i, named[i]] = drawing.RED
            colors[i, own[i]] = drawing.GREEN
        tile = int(np.clip(480 // max(colors.shape[:2]), 8, 64))
        return drawing.tiles(colors, max(tile, -(-100 // min(colors.shape[:2]))))

    return Environment(
        name=name,
        reset=reset,
        step=step,
        params=(),
        observation_space=dict.fromkeys(names, Box(-1.0, 1.0, (2 * BITS + signals,))),
        action_space=dict.fromkeys(names, Discrete(signals)),
        max_steps=1,
        render=render,
        expert=expert,
        scores={"named": "named"},
        agents=names,
    )
