"""TD3+BC (Fujimoto and Gu, 2021, "A minimalist approach to offline reinforcement learning",
arXiv:2106.06860): TD3 (Fujimoto et al., 2018, "Addressing function approximation error in
actor-critic methods"), whose policy also stays near the data's actions.

With an infinite `alpha` the cloning is gone and this is TD3, so the same agent goes on online; with
0 it is behaviour cloning. TD3's policy loss is then divided by the mean size of its values too,
which Adam does not see.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl import losses
from jaxrl.agents.offline.experience import DEFAULT, Experience
from jaxrl.core import spaces, trees
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, hyper, hypers, select, static
from jaxrl.core.types import Agent, Array, Environment, Info, Tree, struct
from jaxrl.kit.optimisation import descend, transform
from jaxrl.networks.critics import ActionValues, DeterministicActor
from jaxrl.networks.heads import scale
from jaxrl.networks.torsos import ACTIVATIONS


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of TD3+BC."""

    experience: Experience = DEFAULT
    """What is learnt from."""

    hidden: tuple[int, ...] = static((256, 256), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of the policy and of each critic."""
    activation: str = static("relu", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    members: int = static(2, low=1, high=MANY)
    """Critics, of which the most cautious counts."""
    delay: int = static(2, low=1)
    """Steps of the critics for one of the policy and of all targets."""
    normalize_observation: bool = True
    """Standardise observations with running statistics."""

    alpha: float = hyper(2.5, low=0, high=math.inf)
    """How much the value counts beside cloning; infinite for TD3, 0 for cloning alone."""
    learning_rate: float = hyper(3e-4, low=0)
    """Step size."""
    target_rate: float = hyper(0.005, low=0, high=1)
    """Share of policy and critics that goes into the target networks."""
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


@struct
class State:
    actor: Tree
    critic: Tree
    target_actor: Tree
    target_critic: Tree
    actor_optimiser: Tree
    critic_optimiser: Tree
    steps: Array  # int32
    hyper: Tree


def clone_or_improve(q: Array, action: Array, data_action: Array, alpha: Array) -> Array:
    """`losses.td3_bc` [...], also for an infinite `alpha`: the cloning term is then gone."""
    plain = jnp.isinf(alpha)
    near = jnp.where(plain, jax.lax.stop_gradient(action), data_action)
    return losses.td3_bc(q, action, near, jnp.where(plain, 1.0, alpha))


def agent(env: Environment, config: Config) -> Agent:
    """The TD3+BC agent for `env`, of single transitions [n]. Raises `UserError` unless actions are
    one bounded box."""
    own, space = hypers(config), env.action_space
    if not isinstance(space, spaces.Box) or not np.isfinite(spaces.bounds(space)).all():
        raise UserError(
            f"td3_bc cannot act in {space!r}; it needs a bounded Box (iql learns offline with any "
            "actions)."
        )
    sizes = (env.observation_space, space, config.hidden)
    actor: Any = DeterministicActor(*sizes, config.activation)
    critic: Any = ActionValues(*sizes, config.members, config.activation)
    optimiser = transform("adam")
    (low, high), (centre, half_width) = spaces.bounds(space), scale(space)

    def init(key, hyper):
        keys, timestep = jax.random.split(key), example_timestep(env)
        policy = actor.init(keys[0], timestep)
        values = critic.init(keys[1], timestep, spaces.example(space)[None])
        copy = lambda tree: jax.tree.map(lambda x: x.copy(), tree)
        return State(
            policy,
            values,
            copy(policy),
            copy(values),
            optimiser.init(policy),
            optimiser.init(values),
            jnp.int32(0),
            select(config, hyper),
        )

    def act(state, timestep, memory, key, greedy):
        action = actor.apply(state.actor, timestep)
        if not greedy:
            noise = state.hyper["exploration_noise"] * half_width
            action = action + noise * jax.random.normal(key, action.shape)
            action = spaces.clip(space, action)
        return action, memory, {}

    def update(state, batch, key):
        hyper, x = state.hyper, batch.transitions
        noise = half_width * hyper["target_noise"] * jax.random.normal(key, x.action.shape)
        next_action = losses.smoothed_action(
            actor.apply(state.target_actor, x.next_timestep),
            noise,
            half_width * hyper["target_noise_clip"],
            jnp.asarray(low),
            jnp.asarray(high),
        )
        next_q = critic.apply(state.target_critic, x.next_timestep, next_action)
        target = losses.td3_target(
            hyper["reward_scale"] * x.reward, x.terminated, hyper["discount"], next_q
        )

        def critic_loss(params):
            q = critic.apply(params, x.timestep, x.action)
            return losses.squared_error(q, target[..., None]).sum(-1).mean(), q.mean()

        (error, level), gradient = jax.value_and_grad(critic_loss, has_aux=True)(state.critic)
        values, critic_optimiser, norm = descend(
            optimiser, gradient, state.critic_optimiser, state.critic, hyper["learning_rate"]
        )

        def actor_loss(params):
            action = actor.apply(params, x.timestep)
            q = critic.apply(values, x.timestep, action)[..., 0]
            unit = lambda a: ((a - centre) / half_width).reshape(*q.shape, -1)
            return clone_or_improve(q, unit(action), unit(x.action), hyper["alpha"]).mean()

        loss, gradient = jax.value_and_grad(actor_loss)(state.actor)
        policy, actor_optimiser, _ = descend(
            optimiser, gradient, state.actor_optimiser, state.actor, hyper["learning_rate"]
        )
        follow = lambda new, old: optax.incremental_update(new, old, hyper["target_rate"])
        steps = state.steps + 1
        old = (state.actor, state.actor_optimiser, state.target_actor, state.target_critic)
        new = (
            policy,
            actor_optimiser,
            follow(policy, state.target_actor),
            follow(values, state.target_critic),
        )
        # A select, since under vmap a branch would be computed anyway.
        policy, actor_optimiser, target_actor, target_critic = trees.where(
            steps % config.delay == 0, new, old
        )
        metrics = {
            "critic_loss": error,
            "value": level,
            "actor_loss": loss,
            "critic_grad_norm": norm,
            "critic_norm": optax.tree.norm(values),
            "actor_norm": optax.tree.norm(policy),
        }
        state = State(
            policy,
            values,
            target_actor,
            target_critic,
            actor_optimiser,
            critic_optimiser,
            steps,
            hyper,
        )
        return state, Info(metrics)

    return Agent("td3_bc", init, act, update, hyper=own, config=config)
