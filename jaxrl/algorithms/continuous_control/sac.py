"""Soft actor-critic (Haarnoja et al., 2018, "Soft actor-critic algorithms and applications",
arXiv:1812.05905): maximize return and entropy, with a temperature that holds the entropy at a
target. Actions count in half-widths of their bounds, as in the authors' normalized environments.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl import losses
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.kit import AlgorithmBuilder, Loss, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import sample
from jaxrl.kit.groups import Optimizer, Replay, Target, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.heads import check_bounded, scale
from jaxrl.networks.scalars import Positive


@group
class Common:
    """Settings that SAC and its kin have. The defaults are those of Haarnoja et al., table 1, but
    for the replay's capacity, a million there."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256)
    """One gradient step for each step of the environment: with more environments or steps in a
    window, as many more `updates` keep the papers' ratio. The warm-up is as long as in the authors'
    code, but its actions are the first policy's (theirs are random)."""
    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Of actor, critics and temperature, each."""
    num_critics: int = static(2, low=1)
    """Critics, of which the most cautious counts: section 6."""

    target_entropy: float = hyper(-1.0, below=math.log(2))
    """Nats of the policy's entropy for each dimension of an action in half-widths; log 2, all that
    there is within bounds, is out of reach."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""


@group
class Config(Common):
    """Settings of SAC."""

    target: Target = Target(rate=0.005)


def by_copies(net: Net, x: Transition, action: Array) -> tuple[Array, Array, dict]:
    """What critics say of what was done, their copies of the next `action`, and no state."""
    return net.critic(x.timestep, x.action), net.target.critic(x.next_timestep, action), {}


def soft(net: Net, x: Transition, next_q: Array, log_prob: Array) -> Array:
    """Equations 5 and 6: r + gamma (min Q(s', a') - alpha log pi(a'|s'))."""
    return losses.sac_target(
        x.reward, x.terminated, net.hyper.discount, next_q, log_prob, net.temperature()
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Critics:
    """How an ensemble of E critics learns, and what the policy climbs.

    outputs: numbers that each critic says of an action, [..., K, E]; 0 for its value, [..., E]
    evaluated(net, transition, next action) -> what they say of what was done, what is said of that
        action, and the critics' new state (see `Loss`)
    target(net, transition, what is said of the next action, its log-probability) -> [B, ...]
    error(what they say, target) -> [B]
    opinions(what they say) -> values [..., e], of which the least counts for the policy
    """

    outputs: int = 0
    evaluated: Callable[[Net, Transition, Array], tuple[Array, Array, dict]] = by_copies
    target: Callable[[Net, Transition, Array, Array], Array] = soft
    error: Callable[[Array, Array], Array] = lambda q, target: losses.squared_error(
        q, target[..., None]
    ).sum(-1)
    opinions: Callable[[Array], Array] = lambda q: q


def recipe(
    env: Environment,
    config: Any,
    critics: Critics = Critics(),
    torso: Any = None,
    normalization: Callable[[], Any] | None = None,
    copy: str = "target",
    delay: int = 1,
) -> Recipe:
    """SAC, and with other `critics` or one of the options what it became.

    torso: the critics' settings, where they are not the policy's.
    normalization: of both networks' layers, as `MLP` has it; by the batch where they are trained.
    copy: where the Config has the `Target` of the critics' copies; empty for none.
    delay: updates of the critics for one of policy and temperature.
    """
    space, timestep = env.action_space, example_timestep(env)
    half_width = scale(space)[1]  # type: ignore[arg-type]
    in_half_widths = np.log(half_width).sum()

    def drawn(net, policy):
        """An action of the policy as a function of its parameters, and its log-probability."""
        action, log_prob = policy.sample_and_log_prob(seed=net.key())
        return action, log_prob + in_half_widths

    def critic_loss(net, x):
        action, log_prob = drawn(net, net.actor(x.next_timestep))
        q, next_q, state = critics.evaluated(net, x, action)
        error = critics.error(q, critics.target(net, x, next_q, log_prob))
        return error, {"value": q.reshape(len(q), -1).mean(-1)}, None, {"critic": state}

    def actor_loss(net, x):
        """Equation 9: alpha log pi(a|s) - min Q(s, a)."""
        policy, state = net.actor(x.timestep), {}
        if normalization:
            policy, state = net.actor(x.timestep, train=True, mutable="batch_stats")
        action, log_prob = drawn(net, policy)
        q = critics.opinions(net.critic(x.timestep, action))
        loss = losses.sac_actor(log_prob, q, net.temperature())
        return loss, {"entropy": -log_prob}, log_prob, {"actor": state}

    def temperature_loss(net, x):
        """Equation 18, of the actions that the actor's loss has drawn."""
        temperature, log_prob = net.temperature(), net.aux["actor_loss"]
        target = net.hyper.target_entropy * half_width.size
        loss = losses.sac_temperature(temperature, log_prob, target)
        return loss, {"temperature": temperature}

    def update(net, batch):
        net = net.descend("critic_loss", batch)
        net = net.descend("actor_loss", batch, every=delay)
        return net.descend("temperature_loss", batch, every=delay).update_targets()

    def network(kind, torso, *members, **more):
        sizes = (env.observation_space, space, torso.hidden, *members)
        return kind(
            *sizes, torso.activation, torso.initializer, normalization=normalization, **more
        )

    critic = network(
        ActionValues, torso or config.torso, config.num_critics, outputs=critics.outputs
    )
    actor = network(Actor, config.torso, squashed=True)
    return Recipe(
        parts={
            "actor": Part(actor, (timestep,)),
            "critic": Part(critic, (timestep, spaces.example(space)[None]), target=copy),
            "temperature": Part(Positive(), ()),
        },
        act=sample("actor", space),
        losses={
            "critic_loss": Loss(critic_loss, ("critic",)),
            "actor_loss": Loss(actor_loss, ("actor",)),
            "temperature_loss": Loss(temperature_loss, ("temperature",)),
        },
        update=update,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` unless actions are one bounded box."""
    check_bounded(env.action_space, name)


sac = AlgorithmBuilder("sac", Config, recipe, check=check)

TINY = {
    "env": "pendulum",
    "num_envs": 4,
    "num_shards": 4,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 8,
    "hidden": (8,),
}
