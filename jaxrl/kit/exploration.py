"""Exploration by state-dependent noise (gSDE; Raffin, Kober and Stulp, 2020, "Smooth exploration
for robotic reinforcement learning", arXiv:2005.05719).

The noise of an action is a linear function of the policy's last features, epsilon = features @
matrix, so that it is equal in equal states until the matrix is drawn anew: every few steps, and at
the start of rollouts, that is, after each update, as in Stable-Baselines3. It is also drawn anew at
the start of an episode, as in the original state-dependent exploration.

The matrix is part of the policy's memory: its entries are normal, with the standard deviations that
the policy's head has learned (`networks.heads.StateDependentNormal`). A recipe acts by
`choose_with_noise`, and `remember_noise` keeps the matrices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, Tree, struct
from jaxrl.kit.groups import StateDependentNoise
from jaxrl.kit.net import Net
from jaxrl.kit.recipe import Recipe
from jaxrl.networks.heads import SquashedStateDependentNormal, StateDependentNormal

NoisyPolicy = StateDependentNormal | SquashedStateDependentNormal
NO_NOISE = StateDependentNoise()


@struct
class NoiseMatrix:
    """Noise matrix of each environment."""

    normals: Array
    """Entries in units of their standard deviations, [B, features, action size]."""
    steps: Array
    """Steps since the matrix was drawn, int32 [B]."""
    updates: Array
    """Number of updates when it was drawn, int32 [B]; -1 before the first step of an episode."""


@struct
class NoisyMemory:
    """Memory of a policy that explores by state-dependent noise."""

    network: Tree
    """Memory of the policy's network, [B]."""
    noise: NoiseMatrix


def noisy_memory(
    network: Callable[[int], Tree], shape: tuple[int, int]
) -> Callable[[int], NoisyMemory]:
    """Return the memory at an episode's start as a function of the number of environments.

    network: the same for the memory of the policy's network.
    shape: numbers of features and of dimensions of an action.
    """

    def initial(n: int) -> NoisyMemory:
        normals = jnp.zeros((n, *shape))
        noise = NoiseMatrix(normals, jnp.zeros(n, jnp.int32), jnp.full(n, -1, jnp.int32))
        return NoisyMemory(network(n), noise)

    return initial


def next_noise(noise: NoiseMatrix, updates: Array, interval: int, key: Key) -> NoiseMatrix:
    """Return the noise matrices of the next step, drawn anew where they are due.

    That is after an update, at an episode's start, and `interval` steps after the last time.

    updates: number of updates so far. interval: see `StateDependentNoise`.
    """
    due = noise.updates != updates
    if interval:
        due |= noise.steps >= interval
    fresh = NoiseMatrix(
        jax.random.normal(key, noise.normals.shape),
        jnp.zeros_like(noise.steps),
        jnp.full_like(noise.updates, updates),
    )
    chosen = trees.where(due, fresh, noise)
    return dataclasses.replace(chosen, steps=chosen.steps + 1)


def choose_with_noise(
    net: Net,
    policy: NoisyPolicy,
    memory: NoisyMemory,
    interval: int,
    key: Key,
    greedy: bool,
) -> tuple[Array, NoisyMemory]:
    """Return actions [B] with state-dependent noise, or the mode if `greedy`, and the memory with
    the noise matrices of the step.

    policy: of each environment, [B]. interval: see `StateDependentNoise`.

    Raises `UserError` for another distribution, such as that of a network of the user's.
    """
    if not isinstance(policy, NoisyPolicy):
        raise UserError(
            "gsde.enabled needs a policy whose actions are a StateDependentNormal, such as that of "
            f'a PolicyHead with deviation="of_noise", not {type(policy).__name__}.'
        )
    if greedy:
        return jnp.asarray(policy.mode()), memory
    noise = next_noise(memory.noise, net.updates, interval, key)
    return policy.explore(noise.normals), dataclasses.replace(memory, noise=noise)


def remember_noise(recipe: Recipe, part: str) -> Recipe:
    """Return a recipe whose policies remember their noise matrices, and which learns as before.

    The update sees the memory of the network alone: what is learned from is the distribution of an
    action over all noise matrices.

    recipe: its `act` takes a `NoisyMemory` (see `choose_with_noise`).
    part: the part whose network has a `PolicyHead` or `SquashedHead` with the deviation "of_noise".
    """
    params = jax.eval_shape(recipe.parts[part].init, jax.random.key(0))
    named = jax.tree_util.tree_leaves_with_path(params)
    [deviation] = [x for path, x in named if jax.tree_util.keystr(path[-1:]) == "['log_std']"]

    def update(net: Net, batch: Any) -> Net:
        memory = batch.memory and batch.memory.network  # a replay buffer keeps none
        tail = batch.tail and (batch.tail[0], batch.tail[1].network)
        seen = dataclasses.replace(batch, memory=memory, tail=tail)
        return recipe.update(net, seen)

    return dataclasses.replace(
        recipe,
        update=update,
        memory=noisy_memory(recipe.memory, deviation.shape),
    )


def check_noise(env: Environment, noise: StateDependentNoise, name: str) -> None:
    """Raise `UserError` if state-dependent noise is on and actions are no `Box`; the message names
    the algorithm."""
    if noise.enabled and not isinstance(env.action_space, Box):
        raise UserError(
            f"{name} has gsde.enabled, but state-dependent noise needs actions in a Box; "
            f"'{env.name}' has {env.action_space!r}."
        )
