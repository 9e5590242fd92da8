"""Soft actor-critic (Haarnoja et al., 2018, "Soft actor-critic algorithms and applications",
arXiv:1812.05905): maximize return and entropy, with a temperature that holds the entropy at a
target. Actions count in half-widths of their bounds, as in the authors' normalized environments.
"""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, loss
from jaxrl.kit.groups import Target


@group
class Config(soft.Soft):
    """Settings of SAC: maximize return and entropy, with a learned temperature
    (arXiv:1812.05905)."""

    target: Target = Target(rate=0.005)


def recipe(env: Environment, config: Config) -> Recipe:
    sample = soft.sample_in_half_widths(env.action_space)
    size = soft.action_size(env.action_space)

    @loss("critic")
    def critic_loss(net, x):
        """Regress on r + gamma (min Q'(s', a') - alpha log pi(a'|s')) (equations 5 and 6)."""
        next_action, log_prob = sample(net.actor(x.next_timestep), net.key())
        q = net.critic(x.timestep, x.action)
        next_q = net.target.critic(x.next_timestep, next_action)
        target = losses.sac_target(
            x.reward, x.terminated, net.hyper.discount, next_q, log_prob, net.temperature()
        )
        error = losses.squared_error(q, target[..., None]).sum(-1)
        return LossOutput(error, {"value": q.mean(-1)})

    @loss("actor")
    def actor_loss(net, x):
        """Compute alpha log pi(a|s) - min Q(s, a) (equation 9)."""
        action, log_prob = sample(net.actor(x.timestep), net.key())
        error = losses.sac_actor(log_prob, net.critic(x.timestep, action), net.temperature())
        return LossOutput(error, {"entropy": -log_prob}, aux=log_prob)

    @loss("temperature")
    def temperature_loss(net, x):
        """Compute alpha (entropy - target) for the actions that `actor_loss` drew (equation 18)."""
        temperature, log_prob = net.temperature(), net.aux[actor_loss]
        error = losses.sac_temperature(temperature, log_prob, net.hyper.target_entropy * size)
        return LossOutput(error, {"temperature": temperature})

    return soft.soft_actor_critic(
        env,
        soft.actor_network(env, config.torso),
        soft.critic_network(env, config.torso, config.num_critics),
        config.optimizer,
        config.target,
        (critic_loss, actor_loss, temperature_loss),
    )


sac = AlgorithmBuilder("sac", Config, recipe, check=soft.check)

TINY = soft.TINY | {"hidden": (8,)}
