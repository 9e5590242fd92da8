"""Shared parts of DDPG, TD3 and their relatives: a deterministic policy that maximizes Q, and
critics that learn from replayed experience."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment
from jaxrl.kit import Act, Loss, Part, Recipe, group
from jaxrl.kit.groups import Normalization, Optimizer, Replay, Target, Torso
from jaxrl.networks.critics import ActionValues, DeterministicActor
from jaxrl.networks.heads import check_bounded


@group
class Deterministic:
    """Settings shared by deterministic actor-critics."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256)
    """Replay buffer, with one gradient step per environment step. With more environments or steps
    in a window, raise `updates` by the same factor to keep the papers' ratio."""
    torso: Torso = Torso(hidden=(256, 256))
    target: Target = Target(rate=0.005)
    normalization: Normalization = Normalization()


def deterministic_actor_critic(
    env: Environment,
    torso: Torso,
    act: Act,
    losses: Sequence[Loss],
    actor: Optimizer,
    critic: Optimizer,
    target: Target,
    num_critics: int = 1,
    delay: int = 1,
    layer_norm: bool = False,
) -> Recipe:
    """Return the recipe of a deterministic actor-critic with critics [..., E].

    losses: of critics and actor.
    actor, critic: optimizer settings. target: settings of the target networks of both.
    delay: critic updates per update of the policy and of all target networks.
    layer_norm: whether the critics' layers are normalized.
    """
    critic_loss, actor_loss = losses
    timestep = example_timestep(env)
    sizes = (env.observation_space, env.action_space, torso.hidden)
    more = (torso.activation, torso.initializer)
    inputs = (timestep, spaces.example(env.action_space)[None])

    def update(net, batch):
        net = net.descend(critic_loss, batch)
        net = net.descend(actor_loss, batch, every=delay)
        return net.update_targets(every=delay if delay > 1 else None)

    values = ActionValues(*sizes, num_critics, *more, layer_norm=layer_norm)
    return Recipe(
        parts={
            "actor": Part(DeterministicActor(*sizes, *more), (timestep,), actor, target),
            "critic": Part(values, inputs, critic, target),
        },
        act=act,
        losses=losses,
        update=update,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, and for a period of target networks
    that move when the policy does, every `delay` updates."""
    check_bounded(env.action_space, name)
    if getattr(config, "delay", 1) > 1 and config.target.period > 1:
        raise UserError(
            f"target.period is {config.target.period}; the target networks of {name} move with the "
            f"policy, every {config.delay} updates (delay)."
        )


# The smallest settings.
TINY = {
    "env": "pendulum",
    "num_envs": 4,
    "num_shards": 4,
    "updates": 2,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 8,
    "hidden": (8,),
    "normalization.observation": True,
}
