"""What DDPG, TD3 and their kin share: a deterministic policy that climbs the values of its actions,
and critics that learn these from a replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrl import losses
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.kit import Loss, Net, Part, Recipe, group
from jaxrl.kit.groups import Normalization, Replay, Target, Torso
from jaxrl.networks.critics import ActionValues, DeterministicActor
from jaxrl.networks.heads import check_bounded


@group
class Common:
    """Settings that all of them have."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256)
    """One gradient step for each step of the environment: with more environments or steps in a
    window, as many more `updates` keep the papers' ratio."""
    torso: Torso = Torso(hidden=(256, 256))
    target: Target = Target(rate=0.005)
    normalization: Normalization = Normalization()


def first(q: Any) -> Array:
    """The value [...] by the first of several critics [..., E]."""
    return q[..., 0]


def recipe(
    env: Environment,
    config: Any,
    act: Callable[..., Any],
    target: Callable[[Net, Transition], Array],
    num_critics: int = 1,
    value: Callable[[Array], Array] = first,
    delay: int = 1,
    optimizers: tuple[str, str] = ("optimizer", "optimizer"),
) -> Recipe:
    """Critics [..., E] regress on `target(net, x)` [B]; the policy climbs `value` of what they say
    of its actions, and in every `delay`-th update alone, when copies of both follow.

    optimizers: where the Config has the policy's and the critics'.
    """
    torso, timestep = config.torso, example_timestep(env)
    sizes = (env.observation_space, env.action_space, torso.hidden)
    more = (torso.activation, torso.initializer)
    inputs = (timestep, spaces.example(env.action_space)[None])

    def critic_loss(net, x):
        q = net.critic(x.timestep, x.action)
        return losses.squared_error(q, target(net, x)[..., None]).sum(-1), {"value": q.mean(-1)}

    def actor_loss(net, x):
        return -value(net.critic(x.timestep, net.actor(x.timestep)))

    def update(net, batch):
        net = net.descend("critic_loss", batch)
        net = net.descend("actor_loss", batch, every=delay)
        return net.update_targets(every=delay if delay > 1 else None)

    return Recipe(
        parts={
            "actor": Part(
                DeterministicActor(*sizes, *more), (timestep,), optimizers[0], config.target
            ),
            "critic": Part(
                ActionValues(*sizes, num_critics, *more), inputs, optimizers[1], "target"
            ),
        },
        act=act,
        losses={
            "critic_loss": Loss(critic_loss, ("critic",)),
            "actor_loss": Loss(actor_loss, ("actor",)),
        },
        update=update,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` unless actions are one bounded box."""
    check_bounded(env.action_space, name)
