"""SAC for discrete actions (Christodoulou, 2019, "Soft actor-critic for discrete action settings",
arXiv:1910.07207): critics value every action, so that expectations over the policy are sums.

The convolutions are those of `torso.channels`, and the replay buffer is smaller than the paper's
million. In the warm-up the initial policy acts, where the paper acts at random. The target entropy
is a fraction of the maximum over a state's legal actions.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value.shared.q_learning import TINY_Q_LEARNING, check_q_learning
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.groups import ImageTorso, Normalization, Optimizer, Replay, Target
from jaxrl.networks.q_network import QNetwork
from jaxrl.networks.scalars import Positive


@group
class Config:
    """Settings of SAC for discrete actions: soft actor-critic with sums over actions
    (arXiv:1910.07207). The defaults are those of the paper's table 2."""

    replay: Replay = Replay(num_envs=1, num_steps=4, updates=1, batch_size=64, warmup=20_000)
    """Replay buffer, with one gradient step for every 4 environment steps."""
    torso: ImageTorso = ImageTorso(hidden=(512,))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of actor, critics and temperature, separately. Adam, 3e-4."""
    target: Target = Target(rate=1.0, period=8000)
    """Target networks of the critics, copied every 8,000 updates. The paper gives no unit for its
    8,000; if it means environment steps, as in Dopamine, that is 2,000 updates."""
    normalization: Normalization = Normalization()
    num_critics: int = static(2, low=1)
    """Number of critics; the minimum of their values is used."""
    target_entropy: float = hyper(0.98, low=0, high=1)
    """Target entropy of the policy, as a fraction of the uniform policy's."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""


def recipe(env: Environment, config: Any) -> Recipe:
    count = env.action_space.n  # type: ignore[union-attr]
    torso, timestep = config.torso, example_timestep(env)
    network = QNetwork(
        env.observation_space,
        count,
        channels=torso.channels,
        widths=torso.hidden,
        activation=torso.activation,
        initializer=torso.initializer,
    )

    def logits(net, timestep: TimeStep) -> Array:
        """Return the log-probabilities of the policy, [B, A]."""
        return jax.nn.log_softmax(mask_illegal(net.actor(timestep)[..., 0], timestep))

    def min_value(critics, timestep: TimeStep) -> Array:
        """Return the minimum of the critics' values, [B, A]."""
        return critics(timestep)[..., 0].min(0)

    @loss("critic")
    def critic_loss(net, x):
        """Regress on SAC's target with an expectation over next actions instead of a sample."""
        target = losses.discrete_sac_target(
            x.reward,
            x.terminated,
            net.hyper.discount,
            min_value(net.target.critic, x.next_timestep),
            logits(net, x.next_timestep),
            net.temperature(),
        )
        q = jax.vmap(losses.at_action, (0, None))(net.critic(x.timestep)[..., 0], x.action)
        error = losses.squared_error(q, target).sum(0)
        return LossOutput(error, {"value": q.mean(0)})

    @loss("actor")
    def actor_loss(net, x):
        """Compute the expectation over actions of alpha log pi - min Q."""
        log_probs, q = logits(net, x.timestep), min_value(net.critic, x.timestep)
        error = losses.discrete_sac_actor(log_probs, q, net.temperature())
        entropy = losses.categorical_entropy(log_probs)
        return LossOutput(error, {"entropy": entropy}, aux=entropy)

    @loss("temperature")
    def temperature_loss(net, x):
        """Compute SAC's temperature loss, for the policy that `actor_loss` evaluated."""
        allowed = x.timestep.legal_actions
        most = jnp.log(count if allowed is None else jnp.maximum(allowed.sum(-1), 1))
        target = net.hyper.target_entropy * most
        error = losses.sac_temperature(net.temperature(), -net.aux[actor_loss], target)
        return LossOutput(error, {"temperature": net.temperature()})

    def act(net, timestep, memory, key, greedy):
        log_probs = logits(net, timestep)
        action = log_probs.argmax(-1) if greedy else jax.random.categorical(key, log_probs)
        return action.astype(env.action_space.dtype), memory, {}

    return Recipe(
        parts={
            "actor": Part(network, (timestep,), config.optimizer),
            "critic": Part(
                network, (timestep,), config.optimizer, config.target, members=config.num_critics
            ),
            "temperature": Part(Positive(), (), config.optimizer),
        },
        act=act,
        losses=(critic_loss, actor_loss, temperature_loss),
    )


discrete_sac = AlgorithmBuilder("discrete_sac", Config, recipe, check=check_q_learning)

TINY = TINY_Q_LEARNING | {"normalization.observation": True}
