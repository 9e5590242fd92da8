"""Generative models that are fine-tuned on the reward of their samples, actions of one step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jaxrl.algorithms.diffusion.shared import policies
from jaxrl.algorithms.diffusion.shared.policies import (
    action_denoiser,
    denoiser_inputs,
    from_units,
)
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Environment, Key, Policy, TimeStep, Tree, struct
from jaxrl.core.types import static as static_field
from jaxrl.exact.tilted import has_density, tilted_law, total_variation
from jaxrl.kit import Part, group, static
from jaxrl.kit.groups import Optimizer, Rollouts, Torso
from jaxrl.kit.parts import copy, trainable
from jaxrl.kit.state import State

SAMPLES = 4096  # of which a measured law is made


@group
class OneStep(Rollouts):
    """Samples that are drawn between two updates."""

    num_envs: int = static(256, low=1, high=MANY)
    """Number of samples between two updates, one in each of as many environments."""
    num_steps: int = static(1, low=1, high=MANY)
    """Number of steps of each environment between two updates."""


@group
class FineTuning:
    """Settings shared by algorithms that fine-tune a generative model on rewards."""

    rollouts: OneStep = OneStep()
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the generative model."""
    torso: Torso = Torso(hidden=(256, 256, 256), activation="silu")


def generator_parts(env: Environment, config: Any) -> dict[str, Part]:
    """Return the parts of a generator: the `denoiser` that is trained, and its frozen `base`."""
    network, inputs = action_denoiser(env, config.torso), denoiser_inputs(env)
    return {
        "denoiser": Part(network, inputs, config.optimizer),
        "base": Part(network, inputs, begins_as="denoiser"),
    }


def value_part(env: Environment, config: Any) -> Part:
    """Return a value of noisy samples: time step [B], noisy [..., B, D], level [..., B] -> [..., B,
    1], with the optimizer settings `value`."""
    network = dataclasses.replace(action_denoiser(env, config.torso), size=1)
    return Part(network, denoiser_inputs(env), config.value)


@struct
class Cloned:
    """Process of noise that a cloned denoiser was trained with: an agent's `extra`."""

    process: str = static_field()


def begin_as_cloned_with(process: str) -> Callable[[State, Tree], Tree]:
    """Return `begin_as_cloned` for a model of the process of noise called `process`, which raises
    `UserError` for one of another process."""

    def adopt(state: State, other: Tree) -> Tree:
        found = getattr(getattr(other, "extra", None), "process", process)
        if found != process:
            raise UserError(
                f"The run that this one begins with cloned a model with process={found}, but what "
                f"it goes on with must be a model with process={process}; train diffusion_bc so."
            )
        return begin_as_cloned(state, other)

    return adopt


def begin_as_cloned(state: State, other: Tree) -> Tree:
    """Begin, both as denoiser and as base, with the running average of another agent's denoiser, or
    with its denoiser where it keeps none; other parts begin anew: an `adopt`."""
    if not isinstance(other, State) or "denoiser" not in other.parts:
        return other  # which will not fit
    cloned = other.parts["denoiser"]
    params = cloned.params if cloned.target is None else cloned.target

    def begin(name: str) -> Any:
        own = state.parts[name]
        target = None if own.target is None else copy(trainable(params))
        return dataclasses.replace(own, params=copy(params), target=target)

    names = [n for n in ("denoiser", "base") if n in state.parts]
    return dataclasses.replace(state, parts=state.parts | {name: begin(name) for name in names})


def reward_of(env: Environment, timestep: TimeStep, vector: Array, key: Key) -> Array:
    """Return the rewards [B] of samples [B, D], in half-widths, at time steps [B]: a differentiable
    function of the samples where the environment's is one."""
    assert env.state_of is not None
    state = jax.vmap(env.state_of)(timestep)
    keys = jax.random.split(key, len(vector))
    action = from_units(env.action_space, vector)

    def pay(key: Key, state: Tree, action: Array) -> Array:
        return env.step(key, state, action, env.params)[1].reward

    return jax.vmap(pay)(keys, state, action)


def check_known_reward(env: Environment, name: str) -> None:
    """Raise `UserError` unless the reward of a sample can be computed at any time step."""
    if env.state_of is None:
        raise UserError(
            f"{name} computes the rewards of samples that it does not play, but no time step of "
            f"'{env.name}' tells its state (Environment.state_of)."
        )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box and an episode is one step."""
    policies.check(env, config, name)
    if env.max_steps != 1:
        raise UserError(
            f"{name} fine-tunes samples that are actions of one step; episodes of '{env.name}' "
            f"have {env.max_steps or 'any number of'} steps."
        )


def tilted_scores(env: Environment) -> dict[str, str]:
    """Return what `measure_tilted` measures in `env`, each with its label."""
    if not has_density(env):
        return {}
    return {"tilted_distance": "distance from the tilted law", "tilted_reward": "its reward"}


def measure_tilted(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Measure greedy samples beside the exact law p(x) exp(r(x) / beta), beta a hyperparameter.

    `tilted_distance` is the total variation over 8 x 8 cells, with 4,096 samples of which a perfect
    sampler has about 0.03; `tilted_reward` the expected reward of the exact law. Nothing where the
    density is not known.
    """
    if not has_density(env):
        return {}
    law = tilted_law(env, policy.state.hyper["beta"])
    reset_key, act_key = jax.random.split(key)
    keys = jax.random.split(reset_key, SAMPLES)
    timestep = jax.vmap(env.reset, (0, None))(keys, env.params)[1]
    samples, _, _ = policy.act(policy.state, timestep, policy.memory(SAMPLES), act_key, True)
    return {
        "tilted_distance": total_variation(law, samples),
        "tilted_reward": law.expected_reward,
    }
