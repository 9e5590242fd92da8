"""Shared parts of soft actor-critics: settings, networks, losses of policy and temperature.

Actions count in half-widths of their bounds, as in the authors' normalized environments: entropies
and log-probabilities are those of actions in [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from jaxrl import losses
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Environment, Key
from jaxrl.kit import Loss, LossOutput, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import sample
from jaxrl.kit.exploration import NO_NOISE, remember_noise
from jaxrl.kit.groups import Optimizer, Replay, StateDependentNoise, Target, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.heads import check_bounded, scale
from jaxrl.networks.scalars import Positive


@group
class Replayed:
    """Settings of what soft actor-critics learn from in an environment."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256)
    """Replay buffer, with one gradient step per environment step. With more environments or steps
    in a window, raise `updates` by the same factor to keep the papers' ratio. The warm-up is as
    long as in the authors' code, but its actions are the initial policy's (theirs are random)."""


@group
class SoftLearner:
    """Settings shared by soft actor-critics, whatever they learn from. The defaults are those of
    Haarnoja et al., table 1."""

    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of actor, critics and temperature, separately."""
    num_critics: int = static(2, low=1)
    """Number of critics; the target uses their minimum (section 6)."""

    target_entropy: float = hyper(-1.0, below=math.log(2))
    """Target entropy of the policy, in nats for each dimension of an action in half-widths. Must be
    below log 2, the entropy of a uniform policy on [-1, 1]."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""


@group
class Soft(SoftLearner, Replayed):
    """Settings shared by soft actor-critics that learn from replayed experience. The defaults are
    those of Haarnoja et al., table 1, except for the replay's capacity, a million there."""

    fixed_temperature: float = static(0.0, low=0)
    """Temperature that is not learned; 0 to learn it, for the target entropy. The first version of
    SAC (arXiv:1801.01290) has it as the inverse scale of rewards."""


class SampleInHalfWidths(Protocol):
    """Function that samples a policy, with log-probabilities in half-widths."""

    def __call__(self, policy: Any, key: Key, /) -> tuple[Array, Array]:
        """Return a reparameterized action and its log-probability.

        policy: distribution over actions. key: random key.
        """
        ...


def sample_in_half_widths(space: Space) -> SampleInHalfWidths:
    """Return a function that samples a policy and counts its log-probability in half-widths."""
    offset = np.log(scale(space)[1]).sum()  # type: ignore[arg-type]

    def sample_policy(policy, key):
        action, log_prob = policy.sample_and_log_prob(seed=key)
        return action, log_prob + offset

    return sample_policy


def action_size(space: Space) -> int:
    """Return the number of dimensions of an action."""
    return scale(space)[1].size  # type: ignore[arg-type]


def actor_loss(space: Space, value: Callable[[Array], Array]) -> Loss:
    """Return SAC's policy loss (equation 9): alpha log pi(a|s) - Q(s, a).

    value: outputs of the critics -> values [..., e]; the policy maximizes their minimum.
    """
    sample_policy = sample_in_half_widths(space)

    @loss("actor")
    def actor_loss(net, x):
        action, log_prob = sample_policy(net.actor(x.timestep), net.key())
        q = value(net.critic(x.timestep, action))
        error = losses.sac_actor(log_prob, q, net.temperature())
        return LossOutput(error, {"entropy": -log_prob}, aux=log_prob)

    return actor_loss


def temperature_loss(space: Space, actor_loss: Loss) -> Loss:
    """Return SAC's temperature loss (equation 18) for the actions that `actor_loss` drew."""
    size = action_size(space)

    @loss("temperature")
    def temperature_loss(net, x):
        temperature, log_prob = net.temperature(), net.aux[actor_loss]
        error = losses.sac_temperature(temperature, log_prob, net.hyper.target_entropy * size)
        return LossOutput(error, {"temperature": temperature})

    return temperature_loss


def critic_network(
    env: Environment,
    torso: Torso,
    members: int,
    outputs: int = 0,
    normalization: Callable[[], Any] | None = None,
) -> ActionValues:
    """Return an ensemble of critics.

    outputs: numbers that each critic predicts for an action, [..., outputs, members]; 0 for one
        value, [..., members].
    normalization: of each layer, as `MLP` takes it.
    """
    return ActionValues(
        env.observation_space,
        env.action_space,
        torso.hidden,
        members,
        torso.activation,
        torso.initializer,
        normalization=normalization,
        outputs=outputs,
    )


def actor_network(
    env: Environment,
    torso: Torso,
    normalization: Callable[[], Any] | None = None,
    noise: StateDependentNoise = NO_NOISE,
) -> Actor:
    """Return a policy that squashes its actions into their bounds.

    normalization: of each layer, as `MLP` takes it. noise: of exploration.
    """
    return Actor(
        env.observation_space,
        env.action_space,
        torso.hidden,
        torso.activation,
        torso.initializer,
        normalization=normalization,
        squashed=True,
        deviation="of_noise" if noise.enabled else "learned",
        log_std=noise.log_std if noise.enabled else 0.0,
    )


def soft_actor_critic(
    env: Environment,
    actor: Actor,
    critic: ActionValues,
    optimizer: Optimizer,
    target: Target | None,
    losses: Sequence[Loss],
    delay: int = 1,
    noise: StateDependentNoise = NO_NOISE,
    fixed_temperature: float = 0.0,
) -> Recipe:
    """Return the recipe of a soft actor-critic.

    optimizer: settings for actor, critics and temperature. target: settings of the critics' target
        networks; None for none.
    losses: of critics, actor and temperature.
    delay: critic updates per update of policy and temperature.
    noise: of exploration; the actor must have been made with the same.
    fixed_temperature: that is not learned; 0 to learn it.
    """
    critic_loss, actor_loss, temperature_loss = losses
    timestep, space = example_timestep(env), env.action_space

    def update(net, batch):
        net = net.descend(critic_loss, batch)
        net = net.descend(actor_loss, batch, every=delay)
        if not fixed_temperature:
            net = net.descend(temperature_loss, batch, every=delay)
        return net.update_targets()

    inputs = (timestep, spaces.example(space)[None])
    recipe = Recipe(
        parts={
            "actor": Part(actor, (timestep,), optimizer),
            "critic": Part(critic, inputs, optimizer, target),
            "temperature": Part(Positive(fixed_temperature or 1.0), (), optimizer),
        },
        act=sample("actor", space, noise),
        losses=losses[:2] if fixed_temperature else losses,
        update=update,
    )
    return remember_noise(recipe, "actor") if noise.enabled else recipe


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box."""
    check_bounded(env.action_space, name)


# The smallest settings.
TINY = {
    "env": "pendulum",
    "num_envs": 4,
    "num_shards": 4,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 8,
}
