"""A recurrent state-space model: what a window of experience was, and what might come next."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.core import trees
from jaxrl.core.spaces import Box, Space, is_space
from jaxrl.core.types import Array, Key, TimeStep, Transition, Tree, struct
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.recurrent import GRU
from jaxrl.networks.torsos import MLP


@struct
class Latent:
    """The model's state: what it remembers, and one-hot samples of what it cannot foresee."""

    deterministic: Array  # [..., H]
    stochastic: Array  # [..., G * C]

    @property
    def features(self) -> Array:
        return jnp.concatenate([self.deterministic, self.stochastic], -1)


@struct
class Frames:
    """Time steps as the model sees them, with its guess before (prior) and after (posterior)."""

    latent: Latent  # sampled from the posterior
    posterior: Array  # [..., G, C] logits
    prior: Array  # [..., G, C] logits


@struct
class Unrolled:
    """A window [T, B] as the model sees it."""

    start: Frames  # each time step as if it were an episode's first; counts where `first`
    first: Array  # bool: where the model started anew; the window's first step too
    before: Latent  # in which the action was taken
    after: Frames  # the action's true successor, also where an episode ended


class RecurrentWorldModel(nn.Module):
    """Dreamer's recurrent state-space model (Hafner et al., 2023, arXiv:2301.04104, equation 1).

    h' = f(h, z, a), remembered by a GRU; z' ~ q(h', x') where x' was seen (posterior) and
    z' ~ p(h') where it is imagined (prior); observation, reward and continuation are read off them.
    z are `groups` (G) categorical variables of `classes` (C), mixed with 1 % of a uniform one, and
    sampled with straight-through gradients. An episode's first latent is q(0, x): nothing of what
    was before an episode reaches into it.

    Reward and end belong to where an action leads, and the windows of replay hold that true
    successor, so that the model learns the last time step of every episode. Networks are small
    perceptrons without the paper's normalization layers and block-diagonal GRU.
    """

    observation_space: Space
    action_space: Space
    size: int  # D, of the observation's features
    hidden: tuple[int, ...] = (64,)
    deterministic: int = 64
    groups: int = 8
    classes: int = 8
    bins: int = 41

    def setup(self):
        perceptron = lambda: MLP(self.hidden, "silu")
        init = initializer("lecun", 1.0)
        zeros = nn.initializers.zeros
        logits = self.groups * self.classes
        self.encoder = perceptron()
        self.mixer = MLP((self.deterministic,), "silu")
        self.core = GRU(self.deterministic)
        self.prior = nn.Sequential([perceptron(), dense(logits, init)])
        self.posterior = nn.Sequential([perceptron(), dense(logits, init)])
        self.decoder = nn.Sequential([perceptron(), dense(self.size, init)])
        # Rewards are 0 at first, by which no return explodes before there is data.
        self.reward = nn.Sequential([perceptron(), dense(self.bins, zeros)])
        self.continue_logit = nn.Sequential([perceptron(), dense(1, init)])

    def __call__(self, transitions: Transition):
        """A window [T, B]: all that is read off its successors. Reaches every parameter."""
        features = self.unroll(transitions, None).after.latent.features
        return self.decode(features), self.outcome(features)

    def start(self, timestep: TimeStep, key: Array | None) -> Frames:
        """Time steps [..., B] as first ones of episodes. `key` None: the likeliest latent."""
        seen = self._encode(timestep)
        nothing = jnp.zeros((*seen.shape[:-1], self.deterministic))
        return self._see(nothing, seen, self._noise(key, seen.shape[:-1]))

    def filter(self, latent: Latent, action: Tree, timestep: TimeStep, key: Array | None) -> Latent:
        """The latent [B] of a time step: from the one before and the action taken there, or anew
        where `timestep.first`. `key` None: the likeliest one."""
        seen = self._encode(timestep)
        noise = self._noise(key, seen.shape[:-1])
        start = self._see(jnp.zeros_like(latent.deterministic), seen, noise)
        after = self._see(self._transition(latent, self._action(action)), seen, noise)
        return trees.where(timestep.first, start.latent, after.latent)

    def unroll(self, transitions: Transition, key: Array | None) -> Unrolled:
        """A window [T, B] of transitions. The latent begins anew where `first`, and at the window's
        first step, of which the past is not known. `key` None: the likeliest latents."""
        start_key, key = (None, None) if key is None else jax.random.split(key)
        start = self.start(transitions.timestep, start_key)
        first = transitions.first.at[0].set(True)
        arrived = self._encode(transitions.next_timestep)
        action = self._action(transitions.action)
        noise = self._noise(key, first.shape)

        def step(module, latent, inputs):
            start, first, action, arrived, noise = inputs
            before = trees.where(first, start, latent)
            hidden = module._transition(before, action)
            posterior = module._posterior(hidden, arrived)
            after = Latent(hidden, module._sample(posterior, noise))
            return after, (before, after, posterior)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        inputs = (start.latent, first, action, arrived, noise)
        _, (before, after, posterior) = scan(self, self.initial(first.shape[1]), inputs)
        after = Frames(after, posterior, self._prior(after.deterministic))
        return Unrolled(start, first, before, after)

    def imagine(self, latent: Latent, action: Tree, key: Array) -> Latent:
        """Where `action` leads, as far as the model can tell."""
        hidden = self._transition(latent, self._action(action))
        noise = self._noise(key, hidden.shape[:-1])
        return Latent(hidden, self._sample(self._prior(hidden), noise))

    def decode(self, features: Array) -> Array:
        """The observation [..., D]: the symlog of its features, or logits of binary ones."""
        return self.decoder(features)

    def outcome(self, features: Array) -> tuple[Array, Array]:
        """Of the step that led to a latent's `features`: logits [..., bins] of its reward, see
        `losses.two_hot`, and the logit [...] of not having terminated there."""
        return self.reward(features), self.continue_logit(features)[..., 0]

    def initial(self, n: int) -> Latent:
        return Latent(
            jnp.zeros((n, self.deterministic)), jnp.zeros((n, self.groups * self.classes))
        )

    def _see(self, hidden: Array, seen: Array, noise: Array) -> Frames:
        posterior = self._posterior(hidden, seen)
        return Frames(
            Latent(hidden, self._sample(posterior, noise)), posterior, self._prior(hidden)
        )

    def _encode(self, timestep: TimeStep) -> Array:
        return self.encoder(losses.symlog(encoders.features(self.observation_space, timestep)))

    def _action(self, action: Tree) -> Array:
        return encoders.flatten(self.action_space, action)

    def _transition(self, latent: Latent, action: Array) -> Array:
        mixed = self.mixer(jnp.concatenate([latent.stochastic, action], -1))
        return self.core(mixed, latent.deterministic)[1]

    def _posterior(self, hidden: Array, seen: Array) -> Array:
        return self._logits(self.posterior(jnp.concatenate([hidden, seen], -1)))

    def _prior(self, hidden: Array) -> Array:
        return self._logits(self.prior(hidden))

    def _logits(self, x: Array) -> Array:
        probs = jax.nn.softmax(x.reshape(*x.shape[:-1], self.groups, self.classes))
        return jnp.log(0.99 * probs + 0.01 / self.classes)

    def _noise(self, key: Array | None, batch: tuple[int, ...]) -> Array:
        shape = (*batch, self.groups, self.classes)
        return jnp.zeros(shape) if key is None else jax.random.gumbel(key, shape)

    def _sample(self, logits: Array, noise: Array) -> Array:
        """One-hot samples of log-probabilities [..., G, C], whose gradient is that of the
        probabilities, flat [..., G * C]."""
        hard = jax.nn.one_hot(jnp.argmax(logits + noise, -1), self.classes)
        probs = jnp.exp(logits)
        hard = hard + (probs - jax.lax.stop_gradient(probs))  # so that it stays 0 or 1
        return hard.reshape(*hard.shape[:-2], -1)


