"""Iterated Q-network (Vincent et al., 2024, "Iterated Q-network: beyond one-step Bellman updates in
deep reinforcement learning", arXiv:2403.02107), on DQN: a chain of K networks, each of which
regresses on the Bellman target of the one before it, so that one gradient step makes K Bellman
iterations at once. Then the window of iterations moves by one. With K = 1 it is DQN.

Member k of the part `q` is the paper's Q_{k+1}; its target network is the copy of Q_k that its
target is made of. Unlike in the authors' code, the networks share no layers (there they share the
convolutions), and errors are Huber's, as in DQN (there squared).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value.shared.heads import legal_values
from jaxrl.algorithms.value.shared.q_learning import (
    TINY_Q_LEARNING,
    QLearning,
    check_q_learning,
    q_network,
)
from jaxrl.core import trees
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment, Transition
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import epsilon, epsilon_greedy
from jaxrl.kit.groups import EpsilonGreedy, Optimizer, Target


@group
class Config(QLearning):
    """Settings of i-QN."""

    optimizer: Optimizer = Optimizer(learning_rate=6.25e-5, eps=1.5e-4)
    """Adam, 6.25e-5, epsilon 1.5e-4: the authors' published settings for Atari, as Dopamine's."""
    target: Target = Target(rate=1.0, period=500)
    """Target networks, updated when the window moves. `period` is the paper's T, updates between
    two moves: 1500 there, which are 6000 steps with an update in every fourth."""
    exploration: EpsilonGreedy = EpsilonGreedy()
    huber: float = hyper(1.0, above=0)
    """Size from which errors count linearly."""
    iterations: int = static(5, low=1)
    """Number of networks in the chain (K): 5, as in the paper."""
    chain_period: int = static(8, low=1)
    """Number of updates after which each target network is set to the network before it (D): 7.5 in
    the paper, which are 30 steps."""


def link_targets(net: Net, period: int) -> Net:
    """Set each target network but the first to the network before it, in every `period`-th
    update."""
    q = net.parts["q"]
    linked = jax.tree.map(lambda copy, x: jnp.concatenate([copy[:1], x[:-1]]), q.target, q.params)
    targets = trees.where(net.updates % period == 0, linked, q.target)
    return net.replace(parts=net.parts | {"q": dataclasses.replace(q, target=targets)})


def move_window(net: Net, period: int) -> Net:
    """Update the target networks, by which the first becomes the first network, and set each
    network to the next one, in every `period`-th update."""
    params = net.parts["q"].params
    ahead = jax.tree.map(lambda x: jnp.concatenate([x[1:], x[-1:]]), params)
    net = net.update_targets()
    return net.with_params(q=trees.where((net.updates + 1) % period == 0, ahead, params))


@loss("q")
def q_loss(net: Net, x: Transition) -> LossOutput:
    """Sum of K temporal-difference errors, each on the target of its own target network."""
    following = jnp.moveaxis(legal_values(net.target.q(x.next_timestep), x.next_timestep), 0, -2)
    goal = losses.iterated_q_target(x.reward, x.terminated, net.hyper.discount, following)
    q = jax.vmap(losses.at_action, in_axes=(0, None), out_axes=-1)(
        net.q(x.timestep)[..., 0], x.action
    )
    error = losses.huber(q, goal, net.hyper.huber).sum(-1)
    return LossOutput(error, priority=jnp.abs(q - goal).mean(-1))


def recipe(env: Environment, config: Config) -> Recipe:
    def values(net, timestep):
        """Return values by one of the networks, drawn uniformly anew for each step."""
        q = legal_values(net.q(timestep), timestep)
        member = jax.random.randint(net.key("network"), q.shape[1:2], 0, config.iterations)
        return q[member, jnp.arange(q.shape[1])]

    def update(net, batch):
        net = link_targets(net, config.chain_period).descend(q_loss, batch)
        net = move_window(net, config.target.period)
        return net.report(epsilon=epsilon(net, config.exploration))

    network, inputs = q_network(env, config.torso), (example_timestep(env),)
    part = Part(network, inputs, config.optimizer, config.target, members=config.iterations)
    act = epsilon_greedy(values, env.action_space, config.exploration)
    return Recipe(parts={"q": part}, act=act, losses=(q_loss,), update=update)


i_qn = AlgorithmBuilder("i_qn", Config, recipe, check=check_q_learning)

TINY = TINY_Q_LEARNING | {"iterations": 2, "chain_period": 2}
