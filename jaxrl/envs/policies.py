"""Policies that need no learning: the random one, the expert, and mixtures of the two."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import spaces, trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, Policy, TimeStep, Tree
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

    def act(state, timestep, memory, key, greedy):
        skill_key, novice_key, other_key, key = jax.random.split(key, 4)
        drawn = jax.random.choice(skill_key, jnp.float32(skills), memory.shape)
        skill = jnp.where(timestep.first, drawn, memory)
        advised = chosen = expert.act((), timestep, (), key, greedy)[0]
        if min(skills) < 0:
            chosen = jnp.where(
                skill < 0, another_action(space, timestep, advised, other_key), advised
            )
        by_chance = novice.act((), timestep, (), novice_key, greedy)[0]
        on_purpose = jax.random.bernoulli(key, jnp.abs(skill))
        return trees.where(on_purpose, chosen, by_chance), skill, {}

    return Policy(act, jnp.zeros)


@functools.cache
def noisy_expert(env: Environment, deviation: float) -> Policy:
    """Build the policy that plays the expert's actions plus normal noise with the standard
    `deviation`, clipped to the bounds, greedy or not. `env` must come from
    `wrappers.expert_channel`.

    Raises `UserError` as `expert_policy` does, and unless actions are a bounded Box.
    """
    space, expert = _bounded_space(env, "Normal noise"), expert_policy(env)

    def act(state, timestep, memory, key, greedy):
        action: Array = expert.act((), timestep, (), key, greedy)[0]
        noise = deviation * jax.random.normal(key, action.shape, action.dtype)
        return spaces.clip(space, action + noise), memory, {}

    return Policy(act, lambda n: ())


def scaled_expert(env: Environment, factor: float) -> Policy:
    """Build the policy that plays the expert's actions scaled by `factor` toward the middle of
    their bounds, greedy or not: a weak controller. `env` must come from `wrappers.expert_channel`.
    Another factor is another state of the same policy.

    Raises `UserError` as `expert_policy` does, and unless actions are a bounded Box.
    """
    return dataclasses.replace(_scaled_expert(env), state=jnp.float32(factor))


@functools.cache
def _scaled_expert(env: Environment) -> Policy:
    space, expert = _bounded_space(env, "A scaled expert"), expert_policy(env)
    middle = sum(spaces.bounds(space)) / 2

    def act(state, timestep, memory, key, greedy):
        action: Array = spaces.clip(space, expert.act((), timestep, (), key, greedy)[0])
        return (middle + state * (action - middle)).astype(action.dtype), memory, {}

    return Policy(act, lambda n: ())


def _bounded_space(env: Environment, who: str) -> spaces.Box:
    """Return the action space. Raises `UserError` unless it is a bounded Box."""
    space = env.action_space
    if not (isinstance(space, spaces.Box) and np.isfinite(spaces.bounds(space)).all()):
        raise UserError(f"{who} needs a bounded Box; '{env.name}' has {space!r}.")
    return space


def another_action(space: spaces.Discrete, timestep: TimeStep, action: Array, key: Key) -> Array:
    """Draw legal actions [B] other than `action` [B], uniformly; the same where there is no
    other."""
    legal = timestep.legal_actions
    legal = jnp.ones((*action.shape, space.n), bool) if legal is None else legal
    others = legal & (jnp.arange(space.n) != action[:, None])
    others = jnp.where(others.any(-1, keepdims=True), others, legal)
    keys = jax.random.split(key, len(action))
    return jax.vmap(spaces.sample_legal)(others, keys)


def add_noise(env: Environment, policy: Policy, share: float) -> Policy:
    """Return a policy that replaces an action of `policy` by another legal one with the probability
    `share`, greedy or not, so that a `share` of the tokens of texts are wrong.

    It has no extras: those of `policy` are of its own actions. Raises `UserError` for a share
    outside [0, 1], and unless actions are Discrete.
    """
    space = env.action_space
    if not 0 <= share <= 1:
        raise UserError(f"The share of noisy actions is {share}; it must be from 0 to 1.")
    if not isinstance(space, spaces.Discrete):
        raise UserError(f"Noise needs Discrete actions; '{env.name}' has {space!r}.")

    def act(state, timestep, memory, key, greedy):
        key, noise_key, other_key = jax.random.split(key, 3)
        action, memory, _ = policy.act(state, timestep, memory, key, greedy)
        other = another_action(space, timestep, action, other_key).astype(action.dtype)
        noisy = jax.random.bernoulli(noise_key, share, action.shape)
        return jnp.where(noisy, other, action), memory, {}

    return Policy(act, policy.memory, policy.state)


def _act(state, timestep, memory, key, greedy):
    del state, key, greedy
    return timestep.privileged[EXPERT_ACTION], memory, {}
