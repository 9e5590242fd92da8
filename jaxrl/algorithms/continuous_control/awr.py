"""Advantage-weighted regression (Peng, Kumar, Zhang and Levine, 2019, arXiv:1910.00177).

On the whole replay buffer, the value regresses on TD(lambda) returns, then the policy on the
actions, weighted by exp(A / temperature), with A standardized over the buffer. Returns are
recomputed with the current value before each. As in the authors' code, a policy in a box has a
fixed standard deviation, a penalty keeps its mean within the bounds, and values are learned in
units of 1 / (1 - gamma).

Unlike here, the authors collect whole episodes, freeze the statistics that normalize observations
after 300,000 steps, and draw minibatches without replacement.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Batch, Environment, Key, TimeStep, Tree, struct
from jaxrl.kit import (
    AlgorithmBuilder,
    Loss,
    LossOutput,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.acting import sample_with_log_prob
from jaxrl.kit.groups import Normalization, Optimizer, Rollouts, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import Value
from jaxrl.networks.heads import check_action_space, gaussian, scale
from jaxrl.sources import recent
from jaxrl.sources.ring import take
from jaxrl.sources.rollouts import check_shards

SMALLEST = 1e-5  # added to the standard deviation of advantages


@group
class Config:
    """Settings of AWR: regression of the policy on replayed actions, weighted by exp(A / beta)
    (arXiv:1910.00177, algorithm 1). The defaults are those of the authors' code for MuJoCo."""

    rollouts: Rollouts = Rollouts(num_envs=16, num_steps=128)
    """Rollouts of 2,048 steps before each update."""
    windows: int = static(24, low=1)
    """Number of windows in the replay buffer: 24 x 2,048 steps (authors' code: 50,000 steps)."""
    value_steps: int = static(200, low=1)
    """Number of gradient steps of the value per update."""
    policy_steps: int = static(1000, low=1)
    """Number of gradient steps of the policy per update."""
    batch_size: int = static(256, low=1)
    """Number of transitions in a gradient step."""
    torso: Torso = Torso(hidden=(128, 64))
    """Hidden layers of policy and value, each."""
    actor: Optimizer = Optimizer("sgd", learning_rate=5e-5, momentum=0.9)
    """Optimizer settings of the policy. Authors' code: 2.5e-5 to 1e-4 depending on the environment;
    5e-4 for discrete actions."""
    critic: Optimizer = Optimizer("sgd", learning_rate=1e-2, momentum=0.9)
    """Optimizer settings of the value."""
    normalization: Normalization = Normalization(observation=True)
    deviation: float = static(0.2, above=0)
    """Standard deviation of a policy in a box, in half-widths. Authors' code: 0.2 or 0.4."""

    temperature: float = hyper(1.0, above=0, log=True)
    """Temperature of standardized advantages (beta)."""
    max_weight: float = hyper(20.0, above=0)
    """Largest weight of an action in the regression."""
    bound_weight: float = hyper(10.0, low=0)
    """Weight of the penalty on means outside the bounds."""
    discount: float = hyper(0.99, low=0, below=1)
    """Discount factor per step."""
    td_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of the TD(lambda) returns."""


@struct
class Sample:
    """Data of transitions for a gradient step, [T, B] or [n]."""

    timestep: TimeStep
    action: Tree
    returns: Array
    advantage: Array


def value(net: Net, timestep: TimeStep) -> Array:
    """Return the value [...]; the network predicts it times 1 - gamma, as a mean reward."""
    return net.critic(timestep) / (1 - net.hyper.discount)


def judge(net: Net, batch: Batch) -> Sample:
    """Return the history [L, B] with TD(lambda) returns and standardized advantages, by the current
    value."""
    x, h, mask = batch.transitions, net.hyper, batch.mask
    # Mapped over time: a reshape to rows would gather arrays that are split over devices.
    now, after = (
        jax.vmap(lambda t: value(net, t))(timestep) for timestep in (x.timestep, x.next_timestep)
    )
    returns = losses.lambda_returns(x.reward, after, x.terminated, x.done, h.discount, h.td_lambda)
    advantage = returns - now
    mean = advantage.mean(where=mask)
    advantage = (advantage - mean) / (advantage.std(where=mask) + SMALLEST)
    return Sample(x.timestep, x.action, returns, advantage)


def draw(x: Sample, mask: Array, key: Key, number: int, num_shards: int) -> Sample:
    """Draw `number` transitions [number] of a history [L, B], in the order of logical shards."""
    rows, columns = mask.shape
    row_key, column_key = jax.random.split(key)
    shape = num_shards, number // num_shards
    held = mask[:, 0].sum()
    row = rows - 1 - jax.random.randint(row_key, shape, 0, held)
    column = jax.random.randint(column_key, shape, 0, columns // num_shards)
    return take(x, row, column)


@loss("critic")
def value_loss(net: Net, x: Sample) -> Array:
    """Regress the value on the returns (algorithm 1, line 6), in units of 1 / (1 - gamma)."""
    return losses.squared_error(net.critic(x.timestep), (1 - net.hyper.discount) * x.returns)


def excess(policy, space) -> Array | float:
    """Return half the squared distance [...] of a Gaussian's mean from the bounds of a box, in
    half-widths; 0 for another policy."""
    if not isinstance(space, Box):
        return 0.0
    center, half_width = (x.reshape(-1) for x in scale(space))
    mean = (gaussian(policy)[0] - center) / half_width  # type: ignore[index]
    return jnp.square(jnp.maximum(jnp.abs(mean) - 1, 0)).sum(-1) / 2


def recipe(env: Environment, config: Config) -> Recipe:
    torso, timestep, space = config.torso, example_timestep(env), env.action_space

    @loss("actor")
    def policy_loss(net: Net, x: Sample):
        """Imitate actions, weighted by exp(A / beta) (algorithm 1, line 7)."""
        policy, h = net.actor(x.timestep), net.hyper
        imitation = losses.awr(policy.log_prob(x.action), x.advantage, h.temperature, h.max_weight)
        outside = h.bound_weight * excess(policy, space)
        return LossOutput(imitation + outside, {"entropy": policy.entropy()})

    def take_steps(net: Net, batch: Batch, loss: Loss, count: int) -> Net:
        number, shards = count * config.batch_size, config.rollouts.num_shards
        assert batch.mask is not None
        x = draw(judge(net, batch), batch.mask, net.key(loss.name), number, shards)
        return net.minibatches(count, x, lambda net, minibatch: net.descend(loss, minibatch))

    def update(net: Net, batch: Batch) -> Net:
        net = take_steps(net, batch, value_loss, config.value_steps)
        return take_steps(net, batch, policy_loss, config.policy_steps)

    sizes = torso.hidden, torso.activation, torso.initializer
    actor = Actor(
        env.observation_space,
        space,
        *sizes,
        bounded_mean=False,
        deviation="fixed",
        log_std=math.log(config.deviation),
    )
    return Recipe(
        parts={
            "actor": Part(actor, (timestep,), config.actor),
            "critic": Part(Value(env.observation_space, *sizes), (timestep,), config.critic),
        },
        act=sample_with_log_prob("actor"),
        losses=(value_loss, policy_loss),
        update=update,
        needs=("mask",),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, and for environments or batches
    that do not divide into the shards."""
    check_action_space(env.action_space, name)
    x = config.rollouts
    check_shards(x.num_shards, num_envs=x.num_envs, batch_size=config.batch_size)


awr = AlgorithmBuilder(
    "awr",
    Config,
    recipe,
    source=lambda env, config: recent(config.rollouts.source(env), config.windows),
    check=check,
)

TINY = {
    "env": "pendulum",
    "num_envs": 4,
    "num_steps": 2,
    "num_shards": 4,
    "windows": 2,
    "value_steps": 2,
    "policy_steps": 3,
    "batch_size": 4,
    "hidden": (8,),
}
