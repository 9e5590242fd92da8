"""Iterated Q-network (Vincent et al., 2024, "Iterated Q-network: beyond one-step Bellman updates in
deep reinforcement learning", arXiv:2403.02107), on DQN: a chain of K networks, each of which
regresses on the Bellman target of the one before it, so that a gradient step is one of K iterations
at once. Then the window of iterations moves by one. With K = 1 it is DQN.

Member k of the part `q` is their Q_{k+1}; its copy is what its target is made of, of Q_k. What
differs from the authors' code: the networks share no layers (there the convolutions); errors are
Huber's, as DQN's (there squared).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.core import trees
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.kit import AlgorithmBuilder, Loss, Net, Part, Recipe, group, static
from jaxrl.kit.acting import epsilon, epsilon_greedy, mask_illegal
from jaxrl.kit.groups import Optimizer, Target


@group
class Config(dqn_.Config):
    """Settings of i-QN."""

    optimizer: Optimizer = Optimizer(learning_rate=6.25e-5, eps=1.5e-4)
    """Adam, 6.25e-5, epsilon 1.5e-4: the authors' published settings for Atari, as Dopamine's."""
    target: Target = Target(rate=1.0, period=500)
    """`period` is their T, updates between two moves of the window: 1500 in theirs, which are 6000
    steps with an update in every fourth."""
    iterations: int = static(5, low=1)
    """K, networks in the chain: 5, as in theirs."""
    chain_period: int = static(8, low=1)
    """D, updates after which a network's target follows the network before it: 7.5 in theirs, which
    are 30 steps."""


def chained(net: Net, period: int) -> Net:
    """In every `period`-th update each copy but the first becomes the network before it."""
    q = net.parts["q"]
    moved = jax.tree.map(lambda copy, x: jnp.concatenate([copy[:1], x[:-1]]), q.target, q.params)
    copies = trees.where(net.updates % period == 0, moved, q.target)
    return net.replace(parts=net.parts | {"q": dataclasses.replace(q, target=copies)})


def moved(net: Net, period: int) -> Net:
    """In every `period`-th update the window moves: the first copy becomes the first network, and
    each network the next one."""
    params = net.parts["q"].params
    ahead = jax.tree.map(lambda x: jnp.concatenate([x[1:], x[-1:]]), params)
    return net.update_targets().with_params(
        q=trees.where((net.updates + 1) % period == 0, ahead, params)
    )


def q_values(q, timestep: TimeStep) -> Array:
    """Of all networks, [K, B, A]."""
    return mask_illegal(q(timestep)[..., 0], timestep)


def q_loss(net, x):
    """The sum of K temporal-difference errors, each on the target of its own copy."""
    following = jnp.moveaxis(q_values(net.target.q, x.next_timestep), 0, -2)
    goal = losses.iterated_q_target(x.reward, x.terminated, net.hyper.discount, following)
    q = jax.vmap(losses.at_action, in_axes=(0, None), out_axes=-1)(
        net.q(x.timestep)[..., 0], x.action
    )
    loss = losses.huber(q, goal, net.hyper.huber).sum(-1)
    return loss, {"priority": jnp.abs(q - goal).mean(-1)}


def recipe(env: Environment, config: Config) -> Recipe:
    def values(net, timestep):
        """Of one of the networks, drawn uniformly anew for each step."""
        q = q_values(net.q, timestep)
        drawn = jax.random.randint(net.key("network"), q.shape[1:2], 0, config.iterations)
        return q[drawn, jnp.arange(q.shape[1])]

    def update(net, batch):
        net = chained(net, config.chain_period).descend("q_loss", batch)
        return moved(net, config.target.period).report(epsilon=epsilon(net))

    network, timestep = dqn_.q_network(env, config.torso), example_timestep(env)
    return Recipe(
        parts={
            "q": Part(
                network, (timestep,), config.optimizer, config.target, members=config.iterations
            )
        },
        act=epsilon_greedy(values, env.action_space, config.exploration),
        losses={"q_loss": Loss(q_loss, ("q",))},
        update=update,
    )


i_qn = AlgorithmBuilder("i_qn", Config, recipe, check=dqn_.check)

TINY = dqn_.TINY | {"iterations": 2, "chain_period": 2}
