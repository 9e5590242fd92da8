"""Policies that need no learning: the random one, the expert, and mixtures of the two."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.core import spaces, trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Key, Policy, TimeStep, Tree
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION
from jaxrl.envs.wrappers.lifting import shapes


def random_action(space: spaces.Space, key: Key, timestep: TimeStep) -> Tree:
    """Sample an element of `space` for one environment as `spaces.sample` does, or uniformly from
    `timestep.legal_actions` where a discrete action has them."""
    legal = timestep.legal_actions
    if legal is None or isinstance(space, spaces.Box):
        return spaces.sample(space, key)
    if spaces.is_space(space):
        return spaces.sample_legal(legal, key)
    parts, treedef = jax.tree.flatten(space, is_leaf=spaces.is_space)
    keys, masks = jax.random.split(key, len(parts)), treedef.flatten_up_to(legal)
    seen = [dataclasses.replace(timestep, legal_actions=mask) for mask in masks]
    return treedef.unflatten(map(random_action, parts, keys, seen))


@functools.cache
def random_policy(env: Environment) -> Policy:
    """Build the policy that acts by `random_action`. The same environment gives the same object."""

    def act(state, timestep, memory, key, greedy):
        keys = jax.random.split(key, timestep.first.shape[0])
        action = jax.vmap(functools.partial(random_action, env.action_space))(keys, timestep)
        return action, memory, {}

    return Policy(act, memory=lambda n: ())


@functools.cache
def expert_policy(env: Environment) -> Policy:
    """Build the policy that plays the expert of `env`, greedy or not. `env` must come from
    `wrappers.expert_channel`, since a policy sees nothing but time steps.

        env = expert_channel(make("cartpole"))
        evaluate(env, expert_policy(env), key)

    Raises `UserError` for an environment without that channel, or whose channel holds actions of
    another shape or dtype.
    """
    channel = shapes(env).privileged
    if not isinstance(channel, dict) or EXPERT_ACTION not in channel:
        raise UserError(
            f"'{env.name}' has no expert channel; it must be wrapped in expert_channel."
        )
    advised = jax.tree.map(lambda x: (x.shape, x.dtype), channel[EXPERT_ACTION])
    expected = jax.tree.map(
        lambda space: (tuple(space.shape), jnp.dtype(space.dtype)),
        env.action_space,
        is_leaf=spaces.is_space,
    )
    if advised != expected:
        raise UserError(
            f"The expert of '{env.name}' gives {advised} and the action space has {expected}; "
            "expert_channel must be outside of wrappers that change actions."
        )
    return Policy(_act, lambda n: ())


@functools.cache
def mixed_skill(env: Environment, skills: tuple[float, ...]) -> Policy:
    """Build a policy that plays each episode with one of `skills`, drawn uniformly. A positive
    skill is the probability that an action is the expert's, a negative one (its magnitude) that it
    is any but the expert's; otherwise the action is that of `random_action`. `env` must come from
    `wrappers.expert_channel`.

    Raises `UserError` as `expert_policy` does, for skills outside [-1, 1], and for negative skills
    if actions are not Discrete.
    """
    if not skills or not all(-1 <= skill <= 1 for skill in skills):
        raise UserError(f"skills must be probabilities, each from -1 to 1, got {skills}.")
    space, expert, novice = env.action_space, expert_policy(env), random_policy(env)
    if min(skills) < 0 and not isinstance(space, spaces.Discrete):
        raise UserError(f"A negative skill needs Discrete actions; '{env.name}' has {space!r}.")

    def another(timestep, advised, key):
        """Return a legal action other than the advised one, if there is one."""
        legal = timestep.legal_actions
        legal = jnp.ones((*advised.shape, space.n), bool) if legal is None else legal
        others = legal & (jnp.arange(space.n) != advised[:, None])
        others = jnp.where(others.any(-1, keepdims=True), others, legal)
        keys = jax.random.split(key, len(advised))
        return jax.vmap(spaces.sample_legal)(others, keys)

    def act(state, timestep, memory, key, greedy):
        skill_key, novice_key, other_key, key = jax.random.split(key, 4)
        drawn = jax.random.choice(skill_key, jnp.float32(skills), memory.shape)
        skill = jnp.where(timestep.first, drawn, memory)
        advised = chosen = expert.act((), timestep, (), key, greedy)[0]
        if min(skills) < 0:
            chosen = jnp.where(skill < 0, another(timestep, advised, other_key), advised)
        by_chance = novice.act((), timestep, (), novice_key, greedy)[0]
        on_purpose = jax.random.bernoulli(key, jnp.abs(skill))
        return trees.where(on_purpose, chosen, by_chance), skill, {}

    return Policy(act, jnp.zeros)


def _act(state, timestep, memory, key, greedy):
    del state, key, greedy
    return timestep.privileged[EXPERT_ACTION], memory, {}
