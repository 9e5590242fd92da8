"""Hybrid reward architecture (van Seijen et al., 2017, "Hybrid reward architecture for
reinforcement learning", arXiv:1706.04208): DQN with a head for each component of the reward, each
with a target of its own; actions are chosen by their sum. Here the heads share all layers but the
last, and errors are Huber's; in the authors' code each has a network of its own, and errors are
squared. The paper's domain knowledge (section 3.2: features of one head alone, its terminal states)
has no setting."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.algorithms.value.shared.heads import Head
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment
from jaxrl.kit import Recipe, group, static
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.groups import Optimizer, Target


@group
class Config(dqn_.Config):
    """Settings of HRA."""

    optimizer: Optimizer = Optimizer("rmsprop", learning_rate=1e-3, decay=0.95, eps=1e-14)
    """RMSProp, 1e-3, decay 0.95: the authors' code. Its epsilon, 1e-7 beside the root, is here
    squared and below it. It must be far below the gradients: with DQN's the values of rare rewards
    hardly move."""
    target: Target = Target(rate=1.0, period=100)
    """The authors' code."""
    weights: tuple[float, ...] = static(())
    """Of the components in the sum, in the order of their names; empty for 1 each."""
    valued: str = static("random", choices=("random", "greedy"))
    """What a head values (section 3.1): any legal action with the same probability, by which the
    heads' sum is the value of the summed reward, as in the authors' code; or acting as is best for
    its component."""


def components(env: Environment) -> int:
    """How many components the reward of `env` has."""
    return len(jax.tree.leaves(example_timestep(env).reward_components))


def head(weights: tuple[float, ...], valued: str) -> Head:
    """Values of each component, with the sum of their errors as the loss."""

    def channels(outputs, timestep):
        """[B, A, K] as [B, K, A], of illegal actions far below all others."""
        return jnp.moveaxis(mask_illegal(jnp.moveaxis(outputs, -1, 0), timestep), 0, -2)

    def values(net, outputs, timestep):
        return mask_illegal(outputs @ jnp.asarray(weights), timestep)

    def target(net, x, discount, evaluated, selector):
        reward = jnp.stack(jax.tree.leaves(x.next_timestep.reward_components), -1)
        probability = None
        if valued == "random":
            may = mask_illegal(jnp.zeros(evaluated.shape[:-1]), x.next_timestep)
            probability = jax.nn.softmax(may)
        following = channels(evaluated, x.next_timestep)
        discount = jnp.expand_dims(discount, -1)
        return losses.hybrid_reward_target(reward, x.terminated, discount, following, probability)

    def error(net, outputs, target):
        loss = losses.huber(outputs, target, net.hyper.huber)
        return loss.sum(-1), jnp.abs(outputs - target).sum(-1)

    return Head(len(weights), values, target, error)


def recipe(env: Environment, config: Any) -> Recipe:
    weights = config.weights or (1.0,) * components(env)
    return dqn_.recipe(env, config, head=head(weights, config.valued))


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` as DQN does, for a reward without components, and for other than one
    weight for each."""
    dqn_.check(env, config, name)
    number = components(env)
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


hra = dataclasses.replace(dqn_.dqn, name="hra", Config=Config, recipe=recipe, check=check)

TINY = dqn_.TINY | {"env": "fruit_collection", "valued": "greedy"}
