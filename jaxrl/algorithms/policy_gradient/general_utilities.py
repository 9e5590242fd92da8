"""Policy gradients of a function of what a policy visits (Barakat, Fatkhullin and He, 2023,
"Reinforcement learning with general utilities: simpler variance reduction and large state-action
space", arXiv:2306.01854), in tables.

The gradient of a utility F by the discounted occupancy is the reward of an ordinary policy
gradient. The estimates of occupancy and gradient are both recursive momenta (STORM's): what the
last ones were, corrected by what this batch says has changed since, with importance weights. The
step has a fixed length. Only the abstract could be read: the recursions are those of STORM-PG (Yuan
et al., 2020, arXiv:2003.04302), with a constant weight, and are derived here for occupancies.
Importance weights are those of the actions up to a step, not of whole episodes, which varies less.
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
    """Length of every step, in logits."""
    momentum: float = hyper(0.1, low=0, high=1)
    """Eta, the share of the newest estimate; 1 for plain estimates, without variance reduction."""
    discount: float = hyper(0.9, low=0, high=1)
    """Gamma, of occupancies, per step."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Logits [S, A] of the actions in each state, which is observed one-hot."""

    states: int
    actions: int

    def init(self, key: Key, timestep: TimeStep) -> Array:
        return jnp.zeros((self.states, self.actions))

    def apply(self, logits: Array, timestep: TimeStep) -> Array:
        return timestep.observation @ logits


def state_entropy(occupancy: Array) -> Array:
    """Pure exploration: the entropy of the states that are visited."""
    return losses.occupancy_entropy(occupancy.sum(-1))


def log_probs(logits: Array, x: Any) -> Array:
    """Of the actions taken, [T, B]."""
    return losses.at_action(jax.nn.log_softmax(x.timestep.observation @ logits), x.action)


def ratios(logits: Array, acted: Array, x: Any) -> Array:
    """How much likelier the actions up to each step [T, B] are by `logits` than by those of who
    acted: what a step is to be weighed by."""
    return jnp.exp(jnp.cumsum(log_probs(logits, x) - log_probs(acted, x), 0))


def discounted(share: Array, discount: Array) -> Array:
    """gamma^t share_t [T, B]."""
    return discount ** jnp.arange(len(share))[:, None] * share


def occupancies(x: Any, share: Array, discount: Array, actions: int) -> Array:
    """The discounted occupancy of each episode, [B, S, A], its steps weighed by `share` [T, B];
    where all of these are 1, that of an endless episode sums to 1."""
    taken = jax.nn.one_hot(x.action, actions)
    visits = (1 - discount) * discounted(share, discount)
    return jnp.einsum("tb,tbs,tba->bsa", visits, x.timestep.observation, taken)


def gradient(logits: Array, x: Any, share: Array, reward: Array, discount: Array) -> Array:
    """REINFORCE's estimate [S, A] for a reward [S, A], what each step earns weighed by `share`
    [T, B]."""
    earned = losses.at_action(x.timestep.observation @ reward, x.action)
    earned = (1 - discount) * discounted(share, discount) * earned
    left = jnp.cumsum(earned[::-1], 0)[::-1]
    return jax.grad(lambda logits: (left * log_probs(logits, x)).sum(0).mean())(logits)


def recipe(env: Environment, config: Config, utility: Utility = state_entropy) -> Recipe:
    """utility: what is maximized."""
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
        # An estimate may be below 0, where a utility need not be defined.
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
    """Raises `UserError` for actions that are not Discrete, and observations that are no row."""
    check_discrete(env.action_space, name)
    space = env.observation_space
    if not (isinstance(space, Box) and len(space.shape) == 1):
        raise UserError(f"{name} cannot observe {space!r}; it needs a table's one-hot states.")


general_utilities = AlgorithmBuilder("general_utilities", Config, recipe, check=check)

TINY = {"env": "random_mdp", "num_envs": 4, "num_shards": 4}
