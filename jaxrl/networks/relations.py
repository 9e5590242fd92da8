"""Relations among the agents of a team: how much each of the others counts, by a latent."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, TimeStep
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import Distribution, PolicyHead
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


def there(timestep: TimeStep) -> Array:
    """Return which agents are there, bool [..., N], of a time step that says so (`alive`)."""
    return timestep.alive  # type: ignore[return-value]


def others_there(alive: Array) -> Array:
    """Return which of the others are there for each agent, bool [..., N, N - 1], from bool
    [..., N]; the others follow each other in the order of all agents."""
    count = alive.shape[-1]
    index = [[j for j in range(count) if j != i] for i in range(count)]
    return alive[..., jnp.array(index)]


def masked_softmax(logits: Array, mask: Array) -> Array:
    """Return the softmax of logits [..., M] over those that a mask marks; 0 for all others, also
    where it marks none."""
    some = mask.any(-1, keepdims=True)  # else the softmax, and its gradient, would be NaN
    return jnp.where(some, jax.nn.softmax(logits, where=mask | ~some), 0.0)


class Relation(nn.Module):
    """Weights [..., N, N - 1] of the others for each agent: the relation g(o, z).

    The time step has `own` [..., N, D] and `others` [..., N, N - 1, F] as its observation and
    `alive` [..., N]; the latent is [..., N, L], one-hot. The weights are a softmax of scaled
    products of a key of one's own features with a query of each other's row. Each latent has keys
    and queries of its own, computed by the last layer of two perceptrons that all latents share.
    Others that are absent have the weight 0. Agents share all weights, and their number and order
    are no part of these.

    width: of the perceptrons' hidden layer. keys: length of a key.
    """

    latents: int
    width: int = 32
    keys: int = 16

    @nn.compact
    def __call__(self, timestep: TimeStep, latent: Array) -> Array:
        def lengths(x: Array, latent: Array) -> Array:
            hidden = nn.relu(nn.Dense(self.width)(x))
            every = nn.Dense(self.latents * self.keys)(hidden)
            every = every.reshape(*x.shape[:-1], self.latents, self.keys)
            return (every * latent[..., None]).sum(-2)

        seen = timestep.observation
        key = lengths(seen["own"], latent)
        query = lengths(seen["others"], latent[..., None, :])
        logits = (key[..., None, :] * query).sum(-1) / math.sqrt(self.keys)
        return masked_softmax(logits, others_there(there(timestep)))


class Related(nn.Module):
    """Features [..., N, D] of what agents see: one's own, and the mean of the others by a relation.

    The time step's observation has `own` [..., N, D], `others` [..., N, N - 1, F] and `relation`
    [..., N, N - 1], weights of the others that sum to at most 1.
    """

    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        seen = timestep.observation
        own, others = seen["own"], seen["others"]
        beside = jnp.broadcast_to(own[..., None, :], (*others.shape[:-1], own.shape[-1]))
        each = MLP(self.widths, self.activation, self.initializer)(
            jnp.concatenate([beside, others], -1)
        )
        mean = (seen["relation"][..., None] * each).sum(-2)
        return MLP(self.widths, self.activation, self.initializer)(jnp.concatenate([own, mean], -1))


class RelatedActor(nn.Module):
    """Policies [..., N] of agents that share all weights; the time step is that of `Related`."""

    action_space: Space
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Distribution:
        x = Related(self.widths, self.activation, self.initializer)(timestep)
        return PolicyHead(self.action_space, self.initializer)(x, timestep.legal_actions)


class RelatedValue(nn.Module):
    """Values [..., N] for agents that share all weights; the time step is that of `Related`."""

    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        x = Related(self.widths, self.activation, self.initializer)(timestep)
        return dense(1, initializer(self.initializer, 1.0))(x)[..., 0]


class GamePosterior(nn.Module):
    """Logits [..., G] of the game that is played: the sum over the agents that are there.

    The time step is that of `Related`, the latent [..., N, L]. Each agent's term sees its features
    and its latent.
    """

    games: int
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep, latent: Array) -> Array:
        x = Related(self.widths, self.activation, self.initializer)(timestep)
        x = MLP(self.widths[-1:], self.activation)(jnp.concatenate([x, latent], -1))
        each = nn.Dense(self.games)(x)
        return jnp.where(there(timestep)[..., None], each, 0.0).sum(-2)


class LatentPrior(nn.Module):
    """Log-probabilities [..., L] of the latents in a game of so many agents [...].

    Their number, in tens, passes through one hidden layer of half as many units as there are
    latents; the logits are divided by 4.
    """

    latents: int

    @nn.compact
    def __call__(self, population: Array) -> Array:
        x = population[..., None].astype(jnp.float32) / 10
        x = nn.relu(nn.Dense(max(self.latents // 2, 1))(x))
        return jax.nn.log_softmax(nn.Dense(self.latents)(x) / 4)
