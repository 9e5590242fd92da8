"""Channel with the expert's action in every time step."""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.envs.wrappers.lifting import merge_channel

EXPERT_ACTION = "expert_action"  # in `TimeStep.privileged`


@functools.cache
def expert_channel(env: Environment) -> Environment:
    """Add the expert's action for the current state as `timestep.privileged["expert_action"]`, next
    to what the channel holds already: for imitation (DAgger), teachers, and
    `envs.policies.expert_policy`.

    Apply it outside of all wrappers that change actions or dynamics: the action is that of the
    expert of `env` as given here. Raises `UserError` if there is no expert, or the channel is not a
    dict.
    """
    expert = env.expert
    if expert is None:
        raise UserError(f"'{env.name}' has no expert; expert_channel needs one.")

    def with_expert_action(result, params):
        state, timestep = result
        action = {EXPERT_ACTION: expert(state, params)}
        privileged = merge_channel(env, "privileged", timestep.privileged, action)
        return state, dataclasses.replace(timestep, privileged=privileged)

    return dataclasses.replace(
        env,
        reset=lambda key, params: with_expert_action(env.reset(key, params), params),
        step=lambda key, state, action, params: with_expert_action(
            env.step(key, state, action, params), params
        ),
    )
