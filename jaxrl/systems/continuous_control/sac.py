"""Soft actor-critic (Haarnoja et al., 2018, "Soft actor-critic algorithms and applications",
arXiv:1812.05905): maximise return and entropy, with a temperature that holds the entropy at a
target. Actions count in half-widths of their bounds, as in the authors' normalized worlds.
"""

from __future__ import annotations

import math

import numpy as np

from jaxrl import losses
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment
from jaxrl.kit import Loss, Part, Recipe, System, group, hyper, static
from jaxrl.kit.acting import sampled
from jaxrl.kit.groups import Optimizer, Replay, Target, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.heads import check_bounded, scale
from jaxrl.networks.scalars import Positive


@group
class Config:
    """Settings of SAC."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256)
    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Of actor, critics and temperature, each. Adam, 3e-4: Haarnoja et al., table 1."""
    target: Target = Target(rate=0.005)
    num_critics: int = static(2, low=1)
    """Critics, of which the most cautious counts."""

    target_entropy: float = hyper(-1.0, below=math.log(2))
    """Nats of the policy's entropy for each dimension of an action in half-widths; log 2, all that
    there is within bounds, is out of reach."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, timestep, hidden = env.action_space, example_timestep(env), config.torso.hidden
    half_width = scale(space)[1]  # type: ignore[arg-type]
    in_half_widths = np.log(half_width).sum()

    def drawn(net, timestep):
        """An action of the policy as a function of its parameters, and its log-probability."""
        action, log_prob = net.actor(timestep).sample_and_log_prob(seed=net.key())
        return action, log_prob + in_half_widths

    def critic_loss(net, x):
        """Equations 5 and 6: Q regresses on r + gamma (min Q(s', a') - alpha log pi(a'|s'))."""
        action, log_prob = drawn(net, x.next_timestep)
        next_q = net.target.critic(x.next_timestep, action)
        target = losses.sac_target(
            x.reward, x.terminated, net.hyper.discount, next_q, log_prob, net.temperature()
        )
        q = net.critic(x.timestep, x.action)
        return losses.squared_error(q, target[..., None]).sum(-1), {"value": q.mean(-1)}

    def actor_loss(net, x):
        """Equation 9: alpha log pi(a|s) - min Q(s, a)."""
        action, log_prob = drawn(net, x.timestep)
        q = net.critic(x.timestep, action)
        loss = losses.sac_actor(log_prob, q, net.temperature())
        return loss, {"entropy": -log_prob}, log_prob

    def temperature_loss(net, x):
        """Equation 18, of the actions that the actor's loss has drawn."""
        temperature, log_prob = net.temperature(), net.aside["actor_loss"]
        target = net.hyper.target_entropy * half_width.size
        loss = losses.sac_temperature(temperature, log_prob, target)
        return loss, {"temperature": temperature}

    sizes = (env.observation_space, space, hidden)
    more = (config.torso.activation, config.torso.initializer)
    critics = ActionValues(*sizes, config.num_critics, *more)
    inputs = (timestep, spaces.example(space)[None])
    return Recipe(
        parts={
            "actor": Part(Actor(*sizes, *more, squashed=True), (timestep,)),
            "critic": Part(critics, inputs, target="target"),
            "temperature": Part(Positive(), ()),
        },
        act=sampled("actor", space),
        losses={
            "critic_loss": Loss(critic_loss, ("critic",)),
            "actor_loss": Loss(actor_loss, ("actor",)),
            "temperature_loss": Loss(temperature_loss, ("temperature",)),
        },
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` unless actions are one bounded box."""
    check_bounded(env.action_space, name)


sac = System("sac", Config, recipe, check=check)

TINY = {
    "env": "pendulum",
    "num_envs": 4,
    "num_shards": 4,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 8,
    "hidden": (8,),
}
