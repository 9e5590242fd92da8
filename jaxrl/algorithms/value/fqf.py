"""Fully parameterized quantile functions (Yang et al., 2019, "Fully parameterized quantile
function for distributional reinforcement learning", arXiv:1911.02140): IQN whose fractions are
proposed by a network of their own, which learns where few steps fit the quantile function best.

The proposal network takes its gradient step first, so that quantiles are asked for at the new
fractions. In the authors' code, unlike here, a target network of the proposals gives the targets
fractions of their own, and an entropy bonus keeps the proposals apart.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value.shared.heads import action_outputs
from jaxrl.algorithms.value.shared.q_learning import TINY_Q_LEARNING, check_q_learning
from jaxrl.algorithms.value.shared.quantiles import (
    ImplicitQLearning,
    implicit_quantiles,
    quantile_target,
)
from jaxrl.core.types import Array, Environment, TimeStep, Transition
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, loss, static
from jaxrl.kit.acting import epsilon, epsilon_greedy, mask_illegal
from jaxrl.kit.groups import Optimizer
from jaxrl.networks.q_network import FractionProposal


@group
class Config(ImplicitQLearning):
    """Settings of FQF."""

    fraction_optimizer: Optimizer = Optimizer(
        "centered_rmsprop", learning_rate=2.5e-9, decay=0.95, eps=1e-5
    )
    """Optimizer of the proposals: centered RMSProp, 2.5e-9, decay 0.95, epsilon 1e-5. Decay and
    epsilon are those of the authors' code, the step size that of toshikwa's PyTorch code (5e-10 and
    less in the authors')."""
    num_fractions: int = static(32, low=2)
    """Number of steps of the quantile function (N): 32, as in the authors' code."""


def middles(edges: Array) -> Array:
    """Return the fractions half-way between those that bound them: [..., N + 1] -> [..., N]."""
    return (edges[..., 1:] + edges[..., :-1]) / 2


def propose_edges(net: Net, q: Any, timestep: TimeStep) -> Array:
    """Propose fractions from 0 to 1, [..., N + 1], from the features of the network `q`, into which
    no gradient flows."""
    return net.fractions(jax.lax.stop_gradient(q(timestep)))


def q_values(net: Net, timestep: TimeStep, q: Any = None) -> Array:
    """Return action values by the network `q`: the sum of quantiles half-way between two fractions,
    times the distance of these."""
    q = q or net.q
    edges = propose_edges(net, q, timestep)
    quantiles = q(timestep, middles(edges))
    return mask_illegal((jnp.diff(edges)[..., None, :] * quantiles).sum(-1), timestep)


@loss("fractions")
def fraction_loss(net: Net, x: Transition) -> Array:
    """Proposition 1: descend the 1-Wasserstein distance between the quantile function and its
    steps."""
    edges = propose_edges(net, net.q, x.timestep)
    inner = edges[..., 1:-1]
    quantiles_at = lambda tau: action_outputs(net.q(x.timestep, tau), x.action)
    return losses.fraction_proposal(inner, quantiles_at(inner), quantiles_at(middles(edges)))


@loss("q")
def q_loss(net: Net, x: Transition) -> LossOutput:
    """Quantile regression with prediction and target at the fractions of the state that was
    left."""
    best = q_values(net, x.next_timestep, net.target.q).argmax(-1)
    tau = jax.lax.stop_gradient(middles(propose_edges(net, net.q, x.timestep)))
    goal = quantile_target(x, net.hyper.discount, net.target.q(x.next_timestep, tau), best)
    quantiles = action_outputs(net.q(x.timestep, tau), x.action)
    error = losses.quantile_huber(quantiles, tau, goal, net.hyper.huber)
    return LossOutput(error, priority=error)


def recipe(env: Environment, config: Config) -> Recipe:
    def update(net, batch):
        net = net.descend(fraction_loss, batch).descend(q_loss, batch).update_targets()
        return net.report(epsilon=epsilon(net, config.exploration))

    q = implicit_quantiles(
        env,
        config.torso,
        config.num_cosines,
        optimizer=config.optimizer,
        target=config.target,
    )
    features = jax.eval_shape(lambda: q.apply(q.init(jax.random.key(0)), q.inputs[0]))
    network, example = FractionProposal(config.num_fractions), jnp.zeros(features.shape)
    return Recipe(
        parts={"q": q, "fractions": Part(network, (example,), config.fraction_optimizer)},
        act=epsilon_greedy(q_values, env.action_space, config.exploration),
        losses=(fraction_loss, q_loss),
        update=update,
    )


fqf = AlgorithmBuilder("fqf", Config, recipe, check=check_q_learning)

TINY = TINY_Q_LEARNING | {"num_cosines": 3, "num_fractions": 3}
