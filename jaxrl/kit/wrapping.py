"""Agents around agents: the state of a transformation, and how to reach the inner agent.

`wrap` makes them all, so that each keeps the inner agent's state under `agent`, its own beside it,
and hands over what the inner agent does. The parameters of whatever learner is inside are reached
by `params_of` and `with_params`: with `act`, whose extras are functions of them, a transformation
takes gradients of what the policy says and edits the parameters, and knows nothing else of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.hyper import rename_hyper
from jaxrl.core.types import Agent, Batch, Info, Key, TimeStep, Tree, struct
from jaxrl.kit.state import State, acting_state


@struct
class Wrapped:
    agent: Tree
    own: Tree
    hyper: dict[str, Any]


def wrap(
    agent: Agent,
    name: str,
    own: Callable[[Tree], Tree],
    update: Callable[[Wrapped, Batch, Key], tuple[Tree, Tree, Info]],
    see: Callable[[Wrapped, TimeStep], TimeStep] = lambda state, timestep: timestep,
    act: Callable[..., Any] | None = None,
    hyper: Mapping[str, float] | None = None,
    reads: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    memory: Callable[[int], Tree] | None = None,
) -> Agent:
    """`agent`, called `name(agent)`, with a state of its own beside it.

    own(state of the agent) -> what is held at first
    update(state, batch, key) -> (state of the agent, own, info)
    see(state, timestep): what the agent is shown when it acts; or `act`, as an agent's, with a
        `Wrapped` state.
    hyper: new hyperparameters and their defaults; reads: those of the agent's that are read too.
        Both are in `state.hyper`.
    needs: of a batch, beside what the agent needs.
    memory: what is remembered at an episode's start, if not the agent's.
    """
    new = {n: np.float32(value) for n, value in (hyper or {}).items()}

    def init(key, values):
        state = agent.init(key, values)
        mine = {n: jnp.asarray(values[n]) for n in (*new, *reads)}
        return Wrapped(state, own(state), mine)

    def act_on_view(state, timestep, memory, key, greedy):
        return agent.act(state.agent, see(state, timestep), memory, key, greedy)

    def update_wrapped(state, batch, key):
        inner, mine, info = update(state, batch, key)
        return Wrapped(inner, mine, state.hyper), info

    def adopt(state, other):
        if not isinstance(other, Wrapped):
            return other  # which will not fit
        return dataclasses.replace(other, agent=agent.adopt(state.agent, other.agent))

    return dataclasses.replace(
        agent,
        name=f"{name}({agent.name})",
        init=init,
        act=act or act_on_view,
        update=update_wrapped,
        memory=memory or agent.memory,
        hyper={**agent.hyper, **new},
        needs=(*agent.needs, *needs),
        hand_over=lambda state: dataclasses.replace(state, agent=agent.hand_over(state.agent)),
        adopt=adopt,
    )


def within(agent: Agent, group: str) -> Agent:
    """Return `agent` as a part of an algorithm whose Config has the agent's in a group: the
    hyperparameter `clip` is then called `group.clip`, outside and in its state, so that the
    algorithm's settings set, sweep and replace it. For deeper nesting `group` may have dots, or
    this is done again."""
    outer = lambda name: f"{group}.{name}"
    inner = lambda name: name.removeprefix(f"{group}.")
    outside = lambda state: rename_hyper(state, outer)
    inside = lambda state: rename_hyper(state, inner)

    def init(key, hyper):
        return outside(agent.init(key, {name: hyper[outer(name)] for name in agent.hyper}))

    def act(state, timestep, memory, key, greedy):
        return agent.act(inside(state), timestep, memory, key, greedy)

    def update(state, batch, key):
        state, info = agent.update(inside(state), batch, key)
        return outside(state), info

    return dataclasses.replace(
        agent,
        init=init,
        act=act,
        update=update,
        hyper={outer(name): value for name, value in agent.hyper.items()},
        hand_over=lambda state: outside(agent.hand_over(inside(state))),
        adopt=lambda state, other: outside(agent.adopt(inside(state), inside(other))),
        in_evaluation={outer(name): outer(other) for name, other in agent.in_evaluation.items()},
    )


def params_of(state: Tree) -> Tree:
    """The innermost agent's parameters: of a learner, name of a part -> its parameters. Raises
    `UserError` where a state has none."""
    if isinstance(state, State):
        return {name: part.params for name, part in state.parts.items()}
    if hasattr(state, "params"):
        return state.params
    if not hasattr(state, "agent"):
        raise UserError(f"The agent state {type(state).__name__} holds no parameters.")
    return params_of(state.agent)


def snapshot(state: Tree) -> Tree:
    """Return what is enough of an agent's state to act: the parameters of the learner within, and
    what each wrapper holds of its own, such as the statistics of observations."""
    if isinstance(state, Wrapped):
        return dataclasses.replace(state, agent=snapshot(state.agent))
    return acting_state(params_of(state))


def with_normalizer(state: Tree, normalizer: Any) -> Tree:
    """Return the state of an agent with another `normalizer` in the innermost learner; the same
    state where there is none."""
    if isinstance(state, State):
        return dataclasses.replace(state, normalizer=normalizer)
    if not hasattr(state, "agent"):
        return state
    return dataclasses.replace(state, agent=with_normalizer(state.agent, normalizer))


def with_params(state: Tree, params: Tree) -> Tree:
    """`state` with other parameters. Raises as `params_of` does."""
    if isinstance(state, State):
        parts = {
            name: dataclasses.replace(part, params=params[name])
            for name, part in state.parts.items()
        }
        return dataclasses.replace(state, parts=parts)
    if hasattr(state, "params"):
        return dataclasses.replace(state, params=params)
    if not hasattr(state, "agent"):
        raise UserError(f"The agent state {type(state).__name__} holds no parameters.")
    return dataclasses.replace(state, agent=with_params(state.agent, params))
