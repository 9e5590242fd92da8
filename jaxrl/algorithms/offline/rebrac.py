"""ReBRAC (Tarasov, Kurenkov, Nikulin and Kolesnikov, 2023, "Revisiting the minimalist approach to
offline reinforcement learning", arXiv:2305.09836): TD3+BC whose distance to the data's actions also
lowers the values that the critics bootstrap from, with weights of their own for the two distances,
normalized layers in the critics, deeper networks and larger batches.

    actor   beta_1 |mu(s) - a|^2 - min_i Q_i(s, mu(s)) / mean |min_i Q_i|
    target  r + gamma (min_i Q'_i(s', a') - beta_2 |a' - a_next|^2)

Here a' is the target policy's action with clipped noise, and a_next the data's next action.
Distances are sums over dimensions, in half-widths, as in the authors' code. Steps that a time limit
cut off have no next action in the data; the authors' loader leaves these steps out, and here they
are kept without a penalty. Layers are normalized before the activation (after it in the authors'
code), and target networks follow in the steps that update the policy.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.algorithms.continuous_control import td3
from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.continuous_control.shared.target_smoothing import Cautious
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.algorithms.offline.shared.outcomes import add_outcomes
from jaxrl.core.types import Array, Environment, Source
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper
from jaxrl.kit.acting import add_gaussian_noise
from jaxrl.kit.groups import Normalization, Optimizer, Target, Torso
from jaxrl.networks.heads import scale


@group
class Config(Cautious):
    """Settings of ReBRAC: TD3+BC with a distance to the data in the critics' target too
    (arXiv:2305.09836). The defaults are those of the authors' code."""

    data: Data = Data(batch_size=1024)
    torso: Torso = Torso(hidden=(256, 256, 256))
    actor: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the policy."""
    critic: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the critics."""
    target: Target = Target(rate=0.005)
    normalization: Normalization = Normalization()

    actor_weight: float = hyper(1.0, low=0)
    """Weight of the distance to the data's actions in the policy's loss, beta_1."""
    critic_weight: float = hyper(1.0, low=0)
    """Weight of the distance to the data's next actions in the critics' target, beta_2."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards."""


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space
    half_width = scale(space)[1]  # type: ignore[arg-type]

    def distance(a: Array, b: Array) -> Array:
        """Compute the squared distance [B] of actions [B, *shape] in half-widths."""
        return jnp.square((a - b) / half_width).reshape(len(a), -1).sum(-1)

    def next_distance(net, x, next_action):
        """Compute beta_2 |a' - a_next|^2; 0 after a truncation."""
        apart = distance(next_action, x.extras["next_action"])
        return net.hyper.critic_weight * jnp.where(x.truncated, 0.0, apart)

    def improvement(net, x):
        """Compute beta_1 |mu(s) - a|^2 - lambda min Q(s, mu(s)), lambda = 1 / mean |min Q|."""
        action = net.actor(x.timestep)
        q = net.critic(x.timestep, action).min(-1)
        apart = distance(action, x.action)
        size = jnp.abs(jax.lax.stop_gradient(q)).mean()
        value = jnp.where(size > 0, q / jnp.where(size > 0, size, 1.0), 0.0)
        return LossOutput(net.hyper.actor_weight * apart - value, {"distance": apart})

    plain = td3.recipe(
        env,
        config,
        reward=scaled_reward,
        next_penalty=next_distance,
        improvement=improvement,
        act=add_gaussian_noise("actor", space, half_width),
        optimizers=(config.actor, config.critic),
        layer_norm=True,
    )
    return dataclasses.replace(plain, needs=("transitions.extras.next_action",))


def source(env: Environment, config: Config) -> Source:
    """Return the dataset, with the next action of each step."""
    return add_outcomes(config.data.dataset(env, config.data.batch_size))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, and for an environment beside the
    dataset."""
    deterministic.check(env, config, name)
    config.data.check_alone(name, "it needs the next action of each step")


rebrac = AlgorithmBuilder("rebrac", Config, recipe, source, check=check)

TINY = {"env": "pendulum", "hidden": (8,), "normalization.observation": True} | TINY_DATA