def model_loss(
    model: Any,
    apply: Callable[..., Any],
    transitions: Transition,
    atoms: Array,
    key: Key,
    free_nats: Array | float = 1.0,
) -> tuple[Unrolled, dict[str, Array]]:
    """The losses of the model (arXiv:2301.04104, equations 2 and 3), of each step of a window
    [T, B].

    Prediction: of the observation's features, summed, cross-entropies where they are binary and
    squared errors of their symlog elsewhere; two-hot cross-entropy of the reward on `atoms` [K];
    cross-entropy of continuing, which a truncated episode does. Latents: divergences of
    the dynamics and of the representation, each with `free_nats`, weighted 1 and 0.1. First time
    steps of episodes and windows count for observations and latents, successors for everything.

    apply: `model.apply` with the parameters.
    """
    unrolled: Any = apply(transitions, key, method="unroll")
    binary = binary_features(model.observation_space, model.size)

    def seen(frames, timestep):
        decoded = apply(frames.latent.features, method="decode")
        features = encoders.features(model.observation_space, timestep)
        certain = losses.symlog_squared_error(decoded, features)
        likely = losses.binary_cross_entropy(decoded, features)
        error = jnp.where(binary, likely, certain).sum(-1)
        divergence = losses.categorical_kl_balancing(
            frames.posterior, frames.prior, 1.0, 0.1, free_nats
        )
        return error, divergence

    first_error, first_divergence = seen(unrolled.start, transitions.timestep)
    error, divergence = seen(unrolled.after, transitions.next_timestep)
    with_first = lambda first, x: jnp.where(unrolled.first, first, 0) + x
    reward, continue_logit = apply(unrolled.after.latent.features, method="outcome")
    return unrolled, {
        "observation_loss": with_first(first_error, error),
        "latent_loss": with_first(first_divergence, divergence),
        "reward_loss": losses.two_hot_cross_entropy(reward, transitions.reward, atoms),
        "continue_loss": losses.binary_cross_entropy(continue_logit, ~transitions.terminated),
    }


def binary_features(space: Space, size: int) -> np.ndarray:
    """Which of the `size` features (D) of a `space` are 0 or 1 by their kind: cells that are bool,
    and integers, which are one-hot. bool [D]."""
    parts = []
    for part in jax.tree.leaves(space, is_leaf=is_space):
        flat = functools.partial(encoders.flatten, part)
        width = jax.eval_shape(flat, jax.ShapeDtypeStruct(part.shape, part.dtype)).shape[-1]
        parts.append(np.full(width, not isinstance(part, Box) or part.dtype == jnp.bool_))
    binary = np.concatenate(parts)
    return np.pad(binary, (0, size - len(binary)))  # then the goal
