"""Shared parts of agents that learn in imagination: act in a model alone, and compute returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.types import Array, Key, Tree, struct
from jaxrl.networks.compute import again


@struct
class Dreams:
    """Imagined trajectories from N start states, H steps each."""

    features: Array  # [H + 1, N, D]
    action: Tree  # [H, N]
    returns: Array  # [H, N]: lambda-returns
    continue_prob: Array  # [H, N]: probability that the episode continues after each step


def imagine(
    actor: Callable[[Array], Any],
    dynamics: Callable[[Tree, Tree, Key], tuple[Array, Tree]],
    start: tuple[Array, Tree],
    key: Key,
    horizon: int,
) -> tuple[Array, Tree]:
    """Act `horizon` (H) times in a model; return features [H + 1, N, D] and actions [H, N].

    actor(features [N, D]) -> distribution; dynamics(state [N], action [N], key) -> (features,
    state); start: features and state in which the first action is taken.
    """

    def step(place, key):
        action_key, key = jax.random.split(key)
        features, state = place
        action = actor(features).sample(seed=action_key)
        return dynamics(state, action, key), (features, action)

    (last, _), (features, action) = jax.lax.scan(again(step), start, jax.random.split(key, horizon))
    return jnp.append(features, last[None], 0), action


def judge(
    features: Array,
    action: Tree,
    outcome: Callable[[Array], tuple[Array, Array]],
    critic: Callable[[Array], Array],
    atoms: Array,
    discount: Array | float,
    return_lambda: Array | float,
) -> Dreams:
    """Return imagined trajectories with their lambda-returns (arXiv:2301.04104, equation 4), where
    later steps count in proportion to the probability that the episode has not ended.

    outcome(features) -> two-hot logits of the reward of the step that led there, and the logit of
    not having terminated there; critic(features) -> two-hot logits of the value. No gradient flows
    through the result.
    """
    reward, continue_logit = outcome(features[1:])
    reward, value = (losses.categorical_mean(x, atoms) for x in (reward, critic(features[1:])))
    continue_prob = jax.nn.sigmoid(continue_logit)
    never = jnp.zeros_like(reward, bool)
    returns = losses.lambda_returns(
        reward, value, never, never, discount * continue_prob, return_lambda
    )
    return jax.lax.stop_gradient(Dreams(features, action, returns, continue_prob))


def dream(
    net: Any,
    actor: Callable[[Array], Any],
    critic: Callable[[Array], Array],
    dynamics: Callable[[Tree, Tree, Key], tuple[Array, Tree]],
    start: tuple[Array, Tree],
    horizon: int,
    atoms: Array,
) -> Dreams:
    """Imagine trajectories and judge them by the part `model` of `net` (see `imagine`, `judge`)."""
    features, action = imagine(actor, dynamics, start, net.key("dream"), horizon)
    outcome = functools.partial(net.model, method="outcome")
    discount, return_lambda = net.hyper.discount, net.hyper.return_lambda
    return judge(features, action, outcome, critic, atoms, discount, return_lambda)


def survival_weights(continues: Array) -> Array:
    """Return the products of `continues` [H, N] over the steps before each: the probability, or
    discounted weight, of reaching a step."""
    before = jnp.concatenate([jnp.ones_like(continues[:1]), continues[:-1]])
    return jnp.cumprod(before, 0)
