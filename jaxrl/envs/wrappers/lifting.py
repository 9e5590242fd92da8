"""What every wrapper does with the rest of an environment: the fields that it only passes on."""

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
    """`render`, `expert`, `step_seconds` and `goals` of `env` for a wrapper of it; fields for
    `dataclasses.replace`.

    state: whether the wrapper's state holds the one of `env` as `inner` (else it is that one).
    params: whether the wrapper's params hold those of `env` as `inner` (else they are those).
    """
    of_state = _inner if state else _same
    of_params = _inner if params else _same

    def lift(function):
        if function is None:
            return None
        return lambda state, params: function(of_state(state), of_params(params))

    functions = ("render", "expert", "step_seconds")
    fields: dict[str, Any] = {name: lift(getattr(env, name)) for name in functions}
    fields["rules"] = None  # a game that is wrapped is another one
    if env.goals is not None and params:
        outcome = env.goals.outcome
        goals = dataclasses.replace(
            env.goals, outcome=lambda achieved, goal, params: outcome(achieved, goal, params.inner)
        )
        fields["goals"] = goals
    return fields


def goals_behind(goals: Goals | None, uncover: Callable[[Tree], Tree]) -> Goals | None:
    """`goals` of a wrapper that changes observations; `uncover(observation)` is what it was."""
    if goals is None:
        return None
    return Goals(lambda observation: goals.achieved(uncover(observation)), goals.outcome)


def joined_bounds(boxes: list[Box]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Low and high of the boxes' elements one after the other, as float32 tuples."""
    pairs = [bounds(box) for box in boxes]
    low, high = (
        np.concatenate([np.asarray(side, np.float32).ravel() for side in sides])
        for sides in zip(*pairs, strict=True)
    )
    return tuple(low.tolist()), tuple(high.tolist())


def space_leaves(space: Any) -> list[Any]:
    """The single spaces that `space` is made of."""
    return jax.tree.leaves(space, is_leaf=is_space)


def shapes(env: Environment) -> TimeStep:
    """The shapes of what `env.reset` emits: which channels there are, known before tracing."""
    return jax.eval_shape(lambda key: env.reset(key, env.params)[1], jax.random.key(0))


def without_legal_actions(env: Environment, what: str) -> None:
    """Raise `UserError` where `env` says which actions are legal, as `what` plays actions that
    were chosen earlier."""
    if shapes(env).legal_actions is not None:
        raise UserError(
            f"{what} cannot wrap '{env.name}', whose legal actions change from step to step; it "
            "needs an environment without the channel legal_actions."
        )


def merge_channel(env: Environment, channel: str, value: Tree, new: dict[str, Any]) -> dict[str, Any]:
    """The dict in `channel` of a time step, with `new` entries."""
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
