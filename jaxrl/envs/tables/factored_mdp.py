"""Environments whose state is a vector of small factors, each of which depends on a few others.

`factored_mdp`: `num_factors` factors of `num_values` values each; the next value of a factor
depends on the action (of `num_actions`) and on the present values of its `num_parents` parents
(itself and others), by conditional tables drawn from `seed` (uniform on the simplex). Reward: the
mean over the factors of a term for each factor's present value (uniform in [0, 1]). Starts
uniformly at random. Boutilier, Dearden and Goldszmidt (1995), "Exploiting Structure in Policy
Construction".

`sysadmin`: a ring of `num_machines` machines that are up or down. A running machine keeps running
with probability 0.75, or 1 if the machine before it in the ring runs too; a stopped one recovers by
itself with probability `recovery` (0.1). Action: 0 does nothing, i reboots machine i, which then
runs. Reward: the number of machines that run before the step, less `reboot_cost` (0.75) for a
reboot. Starts with all machines running. Guestrin, Koller, Parr and Venkataraman (2003), "Efficient
Solution Algorithms for Factored MDPs"; the numbers are those of the RDDL domain `sysadmin_mdp`
(Sanner 2010), 0.5 + 0.5 (1 + running neighbors) / (1 + neighbors) on a ring.

Both have the observation float32 [num_factors * num_values], the one-hot values side by side, never
terminate, and are limited to 40 steps. The expert is optimal at a discount of 0.95, for the tables
that the environment was built with; an environment of more than 1,024 joint states has none.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.tables import mdp, pictures
from jaxrl.envs.wrappers.time_limit import time_limit

DISCOUNT = 0.95
MAX_STEPS = 40
LARGEST_JOINT = (
    1024  # states; a larger environment is not solved when it is built and has no expert
)


@struct
class Params:
    """Parameters for `D` factors of `V` values with `P` parents each and `A` actions."""

    conditional: Any  # [D, A, V ** P, V]: P(next value | parents' values, first highest)
    parents: Any  # int32 [D, P]: parents of each factor
    reward: Any  # [D, V]: reward for each factor's value before the step
    action_reward: Any  # [A]: reward for each action
    initial: Any  # [D, V]: distribution of each factor's first value
    optimal: Any = None  # int32 [V ** D]: action of `expert` in each joint state


@struct
class State:
    factors: Array  # int32 [D]


@functools.cache
def factored_mdp(
    num_factors: int = 5,
    num_values: int = 2,
    num_parents: int = 2,
    num_actions: int = 4,
    seed: int = 0,
) -> Environment:
    """A random factored MDP, limited to 40 steps. Raises `UserError` for impossible sizes."""
    if num_factors < 1 or num_values < 2 or num_actions < 1:
        raise UserError(
            f"'factored_mdp' has {num_factors} factors of {num_values} values and {num_actions} "
            "actions; it needs a factor, two values and an action."
        )
    if not 1 <= num_parents <= num_factors:
        raise UserError(
            f"'factored_mdp' has {num_parents} parents for each of {num_factors} factors; it must "
            "be 1 to the number of factors."
        )
    rng = np.random.default_rng(seed)
    others = [
        np.concatenate([[i], rng.permutation(np.delete(np.arange(num_factors), i))])
        for i in range(num_factors)
    ]
    shape = (num_factors, num_actions, num_values**num_parents)
    params = Params(
        conditional=rng.dirichlet(np.ones(num_values), shape),
        parents=np.stack(others)[:, :num_parents].astype(np.int32),
        reward=rng.random((num_factors, num_values)) / num_factors,
        action_reward=np.zeros(num_actions),
        initial=np.full((num_factors, num_values), 1 / num_values),
    )
    return _environment("factored_mdp", params)


@functools.cache
def sysadmin(
    num_machines: int = 6, recovery: float = 0.1, reboot_cost: float = 0.75
) -> Environment:
    """The ring of machines, limited to 40 steps. Raises `UserError` for fewer than two, and for a
    recovery that is not a probability."""
    if num_machines < 2:
        raise UserError(f"'sysadmin' has {num_machines} machines; it needs at least 2.")
    machines = np.arange(num_machines)
    runs = np.array([recovery, recovery, 0.75, 1.0])  # by (itself, the machine before it)
    up = np.tile(runs, (num_machines, num_machines + 1, 1))
    up[machines, machines + 1] = 1.0
    params = Params(
        conditional=np.stack([1 - up, up], -1),
        parents=np.stack([machines, (machines - 1) % num_machines], -1).astype(np.int32),
        reward=np.tile([0.0, 1.0], (num_machines, 1)),
        action_reward=np.append(0.0, np.full(num_machines, -reboot_cost)),
        initial=np.tile([0.0, 1.0], (num_machines, 1)),
    )
    return _environment("sysadmin", params)


def tensors(params: Params) -> mdp.Tensors:
    """Return the joint MDP over all V ** D states in dense form, as `mdp.tensors` does; the first
    factor is the highest digit of a joint state's number. On the host, in float64."""
    factors, actions, _, values = params.conditional.shape
    states = np.indices((values,) * factors).reshape(factors, -1).T  # [S, D]
    code = np.zeros(states.shape, int)
    for parent in np.asarray(params.parents).T:
        code = code * values + states[:, parent]
    transition = np.ones((len(states), actions, len(states)))
    initial = np.ones(len(states))
    for factor in range(factors):
        following = np.asarray(params.conditional)[factor][:, code[:, factor]]  # [A, S, V]
        transition *= following.swapaxes(0, 1)[:, :, states[:, factor]]
        initial *= np.asarray(params.initial)[factor, states[:, factor]]
    present = np.asarray(params.reward)[np.arange(factors), states].sum(-1)
    reward = present[:, None] + np.asarray(params.action_reward)
    return mdp.Tensors(transition, reward, initial, np.zeros(len(states), bool))  # pyright: ignore


