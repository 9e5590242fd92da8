"""Rewards and costs defined as functions of a step."""

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

Measure = Callable[[TimeStep, Tree, TimeStep], Array]  # timestep, action, next timestep


@struct
class RewardComponents:
    """Parameters of `reward_components` with weights."""

    inner: Tree
    reward_weights: np.ndarray  # float32 [K]: weights of the components, in their given order


@struct
class State:
    """State of the wrapped environment and its last time step."""

    inner: Tree
    timestep: TimeStep


def reward_components(
    env: Environment,
    components: Mapping[str, Measure],
    weights: Mapping[str, float] | None = None,
) -> Environment:
    """Report components of a reward, and optionally use their weighted sum as the reward.

    components: name -> function(timestep, action, next_timestep) -> scalar, which goes to the
        channel `reward_components`, next to the components that `env` reports. The reward of `env`
        is `next_timestep.reward`, its own components are `next_timestep.reward_components`.
    weights: name -> default weight of each component. The reward is then the weighted sum, with the
        weights `params.reward_weights` `[K]` in the order of `components`; `true_reward` stays the
        same or, if there was none, becomes the reward of `env`. Without weights, the reward is
        unchanged.

    With weights, `expert` and `goals` are None, since they belong to another reward. The same
    functions (by identity) give the same object. Raises `UserError` for weights with other names or
    that are not numbers.
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
    """Parameters of `cost` with a budget."""

    inner: Tree
    cost_budget: Any  # float32, or [K]: maximum cost of an episode


@struct
class CostState:
    """State of the wrapped environment, its last time step and the cost of this episode so far."""

    inner: Tree
    timestep: TimeStep
    spent: Array


def cost(env: Environment, function: Measure | None = None, budget: Any = None) -> Environment:
    """Add costs to `env`, for constraints; the reward is unchanged.

    function: (timestep, action, next_timestep) -> the cost of a step, a scalar or `[K]`, for the
        channel `cost`; without a function, the costs are those that `env` has.
    budget: maximum cost of an episode, a number or `[K]`; `params.cost_budget`. The step at which
        (any of) the episode's costs exceed it terminates the episode. Without a budget, costs end
        nothing.

    `metrics["episode_cost"]` is the cost of the episode so far, if it is a scalar. With a budget,
    `expert` and `goals` are None: the expert knows of no budget, and no observation tells what was
    spent, so a relabeled step could not say whether the budget ends it. Raises `UserError` for an
    environment without costs and no function, and for a budget that is not a number.
    """
    kind = shapes(env).cost if function is None else _cost_of(env, function)
    if kind is None:
        raise UserError(
            f"'{env.name}' has no costs; cost needs a function of (timestep, action, next_timestep)"
            " that returns them."
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
        fields |= {
            "params": CostBudget(env.params, arguments.as_param(budget)),
            "expert": None,
            "goals": None,
        }
    return dataclasses.replace(env, reset=reset, step=step, **fields)
