"""Implicit Q-learning (Kostrikov, Nair and Levine, 2022, "Offline reinforcement learning with
implicit Q-learning", arXiv:2110.06169).

The value V(s) is an expectile of the critics' values of the data's actions, and the critics regress
on r + discount V(s'), so no action outside the data is ever evaluated. The policy imitates the
data's actions, weighted by exp(A / temperature). The same agent can continue online.
"""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.algorithms.offline.shared.implicit import Implicit
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, loss
from jaxrl.kit.acting import sample
from jaxrl.kit.groups import Normalization
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import ActionValues, Value
from jaxrl.networks.heads import check_action_space

LARGEST_WEIGHT = 100.0  # largest weight of an imitated action: authors' code


@group
class Config(Implicit):
    """Settings of IQL: expectile regression of the value within the data, and advantage-weighted
    cloning (arXiv:2110.06169, equations 5 to 7)."""

    data: Data = Data()
    normalization: Normalization = Normalization()


@loss("value")
def value_loss(net: Net, x: Transition) -> LossOutput:
    """Regress V on an expectile of the critics' values of the data's actions (equation 5)."""
    q = net.target.critic(x.timestep, x.action).min(-1)
    value = net.value(x.timestep)
    error = losses.expectile_error(value, q, net.hyper.expectile)
    return LossOutput(error, {"mean_value": value})


@loss("critic")
def critic_loss(net: Net, x: Transition) -> Array:
    """Regress Q on r + gamma V(s') (equation 6), with V of the true successor: 0 after a
    termination, but not after a truncation."""
    h = net.hyper
    reward, next_value = h.reward_scale * x.reward, net.value(x.next_timestep)
    target = losses.td_target(reward, x.terminated, h.discount, next_value)
    return losses.squared_error(net.critic(x.timestep, x.action), target[..., None]).sum(-1)


@loss("actor")
def actor_loss(net: Net, x: Transition) -> LossOutput:
    """Imitate actions, weighted by exp(A / temperature) (equation 7). As in the authors' code, A
    uses the target networks before this update and the value after it."""
    advantage = net.target.critic(x.timestep, x.action).min(-1) - net.value(x.timestep)
    log_prob = net.actor(x.timestep).log_prob(x.action)
    imitation = losses.awr(log_prob, advantage, net.hyper.temperature, LARGEST_WEIGHT)
    return LossOutput(imitation, {"advantage": advantage})


def recipe(env: Environment, config: Implicit) -> Recipe:
    torso, timestep = config.torso, example_timestep(env)
    action = spaces.example(env.action_space)[None]
    more: Any = (torso.hidden, torso.activation, torso.initializer)
    sizes = (env.observation_space, env.action_space, torso.hidden)
    critics = ActionValues(*sizes, config.num_critics, *more[1:])
    return Recipe(
        parts={
            "value": Part(Value(env.observation_space, *more), (timestep,), config.critic),
            "critic": Part(critics, (timestep, action), config.critic, config.target),
            "actor": Part(Actor(*sizes, *more[1:]), (timestep,), config.actor),
        },
        act=sample("actor", env.action_space),
        losses=(value_loss, critic_loss, actor_loss),
    )


def check(env: Environment, config: Config, name: str) -> None:
    check_action_space(env.action_space, name)


iql = AlgorithmBuilder("iql", Config, recipe, check=check)

TINY = TINY_DATA | {
    "env": "cartpole",
    "hidden": (8,),
    "normalization.observation": True,
    "actor.learning_rate_steps": 4.0,
}
