"""Encoders that turn an observation of any space into one vector of features."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space, bounds, is_space
from jaxrl.core.types import Array, Environment, TimeStep, Tree
from jaxrl.networks.heads import scale


def flatten(space: Space, observation: Tree) -> Array:
    """Flatten `observation` [..., *shape] into features [..., D].

    Boxes are flattened, pixels (`scale_pixels`) from 0 to 1, and integers become one-hot; the parts
    of a container follow each other in the order of `jax.tree.leaves`.
    """
    spaces = jax.tree.leaves(space, is_leaf=is_space)
    parts = [_flatten(s, x) for s, x in zip(spaces, jax.tree.leaves(observation), strict=True)]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)


def features(
    space: Space, timestep: TimeStep, convolution: Callable[[Array], Array] | None = None
) -> Array:
    """Compute features [..., D] of a time step: its observation, then its goal if it has one.

    The observation passes through `convolution` if that is given, else through `flatten`.
    """
    x = timestep.observation
    if convolution:
        x = convolution(scale_pixels(space, x))
    else:
        x = flatten(space, x)
    return append_goal(x, timestep)


def scale_pixels(space: Space, x: Array) -> Array:
    """Return bytes whose highest value is 255, as those of pictures, as float32 from 0 to 1.

    Anything else is unchanged, such as observations that are normalized already.
    """
    if not isinstance(space, Box) or x.dtype != jnp.uint8 or np.max(bounds(space)[1]) < 255:
        return x
    return x.astype(jnp.float32) / 255


def check_image(env: Environment, channels: tuple[int, ...]) -> None:
    """Raise `UserError` if there are `channels` of convolutions, but `env` observes no image."""
    space = env.observation_space
    if channels and not (isinstance(space, Box) and len(space.shape) == 3):
        raise UserError(
            f"channels is {list(channels)}, but '{env.name}' observes {space!r}; convolutions need "
            "images [height, width, channels]."
        )


def append_goal(x: Array, timestep: TimeStep) -> Array:
    """Append the time step's goal, if it has one, to the features [..., D] of its observation."""
    if timestep.goal is None:
        return x
    batch = x.shape[:-1]
    goals = [g.reshape(*batch, -1) for g in jax.tree.leaves(timestep.goal)]
    return jnp.concatenate([x, *goals], -1)


def state_action_features(
    observation_space: Space,
    action_space: Space,
    timestep: TimeStep,
    action: Tree,
    convolution: Callable[[Array], Array] | None = None,
) -> Array:
    """Compute the `features` of a time step [...] followed by those of an action: [..., D].

    The action [..., *shape] can be of any space. Integers become one-hot; numbers of a box are
    scaled so that its bounds are -1 and 1.
    """
    seen = features(observation_space, timestep, convolution)
    return jnp.concatenate([seen, action_features(action_space, action)], -1)


def action_features(space: Space, action: Tree) -> Array:
    """Compute features [..., D] of actions [..., *shape]: numbers of a box in half-widths around
    its center (as they are where it is unbounded), one-hot for integers."""
    if isinstance(space, Box):
        center, half_width = scale(space)
        action = (action - center) / half_width
    return flatten(space, action)


def _flatten(space: Space, x: Array) -> Array:
    match space:
        case Discrete(n):
            return jax.nn.one_hot(x, n)
        case MultiDiscrete(sizes):
            return jnp.concatenate(
                [jax.nn.one_hot(x[..., i], n) for i, n in enumerate(sizes)], axis=-1
            )
        case _:
            batch = x.ndim - len(space.shape)
            x = scale_pixels(space, x)
            return x.astype(jnp.float32).reshape(*x.shape[:batch], -1)
