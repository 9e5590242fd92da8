"""Texts of which a part is forced on the agent: hints, beginnings by a guide or an expert, splices.

Whoever wrote it, a forced token is the agent's in the text: it counts toward the length of an
utterance and is graded. It is no decision (`tokens["decision"]` is False) and is the only legal
token, so its log-probability and its entropy are 0, and no agent learns from it. What follows is
said by the policy given the forced part, and is learned as usual.

env = forced_text(start_key(env), length=4)
params = dataclasses.replace(env.params, forced=Forced(tokens, begin=0, count=4))
source = episodes(env, 64, tasks.fixed(params))
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.envs.wrappers import arguments
from jaxrl.envs.wrappers.lifting import lift_fields, shapes


@struct
class Forced:
    """Text that is forced in an episode.

    tokens: int32 [F], of which the first `count` are said.
    begin: decisions of the episode that the agent takes before them: int32.
    count: int32; 0 for none.
    """

    tokens: Array | np.ndarray
    begin: Array | int
    count: Array | int


@struct
class Params:
    """Parameters of `forced_text`."""

    inner: Tree
    forced: Forced


@struct
class PrefixParams:
    """Parameters of `expert_prefix`."""

    inner: Tree
    longest: Array | int


@struct
class State:
    """State of the wrapped environment, and what was said in this episode.

    plan: what was drawn when the episode began.
    written: int32, tokens that were forced. own: int32, decisions of the agent.
    decision: bool, whether the next token is one of the agent's utterance.
    """

    inner: Tree
    plan: Tree
    written: Array
    own: Array
    decision: Array


class _Next(Protocol):
    """A function that says what is forced next."""

    def __call__(self, state: State, params: Any, /) -> tuple[Array, Array]:
        """Return a token, int32 [], and whether it is forced now, bool []."""
        ...


def forced_text(env: Environment, length: int) -> Environment:
    """Force the text of `params.forced` on the agent of a text environment, up to `length` tokens.

    By default nothing is forced. Tasks say what is: `tasks.fixed` of one text, `tasks.each` of a
    table of them (for starts that belong to them, wrap `start_key`), or `tasks.randomize`. With
    `begin` = 0 an episode's first utterance begins with the text; with a larger one the agent
    writes so many tokens before it, as in a splice. A token that could not be chosen where it
    stands, and one that ends an utterance, is forced all the same.

    Raises `UserError` for a `length` below 1, and for an environment without texts.
    """
    _check(env, "forced_text")
    return _forced_text(env, arguments.positive_integer(env, "length of the forced text", length))


@functools.cache
def _forced_text(env: Environment, length: int) -> Environment:
    def following(state, params):
        forced = params.forced
        tokens = jnp.asarray(forced.tokens, jnp.int32)
        token = tokens[jnp.minimum(state.written, length - 1)]
        return token, (state.own >= forced.begin) & (state.written < forced.count)

    params = Params(env.params, Forced(np.zeros(length, np.int32), 0, 0))
    return _force(env, params, lambda key, params: (), following)


def expert_prefix(env: Environment, longest: int) -> Environment:
    """Let the expert write the first tokens of each episode's text: a number of them that is drawn
    uniformly from 0 to `longest` (`params.longest`) as the episode begins.

    The expert never ends an utterance: where its next token would, the agent goes on. Learning
    from beginnings by an expert makes long answers reachable from their ends (Salimans & Chen,
    2018, "Learning Montezuma's Revenge from a single demonstration"). Evaluations in this
    environment have prefixes too. Raises `UserError` unless `longest` is a positive integer, and
    for an environment without texts or without an expert.
    """
    _check(env, "expert_prefix")
    if env.expert is None:
        raise UserError(f"'{env.name}' has no expert; expert_prefix needs one.")
    return _expert_prefix(env, arguments.positive_integer(env, "longest prefix", longest))


@functools.cache
def _expert_prefix(env: Environment, longest: int) -> Environment:
    expert = env.expert
    assert expert is not None

    def draw(key, params):
        return jax.random.randint(key, (), 0, params.longest + 1)

    def following(state, params):
        token = expert(state.inner, params.inner).astype(jnp.int32)
        more = (state.own == 0) & (state.written < state.plan)
        return token, more & (token != len(env.vocabulary) - 1)

    return _force(env, PrefixParams(env.params, longest), draw, following)


def _force(env: Environment, params: Any, draw: Any, following: _Next) -> Environment:
    """Force the tokens of `following`, after a plan `draw(key, params)` for each episode."""
    size = len(env.vocabulary)

    def show(state: State, timestep: TimeStep, params: Any) -> TimeStep:
        """Return the time step, which tells what is forced next."""
        token, forced = following(state, params)
        forced &= state.decision
        only = jnp.arange(size) == token
        legal = jnp.where(forced, only, timestep.legal_actions)
        tokens = {**timestep.tokens, "decision": state.decision & ~forced}
        return dataclasses.replace(timestep, legal_actions=legal, tokens=tokens)

    def reset(key: Key, params: Any) -> tuple[State, TimeStep]:
        inner, timestep = env.reset(key, params.inner)
        plan = draw(jax.random.fold_in(key, 1), params)  # the wrapped start is that of `key`
        zero = jnp.zeros((), jnp.int32)
        state = State(inner, plan, zero, zero, timestep.tokens["decision"])
        return state, show(state, timestep, params)

    def step(key: Key, state: State, action: Array, params: Any) -> tuple[State, TimeStep]:
        token, forced = following(state, params)
        forced &= state.decision
        said = jnp.where(forced, token, action).astype(env.action_space.dtype)
        inner, timestep = env.step(key, state.inner, said, params.inner)
        own = state.own + (state.decision & ~forced)
        decision = timestep.tokens["decision"]
        state = State(inner, state.plan, state.written + forced, own, decision)
        return state, show(state, timestep, params)

    fields = lift_fields(env, state=True, params=True)
    return dataclasses.replace(env, reset=reset, step=step, params=params, **fields)


def _check(env: Environment, name: str) -> None:
    """Raise `UserError` for an environment without texts."""
    if not isinstance(env.action_space, Discrete) or not env.vocabulary:
        raise UserError(f"{name} forces tokens, and '{env.name}' has none; it needs a vocabulary.")
    seen = shapes(env)
    if seen.tokens is None or "decision" not in seen.tokens or seen.legal_actions is None:
        raise UserError(
            f"{name} cannot wrap '{env.name}', which does not tell its decisions; it needs the "
            "channels tokens and legal_actions, as environments of `conversing` have them."
        )