def _environment(name: str, params: Params) -> Environment:
    factors, actions, _, values = params.conditional.shape
    mdp.check_distribution(f"next values of the factors of '{name}'", params.conditional)
    solved = values**factors <= LARGEST_JOINT
    if solved:
        transition, reward, *_ = tensors(params)
        params = dataclasses.replace(params, optimal=_optimal(transition, reward))
    env = Environment(
        name=name,
        reset=_reset,
        step=_step,
        params=params,
        observation_space=Box(0.0, 1.0, (factors * values,)),
        action_space=Discrete(actions),
        render=_render,
        expert=_expert if solved else None,
    )
    return time_limit(env, MAX_STEPS)


def _optimal(transition: Any, reward: Any) -> np.ndarray:
    """Return the optimal actions [S], ties to the lowest index, by Howard's policy iteration: a few
    linear systems, while value iteration would read all S * A * S numbers hundreds of times."""
    states, optimal, better = np.arange(len(reward)), reward.argmax(-1), np.array(True)
    while better.any():
        system = np.eye(len(states)) - DISCOUNT * transition[states, optimal]
        q = reward + DISCOUNT * transition @ np.linalg.solve(system, reward[states, optimal])
        best = q.max(-1)
        better = best > q[states, optimal] + 1e-9
        optimal = np.where(better, q.argmax(-1), optimal)
    return (q >= best[:, None] - 1e-9).argmax(-1).astype(np.int32)


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    state = State(mdp.choose(key, jnp.asarray(params.initial)))
    return state, timesteps.first(_observation(state, params))


def _step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
    factors, values = params.reward.shape
    each = jnp.arange(factors)
    code = _number(mdp.look_up(state.factors, params.parents), values)
    gained = jnp.sum(mdp.look_up(params.reward, each, state.factors))
    gained += mdp.look_up(params.action_reward, action)
    state = State(mdp.choose(key, mdp.look_up(params.conditional, each, action, code)))
    return state, timesteps.following(_observation(state, params), gained)


def _number(digits: Array, values: int) -> Array:
    """Return the number that the last axis spells in base `values`, the first digit highest."""
    powers = values ** np.arange(digits.shape[-1])[::-1]
    return jnp.sum(digits * powers.astype(np.int32), axis=-1, dtype=jnp.int32)


def _observation(state: State, params: Params) -> Array:
    values = params.reward.shape[-1]
    return (state.factors[:, None] == jnp.arange(values)).astype(jnp.float32).ravel()


def _expert(state: State, params: Params) -> Array:
    return mdp.look_up(params.optimal, _number(state.factors, params.reward.shape[-1]))


def _render(state: State, params: Params) -> np.ndarray:
    """Draw a column for each factor, from the lowest value at the bottom to the highest."""
    factors, values = params.reward.shape
    picture = pictures.Board(values, factors)
    for factor, value in np.ndindex(factors, values):
        here = int(state.factors[factor]) == value
        color = (drawing.GREEN if value else drawing.RED) if here else drawing.SHADE
        picture.cell(values - 1 - value, factor, color, margin=0.04)
    return picture.frame()
