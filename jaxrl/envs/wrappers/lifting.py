"""Fields of an environment that a wrapper only passes on, and other helpers of wrappers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, bounds, is_space
from jaxrl.core.types import Environment, Goals, TimeStep, Tree


def lift_fields(env: Environment, *, state: bool = False, params: bool = False) -> dict[str, Any]:
    """Return `render`, `expert`, `step_seconds`, `log_density` and `goals` of `env` for a wrapper,
    as fields for `dataclasses.replace`; `rules` and `state_of` become None. A wrapper that changes
    actions must drop `log_density` itself.

    state: whether the wrapper's state holds that of `env` as `inner` (else they are the same).
    params: whether the wrapper's params hold those of `env` as `inner` (else they are the same).
    """
    of_state = _inner if state else _same
    of_params = _inner if params else _same

    def lift(function):
        if function is None:
            return None
        return lambda state, params: function(of_state(state), of_params(params))

    functions = ("render", "expert", "step_seconds")
    fields: dict[str, Any] = {name: lift(getattr(env, name)) for name in functions}
    fields["rules"] = None  # a wrapped game is another game
    fields["state_of"] = None  # a wrapper that keeps time steps and states says so itself
    density = env.log_density
    fields["log_density"] = density and (lambda action, params: density(action, of_params(params)))
    if env.goals is not None and params:
        outcome, following = env.goals.outcome, env.goals.next
        fields["goals"] = dataclasses.replace(
            env.goals,
            outcome=lambda achieved, goal, params: outcome(achieved, goal, params.inner),
            next=following and (lambda key, goal, params: following(key, goal, params.inner)),
        )
    return fields


def goals_behind(goals: Goals | None, uncover: Callable[[Tree], Tree]) -> Goals | None:
    """Return `goals` for a wrapper that changes observations; `uncover(observation)` restores
    one."""
    if goals is None:
        return None
    return dataclasses.replace(
        goals, achieved=lambda observation: goals.achieved(uncover(observation))
    )


def joined_bounds(boxes: list[Box]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Concatenate the lower and the upper bounds of the boxes' elements, as float32 tuples."""
    pairs = [bounds(box) for box in boxes]
    low, high = (
        np.concatenate([np.asarray(side, np.float32).ravel() for side in sides])
        for sides in zip(*pairs, strict=True)
    )
    return tuple(low.tolist()), tuple(high.tolist())


def space_leaves(space: Any) -> list[Any]:
    """Return the single spaces that `space` is made of."""
    return jax.tree.leaves(space, is_leaf=is_space)


def shapes(env: Environment) -> TimeStep:
    """Return the shapes of what `env.reset` emits, which show the channels before tracing."""
    return jax.eval_shape(lambda key: env.reset(key, env.params)[1], jax.random.key(0))


def without_legal_actions(env: Environment, what: str) -> None:
    """Raise `UserError` if `env` has legal actions, since `what` plays actions that were chosen
    earlier."""
    if shapes(env).legal_actions is not None:
        raise UserError(
            f"{what} cannot wrap '{env.name}', whose legal actions change from step to step; it "
            "needs an environment without the channel legal_actions."
        )


def merge_channel(
    env: Environment, channel: str, value: Tree, new: dict[str, Any]
) -> dict[str, Any]:
    """Merge `new` entries into the dict `value` in `channel` of a time step."""
    if value is None:
        return new
    if not isinstance(value, dict):
        raise UserError(
            f"The channel {channel} of '{env.name}' is a {type(value).__name__}; it must be a dict "
            f"or None, so that {', '.join(new)} can be added."
        )
    return value | new


def _inner(tree: Any) -> Tree:
    return tree.inner


def _same(tree: Tree) -> Tree:
    return tree
