"""Soft actor-critic (Haarnoja et al., 2018, "Soft actor-critic algorithms and applications",
arXiv:1812.05905): maximize return and entropy, with a temperature that holds the entropy at a
target. Actions count in half-widths of their bounds, as in the authors' normalized environments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.continuous_control.shared.hooks import (
    Quantity,
    Term,
    add_terms,
    plain_reward,
)
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, loss
from jaxrl.kit.exploration import NO_NOISE
from jaxrl.kit.groups import StateDependentNoise, Target


@group
class Config(soft.Soft):
    """Settings of SAC: maximize return and entropy, with a learned temperature
    (arXiv:1812.05905)."""

    target: Target = Target(rate=0.005)
    gsde: StateDependentNoise = StateDependentNoise()


class NextValues(Protocol):
    """Values that the critics' target bootstraps from."""

    def __call__(self, net: Any, timestep: TimeStep, /) -> tuple[Array, Array]:
        """Return the target networks' values [B, E] of an action of the policy, and its
        log-probability in half-widths, [B].

        net: the `Net`. timestep: the next time steps, [B].
        """
        ...


def recipe(
    env: Environment,
    config: Any,
    *,
    reward: Quantity = plain_reward,
    weight: Quantity | None = None,
    next_values: NextValues | None = None,
    critic_terms: Sequence[Term] = (),
    actor_terms: Sequence[Term] = (),
    critic_parts: Mapping[str, Part] = {},
) -> Recipe:
    """Return SAC's recipe, or that of a variant.

    config: settings of `soft.SoftLearner`, with a `target`.
    reward: what takes the reward's place.
    weight: of each transition's squared error in the critics' loss; None for 1.
    next_values: what takes the place of one action of the policy in the critics' target.
    critic_terms, actor_terms: what is added to the two losses.
    critic_parts: further parts by name, which descend the critics' loss too, such as the multiplier
        of a term.
    """
    sample = soft.sample_in_half_widths(env.action_space)
    noise = getattr(config, "gsde", NO_NOISE)  # a variant without a replay buffer explores nothing

    def sampled_values(net, timestep):
        action, log_prob = sample(net.actor(timestep), net.key())
        return net.target.critic(timestep, action), log_prob

    following = next_values or sampled_values

    @loss("critic", *critic_parts)
    def critic_loss(net, x):
        """Regress on r + gamma (min Q'(s', a') - alpha log pi(a'|s')) (equations 5 and 6)."""
        next_q, log_prob = following(net, x.next_timestep)
        q = net.critic(x.timestep, x.action)
        target = losses.sac_target(
            reward(net, x), x.terminated, net.hyper.discount, next_q, log_prob, net.temperature()
        )
        error = losses.squared_error(q, target[..., None]).sum(-1)
        error = error if weight is None else weight(net, x) * error
        return add_terms(LossOutput(error, {"value": q.mean(-1)}), net, x, critic_terms)

    @loss("actor")
    def actor_loss(net, x):
        """Compute alpha log pi(a|s) - min Q(s, a) (equation 9)."""
        action, log_prob = sample(net.actor(x.timestep), net.key())
        error = losses.sac_actor(log_prob, net.critic(x.timestep, action), net.temperature())
        output = LossOutput(error, {"entropy": -log_prob}, aux=log_prob)
        return add_terms(output, net, x, actor_terms)

    temperature_loss = soft.temperature_loss(env.action_space, actor_loss)
    plain = soft.soft_actor_critic(
        env,
        soft.actor_network(env, config.torso, noise=noise),
        soft.critic_network(env, config.torso, config.num_critics),
        config.optimizer,
        config.target,
        (critic_loss, actor_loss, temperature_loss),
        noise=noise,
        fixed_temperature=getattr(config, "fixed_temperature", 0.0),
    )
    return dataclasses.replace(plain, parts={**plain.parts, **critic_parts})


sac = AlgorithmBuilder("sac", Config, recipe, check=soft.check)

TINY = soft.TINY | {"hidden": (8,)}
