"""AWAC (Nair, Gupta, Dalal and Levine, 2020, "AWAC: accelerating online reinforcement learning with
offline datasets", arXiv:2006.09359): critics learn the values of the policy itself from the data,
and the policy imitates the data's actions, weighted by the exponential of their advantage. The same
agent continues online without another loss.

The advantage is Q(s, a) - Q(s, a') of one action a' of the policy, with the minimum of two critics,
and weights are at most 100, both as in CORL's implementation; weights are not normalized. The
policy is a normal distribution whose mean lies within the bounds, or a categorical one.
"""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.offline.iql import LARGEST_WEIGHT
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import sample
from jaxrl.kit.groups import INF, Normalization, Optimizer, Target, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of AWAC: an actor-critic whose policy imitates, weighted by advantages
    (arXiv:2006.09359)."""

    data: Data = Data()
    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the policy and of the critics, separately."""
    target: Target = Target(rate=0.005)
    normalization: Normalization = Normalization()
    num_critics: int = static(2, low=1)
    """Number of critics; the minimum of their values is used."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards."""
    temperature: float = hyper(1.0, above=0, high=INF, log=True)
    """Temperature of the advantage weights, lambda in the paper; infinite for plain cloning."""


def recipe(env: Environment, config: Config) -> Recipe:
    torso, space = config.torso, env.action_space
    draw = lambda policy, key: spaces.clip(space, policy.sample(seed=key))

    @loss("critic")
    def critic_loss(net, x):
        """Regress on r + gamma min Q'(s', a') of an action a' of the policy (policy
        evaluation)."""
        next_action = draw(net.actor(x.next_timestep), net.key())
        next_q = net.target.critic(x.next_timestep, next_action).min(-1)
        reward = scaled_reward(net, x)
        target = losses.td_target(reward, x.terminated, net.hyper.discount, next_q)
        q = net.critic(x.timestep, x.action)
        error = losses.squared_error(q, target[..., None]).sum(-1)
        return LossOutput(error, {"value": q.mean(-1)})

    @loss("actor")
    def actor_loss(net, x):
        """Imitate the data's actions, weighted by exp(A / lambda)."""
        policy = net.actor(x.timestep)
        own = net.critic(x.timestep, draw(policy, net.key())).min(-1)
        q = net.critic(x.timestep, x.action).min(-1)
        advantage = losses.sampled_advantage(q, own[..., None])
        log_prob, temperature = policy.log_prob(x.action), net.hyper.temperature
        error = losses.awr(log_prob, advantage, temperature, LARGEST_WEIGHT)
        return LossOutput(error, {"advantage": advantage})

    sizes = (env.observation_space, space, torso.hidden)
    more: Any = (torso.activation, torso.initializer)
    critics = ActionValues(*sizes, config.num_critics, *more)
    timestep, optimizer = example_timestep(env), config.optimizer
    inputs = (timestep, spaces.example(space)[None])
    return Recipe(
        parts={
            "critic": Part(critics, inputs, optimizer, config.target),
            "actor": Part(Actor(*sizes, *more), (timestep,), optimizer),
        },
        act=sample("actor", space),
        losses=(critic_loss, actor_loss),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head."""
    check_action_space(env.action_space, name)


awac = AlgorithmBuilder("awac", Config, recipe, check=check)

TINY = {"env": "cartpole", "hidden": (8,), "normalization.observation": True} | TINY_DATA
