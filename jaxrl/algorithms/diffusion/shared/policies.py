"""Policies whose actions are samples of a denoiser: units of actions, losses, and candidates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep
from jaxrl.diffusion import Hooks
from jaxrl.diffusion.sampling import Predict
from jaxrl.kit.groups import Torso
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.denoisers import ActionDenoiser
from jaxrl.networks.heads import check_bounded, scale

# Actions lie between -1 and 1 in units of the space, so predicted clean ones are clipped to that.
WITHIN_BOUNDS = Hooks(bound=1.0)


def to_units(space: Box, action: Array) -> Array:
    """Return actions [..., *shape] as vectors [..., D] in half-widths of the bounded `space`."""
    center, half_width = scale(space)
    unit = (action - center) / half_width
    return unit.reshape(*action.shape[: action.ndim - center.ndim], center.size)


def from_units(space: Box, vector: Array) -> Array:
    """Undo `to_units`, and clip to the bounds of `space`."""
    center, half_width = scale(space)
    action = center + half_width * vector.reshape(*vector.shape[:-1], *center.shape)
    return spaces.clip(space, action.astype(space.dtype))


def action_size(space: Box) -> int:
    """Return the number D of numbers of an action."""
    return scale(space)[0].size


def action_denoiser(env: Environment, torso: Torso) -> ActionDenoiser:
    """Build the denoiser of single actions in `env`."""
    return ActionDenoiser(
        env.observation_space,
        action_size(env.action_space),
        torso.hidden,
        torso.activation,
        torso.initializer,
    )


def denoiser_inputs(env: Environment, *condition: Array) -> tuple[Any, ...]:
    """Return an example of the inputs of `action_denoiser(env)`."""
    noisy = jnp.zeros((1, action_size(env.action_space)))
    return example_timestep(env), noisy, jnp.ones(1), *condition


def critics(env: Environment, torso: Torso, count: int) -> ActionValues:
    """Build `count` critics of single actions in `env`."""
    spaces_of = (env.observation_space, env.action_space)
    return ActionValues(*spaces_of, torso.hidden, count, torso.activation, torso.initializer)


def denoising_error(process: Any, predict: Predict, key: Key, clean: Array) -> Array:
    """Return the error [...] of a network that denoises `clean` [..., D], at random levels.

    It is averaged over the axes that share a level.
    """
    x = process.add_noise(key, clean)
    error = losses.prediction_error(predict(x.noisy, x.level), x.target)
    return x.weight * error.reshape(*x.weight.shape, -1).mean(-1)


def values_of(critic: Any, space: Box, timestep: TimeStep, candidates: Array) -> Array:
    """Return the critics' values [N, B, E] of N candidates for each time step [B].

    candidates: [N, B, D], in half-widths.
    """
    return jax.vmap(lambda action: critic(timestep, from_units(space, action)))(candidates)


def pick(candidates: Array, index: Array) -> Array:
    """Return the candidate [B, D] of [N, B, D] with the number `index` [B]."""
    return jnp.take_along_axis(candidates, index[None, :, None], 0)[0]


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box."""
    check_bounded(env.action_space, name)
