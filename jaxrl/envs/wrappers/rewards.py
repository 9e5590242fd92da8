"""Rewards and costs as functions of a step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, TimeStep, Tree, struct
from jaxrl.envs.wrappers import arguments
from jaxrl.envs.wrappers.lifting import lift_fields, merge_channel, shapes

Measure = Callable[[TimeStep, Tree, TimeStep], Array]  # of a time step, an action and the next one


@struct
class RewardComponents:
    """Params of `reward_components` with weights."""

    inner: Tree
    reward_weights: np.ndarray  # float32 [K], in the order in which the components were given


@struct
class State:
    """The wrapped environment's state and its last time step."""

    inner: Tree
    timestep: TimeStep


def reward_components(
    env: Environment,
    components: Mapping[str, Measure],
    weights: Mapping[str, float] | None = None,
) -> Environment:
    """`env` that reports parts of a reward, and may pay them.

    components: name -> function(timestep, action, next_timestep) -> scalar; what it returns stands
        in the channel `reward_components`, beside the parts that `env` reports. The reward of `env`
        is `next_timestep.reward`, its own parts `next_timestep.reward_components`.
    weights: name -> default weight of each of these. The reward is then the weighted sum, with the
        weights `params.reward_weights` `[K]` in the order of `components`; `true_reward` stays what
        it was or, where there was none, is the reward of `env`. Without, the reward is untouched.

    With weights `expert` and `goals` are None: theirs was another reward. The same functions (by
    identity) give the same object. Raises `UserError` for weights of other names or no numbers.
    """
    if not components or not all(callable(f) for f in components.values()):
        raise UserError(
            f"The reward components of '{env.name}' are {components!r}; they must be functions by "
            "name, at least one."
        )
    if weights is None:
        return _reward_components(env, tuple(components.items()), None)
    if set(weights) != set(components):
        raise UserError(
            f"The reward weights of '{env.name}' are for {sorted(weights)}; they must be for its "
            f"components, {sorted(components)}."
        )
    numbers = tuple(
        arguments.number(env, f"reward weight '{name}'", weights[name], low=-np.inf)
        for name in components
    )
    return _reward_components(env, tuple(components.items()), numbers)


@functools.cache
def _reward_components(
    env: Environment, components: tuple[tuple[str, Measure], ...], weights: tuple | None
) -> Environment:
    def inner_params(params):
        return params if weights is None else params.inner

    def with_components(timestep: TimeStep, values: list[Array], params: Any) -> TimeStep:
        new = dict(zip((name for name, _ in components), values, strict=True))
        own = timestep.reward_components
        changes = {"reward_components": merge_channel(env, "reward_components", own, new)}
        if weights is not None:
            truth = timestep.reward if timestep.true_reward is None else timestep.true_reward
            terms = [params.reward_weights[i] * value for i, value in enumerate(values)]
            reward = jnp.asarray(sum(terms), jnp.float32)
            changes |= {"reward": reward, "true_reward": truth}
        return dataclasses.replace(timestep, **changes)

    def reset(key, params):
        inner, timestep = env.reset(key, inner_params(params))
        zeros = [jnp.zeros((), jnp.float32)] * len(components)
        return State(inner, timestep), with_components(timestep, zeros, params)

    def step(key, state, action, params):
        inner, timestep = env.step(key, state.inner, action, inner_params(params))
        values = [
            jnp.asarray(function(state.timestep, action, timestep), jnp.float32)
            for _, function in components
        ]
        return State(inner, timestep), with_components(timestep, values, params)

    fields = lift_fields(env, state=True, params=weights is not None)
    if weights is not None:
        fields |= {
            "params": RewardComponents(env.params, np.asarray(weights, np.float32)),
            "expert": None,
            "goals": None,
        }
    return dataclasses.replace(env, reset=reset, step=step, **fields)


@struct
class CostBudget:
    """Params of `cost` with a budget."""

    inner: Tree
    cost_budget: Any  # float32, or [K]: the most that an episode may cost


@struct
class CostState:
    """The wrapped environment's state, its last time step and what this episode cost so far."""

    inner: Tree
    timestep: TimeStep
    spent: Array


def cost(env: Environment, function: Measure | None = None, budget: Any = None) -> Environment:
    """`env` with costs, for constraints; the reward is untouched.

    function: (timestep, action, next_timestep) -> the cost of a step, a scalar or `[K]`, which
        stands in the channel `cost`; without, the costs are those that `env` has.
    budget: what an episode may cost, a number or `[K]`; `params.cost_budget`. The step at which the
        episode's costs exceed it (any of them) terminates it. Without, costs end nothing.

    `metrics["episode_cost"]` is the cost of the episode so far, where it is a scalar. With a budget
    `expert` is None: it knows of none. Raises `UserError` for an environment without costs and no
    function, and for a budget that is no number.
    """
    kind = shapes(env).cost if function is None else _cost_of(env, function)
    if kind is None:
        raise UserError(
            f"'{env.name}' has no costs; cost needs a function of (timestep, action, next_timestep)"
            " that says them."
        )
    if budget is not None:
        budget = arguments.numbers_of(env, "cost budget", budget, kind.shape)
    return _cost(env, function, kind.shape, budget)


def _cost_of(env: Environment, function: Measure) -> jax.ShapeDtypeStruct:
    timestep, action = shapes(env), jax.eval_shape(lambda: spaces.example(env.action_space))
    return jax.eval_shape(function, timestep, action, timestep)


@functools.cache
def _cost(
    env: Environment, function: Measure | None, shape: tuple[int, ...], budget: Any
) -> Environment:
    def inner_params(params):
        return params if budget is None else params.inner

    def with_cost(timestep: TimeStep, value: Any, spent: Array) -> TimeStep:
        timestep = dataclasses.replace(timestep, cost=value)
        if shape:
            return timestep
        total = {"episode_cost": spent}
        return dataclasses.replace(
            timestep, metrics=merge_channel(env, "metrics", timestep.metrics, total)
        )

    def reset(key, params):
        inner, timestep = env.reset(key, inner_params(params))
        nothing = jnp.zeros(shape, jnp.float32)
        return CostState(inner, timestep, nothing), with_cost(timestep, nothing, nothing)

    def step(key, state, action, params):
        inner, timestep = env.step(key, state.inner, action, inner_params(params))
        value = timestep.cost
        if function is not None:
            value = jnp.asarray(function(state.timestep, action, timestep), jnp.float32)
        spent = state.spent + value
        following = with_cost(timestep, value, spent)
        if budget is not None:
            terminated = timestep.terminated | jnp.any(spent > params.cost_budget)
            truncated = timestep.truncated & ~terminated
            following = dataclasses.replace(following, terminated=terminated, truncated=truncated)
        return CostState(inner, timestep, spent), following

    fields = lift_fields(env, state=True, params=budget is not None)
    if not shape:
        fields["scores"] = {**env.scores, "episode_cost": "cost"}
    if budget is not None:
        fields |= {"params": CostBudget(env.params, arguments.as_param(budget)), "expert": None}
    return dataclasses.replace(env, reset=reset, step=step, **fields)
