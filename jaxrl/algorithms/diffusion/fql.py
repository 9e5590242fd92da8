"""Flow Q-learning (Park, Li and Levine, 2025, "Flow Q-learning", arXiv:2502.02538).

A flow clones the data's actions. The policy maps noise to an action in one step: it maximizes Q,
and stays near the action to which the flow carries the same noise. So no gradient flows through the
steps of a flow, and acting takes one pass. The critics learn from actions of that policy.

As in the authors' code the next value is the mean of two target critics, and Q of the policy's
action the mean of both critics. The authors descend all losses at once; here the flow, the critics
and the policy take their steps one after the other, each from the others' newest weights.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared.data import Data
from jaxrl.algorithms.diffusion.shared.policies import (
    action_denoiser,
    action_size,
    check,
    critics,
    denoiser_inputs,
    denoising_error,
    from_units,
    to_units,
)
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.core import spaces
from jaxrl.core.types import Environment
from jaxrl.diffusion import Flow
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Normalization, Optimizer, Target, Torso


@group
class Config:
    """Settings of FQL: a one-step policy that maximizes Q near a flow (arXiv:2502.02538)."""

    data: Data = Data()
    torso: Torso = Torso(hidden=(512, 512, 512, 512), activation="gelu")
    """Layers of all networks; the authors' critics also have layer normalization."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of flow, critics and policy, separately. Adam, 3e-4: authors' code."""
    target: Target = Target(rate=0.005)
    normalization: Normalization = Normalization()

    steps: int = static(10, low=1)
    """Number of steps of the flow."""
    normalize_q: bool = False
    """Divide Q in the policy's loss by its mean size, so that `alpha` does not depend on the scale
    of rewards."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards."""
    alpha: float = hyper(10.0, low=0)
    """Weight of the distance from the flow's actions, to be tuned for each environment."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process = Flow()

    def noise(key, timestep):
        return jax.random.normal(key, (*timestep.reward.shape, size))

    @loss("flow")
    def flow_loss(net, x):
        """Match the flow to the data's actions."""
        predict = lambda noisy, level: net.flow(x.timestep, noisy, level)
        return denoising_error(process, predict, net.key(), to_units(space, x.action))

    @loss("critic")
    def critic_loss(net, x):
        """Regress on r + gamma mean_i Q'_i(s', a'), a' of the policy."""
        action = net.actor(x.next_timestep, noise(net.key(), x.next_timestep))
        after = net.target.critic(x.next_timestep, from_units(space, action)).mean(-1)
        reward = net.hyper.reward_scale * x.reward
        target = losses.td_target(reward, x.terminated, net.hyper.discount, after)
        q = net.critic(x.timestep, x.action)
        error = losses.squared_error(q, target[..., None]).sum(-1)
        return LossOutput(error, {"value": q.mean(-1)})

    @loss("actor")
    def actor_loss(net, x):
        """Maximize Q, near the actions that the flow makes of the same noise."""
        start = noise(net.key(), x.timestep)
        predict = lambda noisy, level: net.flow(x.timestep, noisy, level)
        carried = process.sample(net.key(), predict, start.shape, steps=config.steps, start=start)
        action = net.actor(x.timestep, start)
        distance = losses.prediction_error(action, jnp.clip(carried, -1.0, 1.0))
        q = net.critic(x.timestep, from_units(space, action)).mean(-1)
        size = jax.lax.stop_gradient(jnp.abs(q).mean()) if config.normalize_q else 1.0
        return LossOutput(net.hyper.alpha * distance - q / size, {"distance": distance})

    def act(net, timestep, memory, key, greedy):
        return from_units(space, net.actor(timestep, noise(key, timestep))), memory, {}

    inputs = denoiser_inputs(env)
    action = spaces.example(space)[None]
    network, optimizer = action_denoiser(env, config.torso), config.optimizer
    return Recipe(
        parts={
            "flow": Part(network, inputs, optimizer),
            "critic": Part(
                critics(env, config.torso, 2), (inputs[0], action), optimizer, config.target
            ),
            "actor": Part(network, inputs[:2], optimizer),
        },
        act=act,
        losses=(flow_loss, critic_loss, actor_loss),
    )


fql = AlgorithmBuilder("fql", Config, recipe, check=check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "hidden": (8,),
    "steps": 2,
    "normalize_q": True,
}
