"""Orchestrated value mapping (Fatemi and Tavakoli, 2022, "Orchestrated value mapping for
reinforcement learning", arXiv:2203.07171), on DQN: a head for each channel of the reward, which
learns its values in a space of its own, such as a logarithm.

Actions are chosen by the weighted sum of the values that the heads stand for, and all heads follow
the action that is best for it. With `logarithmic` heads for gains and losses it is Log-DQN (van
Seijen, Fatemi and Tavakoli, 2019, arXiv:1906.00572); with one head without a mapping, and
`averaging` 1, it is DQN.

Unlike in the authors' code, mappings are shifted so that f(0) = 0, by which values begin near 0;
neither rewards nor values are bounded from above; the heads share all layers but the last; and
arithmetic is not in float64.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.value.shared.heads import Head, action_outputs, summed_huber_error
from jaxrl.algorithms.value.shared.q_learning import (
    TINY_Q_LEARNING,
    QLearning,
    check_q_learning,
    q_learning_recipe,
)
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper, static
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.groups import EpsilonGreedy, Optimizer


class ValueMapping(Protocol):
    """A monotone function of values, or its inverse."""

    def __call__(self, x: Array, resolution: Any, scale: Any, /) -> Array:
        """Return mapped values [...].

        x: values, or for an inverse mapped values, [...].
        resolution: d, up to which the logarithm is about linear, a scalar.
        scale: c, which multiplies the logarithm, a scalar.
        """
        ...


def logarithm_then_line(x: Array, resolution: Any, scale: Any) -> Array:
    """Return scale log(1 + x / resolution) up to x = 1 - resolution, beyond that its tangent."""
    edge = 1 - resolution
    curved = losses.logarithmic(jnp.minimum(x, edge), resolution, scale)
    return curved + scale * jnp.maximum(x - edge, 0)


def logarithm_then_line_inverse(y: Array, resolution: Any, scale: Any) -> Array:
    """Undo `logarithm_then_line`."""
    top = -scale * jnp.log(resolution)
    curved = losses.logarithmic_inverse(jnp.minimum(y, top), resolution, scale)
    return curved + jnp.maximum(y - top, 0) / scale


# Each mapping with its inverse.
MAPPINGS: dict[str, tuple[ValueMapping, ValueMapping]] = {
    "identity": (lambda x, resolution, scale: x, lambda y, resolution, scale: y),
    "logarithmic": (losses.logarithmic, losses.logarithmic_inverse),
    "log_linear": (logarithm_then_line, logarithm_then_line_inverse),
}


@group
class Config(QLearning):
    """Settings of orchestrated value mapping, from the authors' `map_dqn.gin`."""

    optimizer: Optimizer = Optimizer("centered_rmsprop", learning_rate=2.5e-3, decay=0.95, eps=1e-5)
    """Centered RMSProp, 2.5e-3, decay 0.95, epsilon 1e-5, as in `map_dqn.gin`."""
    exploration: EpsilonGreedy = EpsilonGreedy()
    discount: float = hyper(0.96, low=0, high=1)
    """Discount factor (gamma) per step: 0.96, as in `map_dqn.gin`."""
    huber: float = hyper(1.0, above=0)
    """Size from which errors count linearly."""
    levels: int = static(1, low=0, high=8)
    """Number of reward channels of each sign; 0 for one channel, the reward as it is. 1 splits
    gains from losses. With more, the first holds up to 1 of a gain, the next its part from 1 to 10,
    the next up to 100, each in units of its size, the last without an end."""
    mappings: tuple[str, ...] = static(("log_linear",), choices=MAPPINGS, least_length=1)
    """Mapping of each channel, those of gains first, or one for all. Logarithms are for channels
    that are never negative."""
    resolution: float = hyper(0.01687, above=0, below=1)
    """Value d up to which the logarithm is about linear: 0.01687, about 0.96^100, as in
    `map_dqn.gin`."""
    scale: float = hyper(0.5, above=0)
    """Scale c of the logarithm: 0.5, as in `map_dqn.gin`."""
    averaging: float = hyper(0.1, above=0, high=1)
    """Share of the way to its target that a value goes before it is mapped. 0.1 as in
    `map_dqn.gin`: DQN's 2.5e-4 over the step size in the mapped space."""


def weights(levels: int) -> np.ndarray:
    """Return the weights [K] of the channels in the reward."""
    size = np.diff(np.concatenate([[0.0], 10.0 ** np.arange(levels)]))
    return np.concatenate([size, -size]) if levels else np.ones(1)


def channels(reward: Array, levels: int) -> Array:
    """Split the reward [...] into channels [..., K], whose weighted sum it is."""
    if not levels:
        return reward[..., None]
    size = weights(levels)[:levels]
    low = np.cumsum(size) - size
    room = np.append(size[:-1], np.inf)
    parts = jnp.clip(losses.sign_channels(reward)[..., None] - low, 0, room) / size
    return parts.reshape(*reward.shape, -1)


def head(levels: int, mappings: tuple[str, ...]) -> Head:
    """Return a head that predicts mapped values of each channel; the loss is the sum of their
    errors."""
    weight = weights(levels)
    names = mappings * len(weight) if len(mappings) == 1 else mappings

    def undo_mappings(net, outputs):
        columns = zip(names, jnp.moveaxis(outputs, -1, 0), strict=True)
        h = net.hyper
        return jnp.stack([MAPPINGS[n][1](y, h.resolution, h.scale) for n, y in columns], -1)

    def values(net, outputs, timestep):
        weighted = undo_mappings(net, outputs) @ jnp.asarray(weight, outputs.dtype)
        return mask_illegal(weighted, timestep)

    def target(net, x, *, discount, evaluated, selector):
        best = values(net, selector, x.next_timestep).argmax(-1)
        now = action_outputs(net.q(x.timestep), x.action)
        following = action_outputs(evaluated, best)
        reward, h = channels(x.reward, levels), net.hyper

        def channel_target(k, name):
            forward, inverse = (lambda x, f=f: f(x, h.resolution, h.scale) for f in MAPPINGS[name])
            only = slice(k, k + 1)
            return losses.mapped_q_target(
                reward[..., only], x.terminated, discount, now[..., only],
                following[..., only, None], jnp.ones(1), forward, inverse, h.averaging,
            )  # fmt: skip

        return jnp.concatenate([channel_target(k, name) for k, name in enumerate(names)], -1)

    return Head(len(weight), values, target, summed_huber_error)


def recipe(env: Environment, config: Config) -> Recipe:
    return q_learning_recipe(
        env,
        config.torso,
        head(config.levels, config.mappings),
        optimizer=config.optimizer,
        target=config.target,
        exploration=config.exploration,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` where Q-learning does not fit, for a number of mappings other than that of
    the channels or 1, and for a logarithm of rewards that may be negative."""
    check_q_learning(env, config, name)
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


orchestrated_value_mapping = AlgorithmBuilder(
    "orchestrated_value_mapping", Config, recipe, check=check
)

TINY = TINY_Q_LEARNING | {
    "levels": 2,
    "mappings": ("log_linear", "logarithmic", "identity", "log_linear"),
}
