"""Tabular policy gradients of a function of a policy's occupancy (Barakat, Fatkhullin and He, 2023,
"Reinforcement learning with general utilities: simpler variance reduction and large state-action
space", arXiv:2306.01854).

The gradient of a utility F with respect to the discounted occupancy is the reward of an ordinary
policy gradient. The estimates of occupancy and gradient are both recursive momenta (STORM's): the
previous estimates, corrected by the change since then that this batch shows, with importance
weights. The step has a fixed length. Only the abstract could be read: the recursions are those of
STORM-PG (Yuan et al., 2020, arXiv:2003.04302), with a constant weight, and are derived here for
occupancies. Importance weights are those of the actions up to a step, not of whole episodes, which
lowers their variance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Batch, Environment, Key, TimeStep
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper
from jaxrl.kit.groups import Episodes
from jaxrl.networks.heads import check_discrete

Utility = Callable[[Array], Array]  # occupancy [S, A], which sums to 1 -> a scalar, concave


@group
class Config:
    """Settings of variance-reduced policy gradients of utilities. Defaults are ours."""

    episodes: Episodes = Episodes(num_envs=4)
    step: float = hyper(0.1, above=0)
    """Length of every parameter step, in logits."""
    momentum: float = hyper(0.1, low=0, high=1)
    """Weight of the newest estimate (eta); 1 for plain estimates, without variance reduction."""
    discount: float = hyper(0.9, low=0, high=1)
    """Discount factor of occupancies, per step."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Logits [S, A] of the actions in each state; states are observed one-hot."""

    states: int
    actions: int

    def init(self, key: Key, timestep: TimeStep) -> Array:
        return jnp.zeros((self.states, self.actions))

    def apply(self, logits: Array, timestep: TimeStep) -> Array:
        return timestep.observation @ logits


def state_entropy(occupancy: Array) -> Array:
    """Return the entropy of the state occupancy, for pure exploration."""
    return losses.occupancy_entropy(occupancy.sum(-1))


def log_probs(logits: Array, x: Any) -> Array:
    """Return the log-probabilities [T, B] of the actions taken."""
    return losses.at_action(jax.nn.log_softmax(x.timestep.observation @ logits), x.action)


def ratios(logits: Array, acted: Array, x: Any) -> Array:
    """Return the importance weight of each step [T, B]: the likelihood ratio of the actions up to
    it, by `logits` and by those of the behavior policy, `acted`."""
    return jnp.exp(jnp.cumsum(log_probs(logits, x) - log_probs(acted, x), 0))


def discount_weights(share: Array, discount: Array) -> Array:
    """Return gamma^t share_t [T, B]."""
    return discount ** jnp.arange(len(share))[:, None] * share


def occupancies(x: Any, share: Array, discount: Array, actions: int) -> Array:
    """Return the discounted occupancy of each episode, [B, S, A], with steps weighted by `share`
    [T, B]; if all weights are 1, that of an infinite episode sums to 1."""
    taken = jax.nn.one_hot(x.action, actions)
    visits = (1 - discount) * discount_weights(share, discount)
    return jnp.einsum("tb,tbs,tba->bsa", visits, x.timestep.observation, taken)


def gradient(logits: Array, x: Any, share: Array, reward: Array, discount: Array) -> Array:
    """Return REINFORCE's gradient estimate [S, A] for a reward [S, A], with the reward of each step
    weighted by `share` [T, B]."""
    earned = losses.at_action(x.timestep.observation @ reward, x.action)
    earned = (1 - discount) * discount_weights(share, discount) * earned
    left = jnp.cumsum(earned[::-1], 0)[::-1]
    return jax.grad(lambda logits: (left * log_probs(logits, x)).sum(0).mean())(logits)


def recipe(env: Environment, config: Config, utility: Utility = state_entropy) -> Recipe:
    """Return the recipe that maximizes `utility`, a concave function of the occupancy."""
    states, actions = env.observation_space.shape[0], env.action_space.n  # type: ignore[union-attr]
    nothing = jnp.zeros((states, actions))

    def update(net: Net, batch: Batch) -> Net:
        x, h = batch.transitions, net.hyper
        mask: Any = batch.mask  # [T, B]
        logits, old = net.parts["policy"].params, net.extra
        eta = jnp.where(net.updates == 0, 1.0, h.momentum)
        played = mask.astype(logits.dtype)
        before = jnp.where(mask, ratios(old["logits"], logits, x), 0.0)

        def moving(estimate: Array, now: Array, then: Array) -> Array:
            return now + (1 - eta) * (estimate - then)

        visits = lambda share: occupancies(x, share, h.discount, actions).mean(0)
        occupancy = moving(old["occupancy"], visits(played), visits(before))
        # An estimate may be negative, where a utility need not be defined.
        reward = jax.grad(utility)(jnp.maximum(occupancy, 0.0))
        now = gradient(logits, x, played, reward, h.discount)
        then = gradient(old["logits"], x, before, old["reward"], h.discount)
        direction = moving(old["direction"], now, then)
        length = jnp.linalg.norm(direction)
        new = logits + h.step * direction / jnp.maximum(length, 1e-12)
        extra = {"logits": logits, "occupancy": occupancy, "reward": reward, "direction": direction}
        net = net.with_params(policy=new).replace(extra=extra)
        return net.report(utility=utility(jnp.maximum(occupancy, 0.0)), gradient_norm=length)

    def act(net, timestep, memory, key, greedy):
        logits = net.policy(timestep)
        action = logits.argmax(-1) if greedy else jax.random.categorical(key, logits)
        return action.astype(env.action_space.dtype), memory, {}

    return Recipe(
        parts={"policy": Part(Table(states, actions), (example_timestep(env),))},
        act=act,
        losses=(),
        update=update,
        extra=dict.fromkeys(("logits", "occupancy", "reward", "direction"), nothing),
        needs=("mask",),
        scores={"utility": "utility"},
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are Discrete and observations are vectors."""
    check_discrete(env.action_space, name)
    space = env.observation_space
    if not (isinstance(space, Box) and len(space.shape) == 1):
        raise UserError(f"{name} cannot observe {space!r}; it needs a table's one-hot states.")


general_utilities = AlgorithmBuilder("general_utilities", Config, recipe, check=check)

TINY = {"env": "random_mdp", "num_envs": 4, "num_shards": 4}
