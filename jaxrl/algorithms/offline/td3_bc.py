"""TD3+BC (Fujimoto and Gu, 2021, "A minimalist approach to offline reinforcement learning",
arXiv:2106.06860): TD3 (Fujimoto et al., 2018, "Addressing function approximation error in
actor-critic methods", arXiv:1802.09477) with a policy that also stays near the data's actions.

With an infinite `alpha` there is no cloning term and this is TD3, so the same agent can continue
online; with 0 it is behavior cloning. TD3's policy loss is then still divided by the mean absolute
value, to which Adam is invariant.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control import td3
from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.continuous_control.shared.target_smoothing import Cautious
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper
from jaxrl.kit.acting import add_gaussian_noise
from jaxrl.kit.groups import INF, Normalization, Optimizer, Target, Torso
from jaxrl.networks.heads import scale


@group
class Config(Cautious):
    """Settings of TD3+BC: TD3 with a cloning term in the policy loss (arXiv:2106.06860, equation
    5)."""

    data: Data = Data()
    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the policy and of the critics, separately. Adam, 3e-4: authors'
    code."""
    target: Target = Target(rate=0.005)
    normalization: Normalization = Normalization(observation=True)

    alpha: float = hyper(2.5, low=0, high=INF)
    """Weight of the value relative to cloning; infinite for TD3, 0 for cloning alone."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards."""


def clone_or_improve(q: Array, action: Array, data_action: Array, alpha: Array) -> Array:
    """Compute `losses.td3_bc` [...], without the cloning term if `alpha` is infinite."""
    plain = jnp.isinf(alpha)
    near = jnp.where(plain, jax.lax.stop_gradient(action), data_action)
    return losses.td3_bc(q, action, near, jnp.where(plain, 1.0, alpha))


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space
    center, half_width = scale(space)  # type: ignore[arg-type]

    def improvement(net, x):
        """Compute -lambda Q(s, pi(s)) + (pi(s) - a)^2, lambda = alpha / mean |Q| (equation 5)."""
        action = net.actor(x.timestep)
        q = net.critic(x.timestep, action)[..., 0]
        unit = lambda a: ((a - center) / half_width).reshape(*q.shape, -1)
        return clone_or_improve(q, unit(action), unit(x.action), net.hyper.alpha)

    act = add_gaussian_noise("actor", space, half_width)
    return td3.recipe(env, config, reward=scaled_reward, improvement=improvement, act=act)


td3_bc = AlgorithmBuilder("td3_bc", Config, recipe, check=deterministic.check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "data.num_envs": 4,
    "data.capacity": 64,
    "data.warmup": 16,
    "hidden": (8,),
}
