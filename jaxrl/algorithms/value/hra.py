"""Hybrid reward architecture (van Seijen et al., 2017, "Hybrid reward architecture for
reinforcement learning", arXiv:1706.04208): DQN with a head for each component of the reward, each
with a target of its own; actions are chosen by their sum.

Here the heads share all layers but the last, and errors are Huber's; in the authors' code each head
has a network of its own, and errors are squared. The paper's domain knowledge (section 3.2:
features of single heads, and their terminal states) has no setting.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value.shared.heads import Head, summed_huber_error
from jaxrl.algorithms.value.shared.q_learning import (
    TINY_Q_LEARNING,
    QLearning,
    check_q_learning,
    q_learning_recipe,
)
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper, static
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.groups import EpsilonGreedy, Optimizer, Target


@group
class Config(QLearning):
    """Settings of HRA."""

    optimizer: Optimizer = Optimizer("rmsprop", learning_rate=1e-3, decay=0.95, eps=1e-14)
    """RMSProp, 1e-3, decay 0.95: the authors' code. Its epsilon, 1e-7 beside the root, is here
    squared and below the root. It must be far below the gradients: with DQN's, the values of rare
    rewards hardly move."""
    target: Target = Target(rate=1.0, period=100)
    """Target network, copied every 100 updates: the authors' code."""
    exploration: EpsilonGreedy = EpsilonGreedy()
    huber: float = hyper(1.0, above=0)
    """Size from which errors count linearly."""
    weights: tuple[float, ...] = static(())
    """Weights of the reward's components in the sum, in the order of their names; empty for 1
    each."""
    valued: str = static("random", choices=("random", "greedy"))
    """Policy whose values the heads learn (section 3.1): uniform over legal actions (random), or
    best for the head's own component (greedy). With random, as in the authors' code, the heads' sum
    is the value of the summed reward."""


def num_components(env: Environment) -> int:
    """Return the number of components of the reward of `env`."""
    return len(jax.tree.leaves(example_timestep(env).reward_components))


def head(weights: tuple[float, ...], valued: str) -> Head:
    """Return a head that predicts the value of each component; the loss is the sum of their
    errors."""

    def channels(outputs, timestep):
        """Return [B, A, K] as [B, K, A], illegal actions far below all others."""
        return jnp.moveaxis(mask_illegal(jnp.moveaxis(outputs, -1, 0), timestep), 0, -2)

    def values(net, outputs, timestep):
        return mask_illegal(outputs @ jnp.asarray(weights), timestep)

    def target(net, x, *, discount, evaluated, selector):
        reward = jnp.stack(jax.tree.leaves(x.next_timestep.reward_components), -1)
        probability = None
        if valued == "random":
            logits = mask_illegal(jnp.zeros(evaluated.shape[:-1]), x.next_timestep)
            probability = jax.nn.softmax(logits)
        following = channels(evaluated, x.next_timestep)
        discount = jnp.expand_dims(discount, -1)
        return losses.hybrid_reward_target(reward, x.terminated, discount, following, probability)

    return Head(len(weights), values, target, summed_huber_error)


def recipe(env: Environment, config: Config) -> Recipe:
    weights = config.weights or (1.0,) * num_components(env)
    return q_learning_recipe(
        env,
        config.torso,
        head(weights, config.valued),
        optimizer=config.optimizer,
        target=config.target,
        exploration=config.exploration,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` where Q-learning does not fit, for a reward without components, and for a
    number of weights other than theirs."""
    check_q_learning(env, config, name)
    number = num_components(env)
    if not number:
        raise UserError(
            f"The reward of '{env.name}' has no components, which {name} learns from (see "
            "jaxrl.envs.wrappers.reward_components)."
        )
    if config.weights and len(config.weights) != number:
        raise UserError(
            f"weights has {len(config.weights)} entries; the reward of '{env.name}' has {number} "
            "components."
        )


hra = AlgorithmBuilder("hra", Config, recipe, check=check)

TINY = TINY_Q_LEARNING | {"env": "fruit_collection", "valued": "greedy"}
