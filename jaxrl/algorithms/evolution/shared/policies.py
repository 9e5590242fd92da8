"""Deterministic policies as vectors, many of which act in parallel."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Key, Policy, Tree
from jaxrl.networks.actor_critic import ActorCritic


@dataclasses.dataclass(frozen=True, eq=False)
class Policies:
    """Policy half of an `ActorCritic` as a vector [D]; it takes the most likely action.

    init(key) -> [D], initialized like the network
    vector(params) -> [D]: the policy's weights, from those of the whole network
    insert(params, vector) -> params with the policy's weights replaced
    policy(vectors [P, D]) -> Policy for B = P * E time steps, the i-th E of which are policy i's
    """

    size: int
    init: Callable[[Key], Array]
    vector: Callable[[Tree], Array]
    insert: Callable[[Tree, Array], Tree]
    policy: Callable[[Array], Policy]


@functools.cache
def policies(
    env: Environment,
    hidden: tuple[int, ...],
    activation_name: str,
    *,
    channels: tuple[int, ...] = (),
    initializer: str = "lecun",
) -> Policies:
    """Return the policies for `env` with hidden layers of the widths `hidden`; () for linear ones.

    The convolutions of images, which an `ActorCritic` shares with its value, are part of the
    vector. The standard deviation of a Gaussian head is not, since it has no effect here.

    channels, initializer: as in `ActorCritic`.
    """
    network: Any = ActorCritic(
        env.observation_space,
        env.action_space,
        hidden,
        activation_name,
        initializer=initializer,
        channels=channels,
    )
    draw = lambda key: network.init(key, example_timestep(env), ())
    shapes = jax.eval_shape(draw, jax.random.key(0))
    leaves, treedef = jax.tree.flatten(shapes)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(shapes)]
    chosen = [i for i, path in enumerate(paths) if _is_policy(path)]
    sizes = [math.prod(leaves[i].shape) for i in chosen]
    size = sum(sizes)

    def vector(params):
        flat = jax.tree.leaves(params)
        return jnp.concatenate([flat[i].ravel() for i in chosen])

    def insert(params, vector):
        flat = jax.tree.leaves(params)
        parts = jnp.split(vector, [sum(sizes[:n]) for n in range(1, len(sizes))])
        for i, part in zip(chosen, parts, strict=True):
            flat[i] = part.reshape(leaves[i].shape)
        return treedef.unflatten(flat)

    def act_one(vector, timestep):
        # The critic is zero; since its value is not used, XLA eliminates it.
        policy, _, _ = network.apply(insert(trees.zeros(shapes), vector), timestep, ())
        return policy.mode()

    def act(vectors, timestep, memory, key, greedy):
        each = lambda x: x.reshape(vectors.shape[0], -1, *x.shape[1:])
        action = jax.vmap(act_one)(vectors, jax.tree.map(each, timestep))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), action), memory, {}

    return Policies(
        size,
        lambda key: vector(draw(key)),
        vector,
        insert,
        lambda vectors: Policy(act, _no_memory, vectors),
    )


def _no_memory(n: int) -> tuple:
    return ()


def _is_policy(path: tuple) -> bool:
    names = [entry.key for entry in path]
    return names[1] in ("convolution", "actor", "head") and names[-1] != "log_std"
