"""C51 (Bellemare, Dabney and Munos, 2017, "A distributional perspective on reinforcement learning",
arXiv:1707.06887): DQN that predicts the distribution of the return over fixed atoms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value.shared.heads import Head
from jaxrl.algorithms.value.shared.q_learning import (
    TINY_Q_LEARNING,
    QLearning,
    check_q_learning,
    q_learning_recipe,
)
from jaxrl.core import schedules
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper, static
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.groups import EpsilonGreedy, Optimizer
from jaxrl.networks.heads import ILLEGAL


@group
class Categorical(QLearning):
    """Settings shared by C51 and Rainbow, which predict the return's distribution over atoms."""

    optimizer: Optimizer = Optimizer(learning_rate=2.5e-4, eps=0.01 / 32)
    """Adam, 2.5e-4, epsilon 0.01 over the batch size 32: Bellemare et al., section 5."""
    num_atoms: int = static(51, low=2)
    """Number of atoms of the return's distribution."""
    lowest_return: float = hyper(-10.0)
    """Return at the first atom."""
    highest_return: float = hyper(10.0)
    """Return at the last atom."""


@group
class Config(Categorical):
    """Settings of C51."""

    exploration: EpsilonGreedy = EpsilonGreedy()


def categorical_head(num_atoms: int) -> Head:
    """Return a head that predicts logits of a distribution over atoms (algorithm 1).

    The atoms are evenly spaced from `net.hyper.lowest_return` to `highest_return`. The loss is the
    cross-entropy from the projected target distribution, the priority the divergence from it.
    """

    def atoms(net):
        fraction = jnp.linspace(0.0, 1.0, num_atoms)
        return schedules.linear(net.hyper.lowest_return, net.hyper.highest_return, fraction)

    def values(net, logits, timestep):
        return mask_illegal(losses.categorical_mean(logits, atoms(net)), timestep)

    def target(net, x, *, discount, evaluated, selector):
        selector = _lower_illegal(selector, x.next_timestep.legal_actions)
        return losses.categorical_double_q_target(
            x.reward, x.terminated, discount, evaluated, selector, atoms(net)
        )

    def error(net, logits, target):
        cross_entropy = losses.categorical_cross_entropy(logits, target)
        entropy = -jax.scipy.special.xlogy(target, target).sum(-1)
        return cross_entropy, jnp.maximum(cross_entropy - entropy, 0.0)

    return Head(num_atoms, values, target, error)


def _lower_illegal(logits: Array, legal_actions: Array | None) -> Array:
    """Return logits [..., A, atoms] that put all mass of illegal actions on the first atom, the
    lowest return, so that they are never chosen before legal ones."""
    if legal_actions is None:
        return logits
    first = jnp.where(jnp.arange(logits.shape[-1]) == 0, 0.0, ILLEGAL)
    return jnp.where(legal_actions[..., None], logits, first)


def recipe(env: Environment, config: Config) -> Recipe:
    return q_learning_recipe(
        env,
        config.torso,
        categorical_head(config.num_atoms),
        optimizer=config.optimizer,
        target=config.target,
        exploration=config.exploration,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` where Q-learning does not fit, and for atoms in the wrong order."""
    check_q_learning(env, config, name)
    if not config.lowest_return < config.highest_return:
        raise UserError(
            f"lowest_return is {config.lowest_return} and highest_return {config.highest_return}; "
            "the atoms lie between them, in this order."
        )


c51 = AlgorithmBuilder("c51", Config, recipe, check=check)

TINY = TINY_Q_LEARNING | {"num_atoms": 5}
