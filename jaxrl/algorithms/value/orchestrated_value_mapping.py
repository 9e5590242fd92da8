"""Orchestrated value mapping (Fatemi and Tavakoli, 2022, "Orchestrated value mapping for
reinforcement learning", arXiv:2203.07171), on DQN: a head for each channel of the reward, which
learns its values in a space of its own, such as a logarithm. Actions are chosen by the weighted sum
of the values that the heads stand for; all heads follow the action that is best for it. With
`logarithmic` heads for what is gained and what is lost it is Log-DQN (van Seijen, Fatemi and
Tavakoli, 2019, arXiv:1906.00572), with one head without a mapping, and `averaging` 1, DQN.

What differs from the authors' code: mappings are shifted so that f(0) = 0, by which values begin
near 0; neither rewards nor values are bounded from above; the heads share all layers but the last;
their arithmetic is in float64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.algorithms.value.shared.heads import Head, of_action
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment
from jaxrl.kit import Recipe, group, hyper, static
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.groups import Optimizer

Mapping = Callable[[Array, Any, Any], Array]  # values, resolution, scale


def logarithm_then_line(x: Array, resolution: Any, scale: Any) -> Array:
    """scale log(1 + x / resolution) up to x = 1 - resolution, from there on its tangent."""
    edge = 1 - resolution
    curved = losses.logarithmic(jnp.minimum(x, edge), resolution, scale)
    return curved + scale * jnp.maximum(x - edge, 0)


def logarithm_then_line_inverse(y: Array, resolution: Any, scale: Any) -> Array:
    """Undo `logarithm_then_line`."""
    top = -scale * jnp.log(resolution)
    curved = losses.logarithmic_inverse(jnp.minimum(y, top), resolution, scale)
    return curved + jnp.maximum(y - top, 0) / scale


# Each with its inverse.
MAPPINGS: dict[str, tuple[Mapping, Mapping]] = {
    "identity": (lambda x, resolution, scale: x, lambda y, resolution, scale: y),
    "logarithmic": (losses.logarithmic, losses.logarithmic_inverse),
    "log_linear": (logarithm_then_line, logarithm_then_line_inverse),
}


@group
class Config(dqn_.Config):
    """Settings of orchestrated value mapping: theirs are those of `map_dqn.gin`."""

    optimizer: Optimizer = Optimizer("centered_rmsprop", learning_rate=2.5e-3, decay=0.95, eps=1e-5)
    """Centered RMSProp, 2.5e-3, decay 0.95, epsilon 1e-5, as theirs."""
    discount: float = hyper(0.96, low=0, high=1)
    """Gamma, per step: 0.96, as theirs."""
    levels: int = static(1, low=0, high=8)
    """Channels of each sign: 1 for what is gained and what is lost; with more the first holds up to
    1 of it, the next what goes on up to 10, up to 100..., each in units of its size, the last
    without an end. 0 for one channel, the reward as it is."""
    mappings: tuple[str, ...] = static(("log_linear",), choices=MAPPINGS, least_length=1)
    """Of each channel, those of gains first; or one for all. Logarithms are for what is never
    negative."""
    resolution: float = hyper(0.01687, above=0, below=1)
    """d: where the logarithm is about linear. 0.01687, about 0.96^100, as theirs."""
    scale: float = hyper(0.5, above=0)
    """c of the logarithm, 0.5 as theirs."""
    averaging: float = hyper(0.1, above=0, high=1)
    """How far a value goes to its target before it is mapped: 0.1 as theirs, the 2.5e-4 of DQN over
    the step size in the mapped space."""


def weights(levels: int) -> np.ndarray:
    """Of the channels [K] in the reward."""
    size = np.diff(np.concatenate([[0.0], 10.0 ** np.arange(levels)]))
    return np.concatenate([size, -size]) if levels else np.ones(1)


def channels(reward: Array, levels: int) -> Array:
    """The reward [...] as channels [..., K], whose weighted sum it is."""
    if not levels:
        return reward[..., None]
    size = weights(levels)[:levels]
    low = np.cumsum(size) - size
    room = np.append(size[:-1], np.inf)
    parts = jnp.clip(losses.sign_channels(reward)[..., None] - low, 0, room) / size
    return parts.reshape(*reward.shape, -1)


def head(levels: int, mappings: tuple[str, ...]) -> Head:
    """Mapped values of each channel, with the sum of their errors as the loss."""
    weight = weights(levels)
    names = mappings * len(weight) if len(mappings) == 1 else mappings

    def unmapped(net, outputs):
        columns = zip(names, jnp.moveaxis(outputs, -1, 0), strict=True)
        h = net.hyper
        return jnp.stack([MAPPINGS[n][1](y, h.resolution, h.scale) for n, y in columns], -1)

    def values(net, outputs, timestep):
        return mask_illegal(unmapped(net, outputs) @ jnp.asarray(weight, outputs.dtype), timestep)

    def target(net, x, discount, evaluated, selector):
        best = values(net, selector, x.next_timestep).argmax(-1)
        now, following = of_action(net.q(x.timestep), x.action), of_action(evaluated, best)
        reward, h = channels(x.reward, levels), net.hyper

        def of_channel(k, name):
            forward, inverse = (lambda x, f=f: f(x, h.resolution, h.scale) for f in MAPPINGS[name])
            only = slice(k, k + 1)
            return losses.mapped_q_target(
                reward[..., only], x.terminated, discount, now[..., only],
                following[..., only, None], jnp.ones(1), forward, inverse, h.averaging,
            )  # fmt: skip

        return jnp.concatenate([of_channel(k, name) for k, name in enumerate(names)], -1)

    def error(net, outputs, target):
        loss = losses.huber(outputs, target, net.hyper.huber)
        return loss.sum(-1), jnp.abs(outputs - target).sum(-1)

    return Head(len(weight), values, target, error)


def recipe(env: Environment, config: Any) -> Recipe:
    return dqn_.recipe(env, config, head=head(config.levels, config.mappings))


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` as DQN does, for other than one mapping for each channel or for all, and
    for a logarithm of rewards that may be negative."""
    dqn_.check(env, config, name)
    number = len(weights(config.levels))
    if len(config.mappings) not in (1, number):
        raise UserError(
            f"mappings has {len(config.mappings)} entries; levels {config.levels} makes {number} "
            "channels."
        )
    if not config.levels and config.mappings != ("identity",):
        raise UserError(
            f"mappings is {config.mappings[0]} of the reward as it is, which may be negative; with "
            "levels 0 it must be identity."
        )


orchestrated_value_mapping = dataclasses.replace(
    dqn_.dqn, name="orchestrated_value_mapping", Config=Config, recipe=recipe, check=check
)

TINY = dqn_.TINY | {
    "levels": 2,
    "mappings": ("log_linear", "logarithmic", "identity", "log_linear"),
}
