"""Set the gate of a long channel so that the flow at its other end is the one that is demanded.

Observation: float32 [52]: the flow at the end of the channel, the demanded flow, the flows at the
end of the last 25 steps, and the last 25 actions (as clipped), newest first; flows in [0, 200].
Action: float32 [1], the change of the flow through the gate, clipped to [-1, 1]. What enters the
channel arrives 19 steps later. The demand changes with probability 0.003 per step, to 50, 80, 110
or 140, and nothing says when. Reward: ((200 - |flow - demand|) / 100)^2 - 3, at most 1. Never
terminates; time limit 1,000 steps. The task "Pipeline" of NeoRL-2 (Gao et al., 2025, "NeoRL-2: Near
real-world benchmarks for offline reinforcement learning with extended realistic scenarios",
arXiv:2503.19267), as in the authors' code. The expert moves the gate toward the demand as fast as
it can.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.wrappers.time_limit import time_limit

SEGMENTS = 20  # of the channel: 100 long, and the water moves 5 in a step
HISTORY = 25  # steps that are observed
LARGEST_FLOW = 200.0
DEMANDS = (50.0, 80.0, 110.0, 140.0)


@struct
class Params:
    change: float = 0.003  # probability per step that the demand is drawn anew
    lowest_start: float = 80.0  # lower bound of the flow at the start
    highest_start: float = 120.0  # upper bound of the flow at the start


@struct
class State:
    flows: Array  # [20]: along the channel, from the gate to the end
    demand: Array
    seen: Array  # [26]: flows at the end, the newest first
    actions: Array  # [25]: the newest first


@functools.cache
def pipeline() -> Environment:
    """The channel, limited to 1,000 steps."""
    bound = (LARGEST_FLOW,) * (2 + HISTORY) + (1.0,) * HISTORY
    low = (0.0,) * (2 + HISTORY) + (-1.0,) * HISTORY
    return time_limit(
        Environment(
            name="pipeline",
            reset=_reset,
            step=_step,
            params=Params(),
            observation_space=Box(low, bound, (len(bound),)),
            action_space=Box(-1.0, 1.0, (1,)),
            render=_render,
            expert=_expert,
        ),
        1000,
    )


def _observation(state: State) -> Array:
    now = jnp.stack([state.seen[0], state.demand])
    return jnp.concatenate([now, state.seen[1:], state.actions])


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    flow_key, demand_key = jax.random.split(key)
    bounds = params.lowest_start, params.highest_start
    flow = jax.random.uniform(flow_key, (), jnp.float32, *bounds)
    demand = jax.random.choice(demand_key, jnp.float32(DEMANDS))
    ones = functools.partial(jnp.full, fill_value=flow)
    state = State(ones(SEGMENTS), demand, ones(HISTORY + 1), jnp.zeros(HISTORY))
    return state, timesteps.first(_observation(state))


def _step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
    change_key, demand_key = jax.random.split(key)
    changes = jax.random.uniform(change_key) < params.change
    other = jax.random.choice(demand_key, jnp.float32(DEMANDS))
    demand = jnp.where(changes, other, state.demand)
    change = jnp.clip(action, -1.0, 1.0)
    push = lambda new, past: jnp.concatenate([new, past[:-1]])
    gate = jnp.clip(state.flows[:1] + change, 0.0, LARGEST_FLOW)
    flows = push(gate, state.flows)
    state = State(flows, demand, push(flows[-1:], state.seen), push(change, state.actions))
    error = jnp.abs(flows[-1] - demand)
    reward = jnp.square((LARGEST_FLOW - error) / 100) - 3
    return state, timesteps.following(_observation(state), reward)


def _expert(state: State, params: Params) -> Array:
    del params
    return jnp.clip(state.demand - state.flows[:1], -1.0, 1.0)


def _render(state: State, params: Params) -> np.ndarray:
    """Draw the flow along the channel, and the demand at its end."""
    del params
    canvas = drawing.Canvas(420, 220, 1.0, (10, 210))
    width = 400 / SEGMENTS
    for i, flow in enumerate(np.asarray(state.flows)):
        left, right = i * width, (i + 1) * width - 2
        corners = [(left, 0.0), (right, 0.0), (right, float(flow)), (left, float(flow))]
        canvas.polygon(corners, drawing.BLUE)
    demand = float(state.demand)
    canvas.line([(400 - 2 * width, demand), (400.0, demand)], drawing.RED, 4)
    return canvas.frame()
