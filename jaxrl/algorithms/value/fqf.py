"""Fully parameterized quantile functions (Yang et al., 2019, "Fully parameterized quantile
function for distributional reinforcement learning", arXiv:1911.02140): IQN whose fractions are
proposed, by a network of their own that learns where few steps fit the quantile function best.

The proposals' step comes first, so that quantiles are asked for at the new fractions. What differs
from the authors' code: there a copy of the proposal network gives targets fractions of their own,
and an entropy bonus keeps the proposals apart.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.algorithms.value.iqn import Implicit, implicit_quantiles
from jaxrl.algorithms.value.shared.heads import of_action, quantile_target
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.kit import AlgorithmBuilder, Loss, Net, Part, Recipe, group, static
from jaxrl.kit.acting import epsilon_greedy, mask_illegal
from jaxrl.kit.groups import Optimizer
from jaxrl.networks.q_network import FractionProposal


@group
class Config(Implicit):
    """Settings of FQF."""

    fraction_optimizer: Optimizer = Optimizer(
        "centered_rmsprop", learning_rate=2.5e-9, decay=0.95, eps=1e-5
    )
    """Of the proposals: centered RMSProp, decay 0.95, epsilon 1e-5, as in the authors' code; 2.5e-9
    as in the PyTorch code of toshikwa (theirs has 5e-10 and less)."""
    num_fractions: int = static(32, low=2)
    """N, steps of the quantile function: 32, as in the authors' code."""


def middles(edges: Array) -> Array:
    """The fractions half-way between those that bound them: [..., N + 1] -> [..., N]."""
    return (edges[..., 1:] + edges[..., :-1]) / 2


def recipe(env: Environment, config: Config) -> Recipe:
    def proposed(net: Net, q: Any, timestep: TimeStep) -> Array:
        """Fractions from 0 to 1 [..., N + 1]; no gradient flows into the features."""
        return net.fractions(jax.lax.stop_gradient(q(timestep)))

    def values(net: Net, timestep: TimeStep, q: Any = None) -> Array:
        """The sum of quantiles half-way between two fractions, times the distance of these."""
        q = q or net.q
        edges = proposed(net, q, timestep)
        quantiles = q(timestep, middles(edges))
        return mask_illegal((jnp.diff(edges)[..., None, :] * quantiles).sum(-1), timestep)

    def fraction_loss(net, x):
        """Proposition 1: down the 1-Wasserstein distance between the quantile function and its
        steps."""
        edges = proposed(net, net.q, x.timestep)
        inner = edges[..., 1:-1]
        at = lambda tau: of_action(net.q(x.timestep, tau), x.action)
        return losses.fraction_proposal(inner, at(inner), at(middles(edges)))

    def q_loss(net, x):
        """Quantile regression, of prediction and target at the fractions of the state that was
        left."""
        best = values(net, x.next_timestep, net.target.q).argmax(-1)
        tau = jax.lax.stop_gradient(middles(proposed(net, net.q, x.timestep)))
        goal = quantile_target(x, net.hyper.discount, net.target.q(x.next_timestep, tau), best)
        quantiles = of_action(net.q(x.timestep, tau), x.action)
        loss = losses.quantile_huber(quantiles, tau, goal, net.hyper.huber)
        return loss, {"priority": loss}

    q = implicit_quantiles(env, config)
    features = jax.eval_shape(lambda: q.apply(q.init(jax.random.key(0)), q.inputs[0]))
    network, example = FractionProposal(config.num_fractions), jnp.zeros(features.shape)
    return Recipe(
        parts={"q": q, "fractions": Part(network, (example,), config.fraction_optimizer)},
        act=epsilon_greedy(values, env.action_space, config.exploration),
        losses={
            "fraction_loss": Loss(fraction_loss, ("fractions",)),
            "q_loss": Loss(q_loss, ("q",)),
        },
        update=dqn_.explorer_in_order,
    )


fqf = AlgorithmBuilder("fqf", Config, recipe, check=dqn_.check)

TINY = dqn_.TINY | {"num_cosines": 3, "num_fractions": 3}
