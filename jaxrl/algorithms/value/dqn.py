"""Deep Q-networks (Mnih et al., 2015, "Human-level control through deep reinforcement learning").

Act epsilon-greedily. On uniformly replayed transitions, regress Q(s, a) on r + gamma max Q'(s', .)
of a target network, a copy of the network from some updates ago (their algorithm 1). The recipe
takes as arguments what later papers changed: the target, the error, double Q-learning, dueling
streams, noisy weights and n-step targets.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value.shared.heads import Head, HeadError, HeadTarget, legal_values
from jaxrl.algorithms.value.shared.q_learning import (
    TINY_Q_LEARNING,
    QLearning,
    check_q_learning,
    q_learning_recipe,
)
from jaxrl.core.types import Array, Environment, TimeStep, Transition
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper
from jaxrl.kit.groups import EpsilonGreedy, Optimizer

RMSPROP = Optimizer("centered_rmsprop", learning_rate=2.5e-4, decay=0.95, eps=0.01 / 32**2)


@group
class Config(QLearning):
    """Settings of DQN."""

    optimizer: Optimizer = RMSPROP
    """Centered RMSProp, 2.5e-4, decay 0.95, epsilon 0.01: Mnih et al., extended data table 1. In
    their code the "gradient momentum" is the decay of the mean that centers, and the gradients of a
    minibatch of 32 are summed: for their mean, epsilon is 0.01 / 32^2. Errors are clipped, by
    `huber`; gradients are not."""
    exploration: EpsilonGreedy = EpsilonGreedy()
    huber: float = hyper(1.0, above=0)
    """Size from which errors count linearly."""


def q_values(net: Net, outputs: Array, timestep: TimeStep) -> Array:
    """Return Q(s, .), [..., A]: the network's one output for each action."""
    return legal_values(outputs, timestep)


def q_target(
    net: Net, x: Transition, *, discount: Array, evaluated: Array, selector: Array
) -> Array:
    """Return r + gamma Q'(s', a'), [B], with the selector's best action a'. In DQN the target
    network Q' is the selector too, so that this is r + gamma max Q'(s', .)."""
    q, chooser = (legal_values(outputs, x.next_timestep) for outputs in (evaluated, selector))
    return losses.double_q_target(x.reward, x.terminated, discount, q, chooser)


def q_error(net: Net, outputs: Array, target: Array) -> tuple[Array, Array]:
    """Return the Huber error of Q(s, a), and its absolute error as the priority, [B] each."""
    q = outputs[..., 0]
    return losses.huber(q, target, net.hyper.huber), jnp.abs(q - target)


def recipe(
    env: Environment,
    config: Any,
    *,
    target: HeadTarget = q_target,
    error: HeadError = q_error,
    double: bool = False,
    dueling: bool = False,
    noisy: bool = False,
    steps: int = 1,
) -> Recipe:
    """Return DQN's recipe, or that of a variant.

    target, error: what Q(s, a) regresses on, and how.
    noisy: whether to explore by noisy weights instead of random actions.
    double, dueling, steps: see `q_learning_recipe`.
    """
    return q_learning_recipe(
        env,
        config.torso,
        Head(1, q_values, target, error),
        optimizer=config.optimizer,
        target=config.target,
        exploration=None if noisy else config.exploration,
        double=double,
        dueling=dueling,
        steps=steps,
    )


dqn = AlgorithmBuilder("dqn", Config, recipe, check=check_q_learning)

TINY = TINY_Q_LEARNING
