"""CrossQ (Bhatt et al., 2024, "CrossQ: batch normalization in deep reinforcement learning for
greater sample efficiency and simplicity", arXiv:1902.05605): SAC without copies of its critics,
whose wide layers are normalized by the batch, of (s, a) and (s', a') together.

The normalization is batch renormalization with a warm-up, as in the authors' code. Unlike there
the temperature's Adam has a short memory too (beta1 0.9 there), and the warm-up of the replay acts
by the first policy (theirs at random).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.algorithms.continuous_control import sac as sac_
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.kit import Net, Recipe, group, static
from jaxrl.kit.groups import Optimizer, Replay, Torso
from jaxrl.networks.normalization import BatchRenorm


@group
class Config(sac_.Common):
    """Settings of CrossQ. The defaults are those of the authors' code, but for the replay's
    capacity, a million there."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256, warmup=5000)
    critic: Torso = Torso(hidden=(2048, 2048))
    """Of each critic."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3, beta1=0.5)
    """Of actor, critics and temperature, each. Adam, 1e-3, with a short memory."""
    delay: int = static(3, low=1)
    """Updates of the critics for one of policy and temperature."""
    momentum: float = static(0.99, low=0, below=1)
    """Share of the running moments that a batch leaves."""
    renormalized_after: int = static(100_000, low=0)
    """Batches of a network before its normalization looks at the running moments too."""


def together(net: Net, x: Transition, action: Array) -> tuple[Array, Array, dict]:
    """Figure 3: one batch of both, so that its moments are those of both."""
    now, after = (x.timestep, x.action), (x.next_timestep, action)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), now, after)
    q, state = net.critic(*both, train=True, mutable="batch_stats")
    return *jnp.split(q, 2), state  # pyright: ignore[reportReturnType]


def recipe(env: Environment, config: Config) -> Recipe:
    normalization = functools.partial(BatchRenorm, config.momentum, config.renormalized_after)
    critics = sac_.Critics(evaluated=together)
    return sac_.recipe(env, config, critics, config.critic, normalization, "", config.delay)


crossq = dataclasses.replace(sac_.sac, name="crossq", Config=Config, recipe=recipe)

TINY = {n: v for n, v in sac_.TINY.items() if n != "hidden"} | {
    "torso.hidden": (8,),
    "critic.hidden": (6,),
    "updates": 3,
    "delay": 2,
    "renormalized_after": 2,
}
