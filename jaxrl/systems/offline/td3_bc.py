"""TD3+BC (Fujimoto and Gu, 2021, "A minimalist approach to offline reinforcement learning",
arXiv:2106.06860): TD3 (Fujimoto et al., 2018, "Addressing function approximation error in
actor-critic methods", arXiv:1802.09477), whose policy also stays near the data's actions.

With an infinite `alpha` the cloning is gone and this is TD3, so the same agent goes on online; with
0 it is behaviour cloning. TD3's policy loss is then divided by the mean size of its values too,
which Adam does not see.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment
from jaxrl.kit import Loss, Net, Part, Recipe, System, group, hyper, static
from jaxrl.kit.acting import with_noise
from jaxrl.kit.groups import INF, Normalization, Optimizer, Target, Torso
from jaxrl.networks.critics import ActionValues, DeterministicActor
from jaxrl.networks.heads import check_bounded, scale
from jaxrl.systems.offline.data import Data


@group
class Config:
    """Settings of TD3+BC."""

    data: Data = Data()
    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Of policy and critics, each for itself. Adam, 3e-4: authors' code."""
    target: Target = Target(rate=0.005)
    normalization: Normalization = Normalization(observation=True)
    num_critics: int = static(2, low=1)
    """Critics, of which the most cautious counts."""
    delay: int = static(2, low=1)
    """Updates of the critics for one of the policy and of all copies."""

    alpha: float = hyper(2.5, low=0, high=INF)
    """How much the value counts beside cloning; infinite for TD3, 0 for cloning alone."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    reward_scale: float = hyper(1.0, above=0)
    """What rewards are multiplied by."""
    target_noise: float = hyper(0.2, low=0)
    """Standard deviation of the noise on the target policy's actions, in half-widths of theirs."""
    target_noise_clip: float = hyper(0.5, low=0)
    """Its largest size."""
    exploration_noise: float = hyper(0.1, low=0)
    """Standard deviation of the noise on actions that are not greedy, in half-widths."""


def clone_or_improve(q: Array, action: Array, data_action: Array, alpha: Array) -> Array:
    """`losses.td3_bc` [...], also for an infinite `alpha`: the cloning term is then gone."""
    plain = jnp.isinf(alpha)
    near = jnp.where(plain, jax.lax.stop_gradient(action), data_action)
    return losses.td3_bc(q, action, near, jnp.where(plain, 1.0, alpha))


def recipe(env: Environment, config: Config) -> Recipe:
    space, torso, timestep = env.action_space, config.torso, example_timestep(env)
    (low, high), (centre, half_width) = spaces.bounds(space), scale(space)

    def critic_loss(net: Net, x):
        """Clipped double Q-learning on a smoothed target action (TD3, algorithm 1)."""
        h = net.hyper
        noise = half_width * h.target_noise * jax.random.normal(net.key(), x.action.shape)
        action = losses.smoothed_action(
            net.target.actor(x.next_timestep),
            noise,
            half_width * h.target_noise_clip,
            jnp.asarray(low),
            jnp.asarray(high),
        )
        next_q = net.target.critic(x.next_timestep, action)
        target = losses.td3_target(h.reward_scale * x.reward, x.terminated, h.discount, next_q)
        q = net.critic(x.timestep, x.action)
        return losses.squared_error(q, target[..., None]).sum(-1), {"value": q.mean(-1)}

    def actor_loss(net: Net, x):
        """Equation 5: -lambda Q(s, pi(s)) + (pi(s) - a)^2, lambda = alpha / mean |Q|."""
        action = net.actor(x.timestep)
        q = net.critic(x.timestep, action)[..., 0]
        unit = lambda a: ((a - centre) / half_width).reshape(*q.shape, -1)
        return clone_or_improve(q, unit(action), unit(x.action), net.hyper.alpha)

    def update(net, batch):
        net = net.descend("critic_loss", batch)
        net = net.descend("actor_loss", batch, every=config.delay)
        return net.follow(every=config.delay)

    sizes = (env.observation_space, space, torso.hidden)
    more = (torso.activation, torso.initializer)
    critics = ActionValues(*sizes, config.num_critics, *more)
    inputs = (timestep, spaces.example(space)[None])
    return Recipe(
        parts={
            "actor": Part(DeterministicActor(*sizes, *more), (timestep,), target="target"),
            "critic": Part(critics, inputs, target="target"),
        },
        act=with_noise("actor", space, half_width),
        losses={
            "critic_loss": Loss(critic_loss, ("critic",)),
            "actor_loss": Loss(actor_loss, ("actor",)),
        },
        update=update,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` unless actions are one bounded box."""
    check_bounded(env.action_space, name)


td3_bc = System("td3_bc", Config, recipe, check=check)

TINY = {
    "env": "pendulum",
    "data.name": "random",
    "data.size": 256,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
    "data.num_envs": 4,
    "data.capacity": 64,
    "data.warmup": 16,
    "hidden": (8,),
}
