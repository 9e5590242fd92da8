"""DAgger (Ross, Gordon and Bagnell, 2011, "A reduction of imitation learning and structured
prediction to no-regret online learning", arXiv:1011.0686): the policy acts, an expert says what it
would have done in the states that the policy meets, and the policy is cloned from all of these
answers so far (algorithm 3.1).

The expert is that of the environment (`Environment.expert`), asked at every step. In training it
also acts, with the probability beta that falls by `decay` in each iteration of `iteration_steps`
environment steps (section 3.1): by default in the first iteration alone. The data of all iterations
are those of the replay buffer. Beta is drawn for each step.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Source, TimeStep, Transition
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION, expert_channel
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss
from jaxrl.kit.acting import Act, mix, sample
from jaxrl.kit.groups import INF, Normalization, Optimizer, Replay, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of DAgger: cloning of what an expert would do in the policy's own states
    (arXiv:1011.0686)."""

    replay: Replay = Replay(num_envs=16, num_steps=16, updates=16, batch_size=256, warmup=256)
    """Replay buffer of the states met so far and the expert's answers."""
    torso: Torso = Torso(hidden=(64, 64))
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the policy."""
    normalization: Normalization = Normalization()

    decay: float = hyper(0.0, low=0, high=1)
    """Factor on the probability that the expert acts, per iteration; 0 for the first alone."""
    iteration_steps: float = hyper(10_000.0, above=0, high=INF)
    """Environment steps of an iteration."""


def advice(timestep: TimeStep) -> Any:
    """Return what the expert would do at a time step [...]."""
    channel = timestep.privileged
    assert isinstance(channel, dict)
    return channel[EXPERT_ACTION]


@loss("actor")
def cloning_loss(net: Net, x: Transition) -> LossOutput:
    """Compute the negative log-likelihood of the expert's actions."""
    policy, action = net.actor(x.timestep), advice(x.timestep)
    same = jnp.asarray(action == x.action)
    agreement = same.reshape(*x.reward.shape, -1).all(-1)
    return LossOutput(-policy.log_prob(action), {"agreement": agreement})


def share_of_expert(net: Net) -> Array:
    """Return the probability that the expert acts, beta of the present iteration."""
    iteration = jnp.floor(net.env_steps / net.hyper.iteration_steps)
    return losses.dagger_mixing(iteration, net.hyper.decay)


def ask(net: Net, timestep: TimeStep, memory: Any, key: Any, greedy: bool) -> Any:
    """Act as the expert advises."""
    return advice(timestep), memory, {}


def act_beside_expert(act: Act) -> Act:
    """Return `act`, in whose place the expert acts with the probability beta at each step where it
    gives advice, as it does in training alone."""
    mixed = mix(act, ask, share_of_expert)

    def act_or_ask(net, timestep, memory, key, greedy):
        present = isinstance(timestep.privileged, dict) and EXPERT_ACTION in timestep.privileged
        return (mixed if present else act)(net, timestep, memory, key, greedy)

    return act_or_ask


def recipe(env: Environment, config: Config) -> Recipe:
    torso, timestep = config.torso, example_timestep(env)
    sizes = (env.observation_space, env.action_space, torso.hidden)
    actor = Actor(*sizes, torso.activation, torso.initializer)

    def update(net, batch):
        return net.descend(cloning_loss, batch).report(expert_share=share_of_expert(net))

    return Recipe(
        parts={"actor": Part(actor, (timestep,), config.optimizer)},
        act=act_beside_expert(sample("actor", env.action_space)),
        losses=(cloning_loss,),
        update=update,
    )


def source(env: Environment, config: Config) -> Source:
    return config.replay.source(expert_channel(env))


def check(env: Environment, config: Config, name: str) -> None:
    check_action_space(env.action_space, name)
    if env.expert is None:
        raise UserError(f"{name} asks an expert; '{env.name}' has none.")


dagger = AlgorithmBuilder("dagger", Config, recipe, source, check=check)

TINY = {
    "env": "cartpole",
    "num_envs": 4,
    "num_steps": 2,
    "updates": 2,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 16,
    "num_shards": 4,
    "hidden": (8,),
    "decay": 0.5,
    "normalization.observation": True,
}
