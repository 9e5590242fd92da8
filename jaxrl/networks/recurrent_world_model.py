"""A recurrent state-space model, which infers latents from experience and imagines what follows."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core import trees
from jaxrl.core.spaces import Box, Space, bounds
from jaxrl.core.types import Array, TimeStep, Transition, Tree, struct
from jaxrl.networks import encoders
from jaxrl.networks.compute import module_again
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.recurrent import GRU
from jaxrl.networks.torsos import MLP


@struct
class Latent:
    """The model's state: a deterministic memory, and one-hot samples of categorical variables."""

    deterministic: Array  # [..., H]
    stochastic: Array  # [..., G * C]

    @property
    def features(self) -> Array:
        return jnp.concatenate([self.deterministic, self.stochastic], -1)


@struct
class Beliefs:
    """The model's beliefs about time steps, before (prior) and after (posterior) it sees them."""

    latent: Latent  # sampled from the posterior
    posterior: Array  # [..., G, C] logits
    prior: Array  # [..., G, C] logits


@struct
class Unrolled:
    """The model's beliefs about a window [T, B]."""

    start: Beliefs  # about each time step as if it were an episode's first; valid where `first`
    first: Array  # bool: where the latent was reset; includes the window's first step
    before: Latent  # in which the action was taken
    after: Beliefs  # about the action's true successor, also where an episode ended


class RecurrentWorldModel(nn.Module):
    """Dreamer's recurrent state-space model (Hafner et al., 2023, arXiv:2301.04104, equation 1).

    A GRU computes h' = f(h, z, a). Then z' ~ q(h', x') if x' was observed (posterior), or
    z' ~ p(h') if it is imagined (prior). Observation, reward and continuation are decoded from h'
    and z'. z are `groups` (G) categorical variables of `classes` (C), mixed with 1 % of a uniform
    distribution, and sampled with straight-through gradients. An episode's first latent is
    q(0, x), so that nothing from before an episode reaches into it. Actions in a box are read as
    the environment plays them, clipped to its bounds, in half-widths around its center.

    Reward and termination belong to the action's successor. Windows from the replay buffer contain
    the true successor, so the model learns the last time step of every episode. Networks are small
    perceptrons, with layer normalization or without, and the GRU is plain: the paper's has
    normalization and block-diagonal weights.
    """

    observation_space: Space
    action_space: Space
    size: int  # D, number of the observation's features
    hidden: tuple[int, ...] = (64,)
    deterministic: int = 64
    groups: int = 8
    classes: int = 8
    bins: int = 41
    layer_norm: bool = False  # in all perceptrons

    def setup(self):
        perceptron = lambda: MLP(self.hidden, "silu", layer_norm=self.layer_norm)
        init = initializer("lecun", 1.0)
        zeros = nn.initializers.zeros
        logits = self.groups * self.classes
        self.encoder = perceptron()
        self.mixer = MLP((self.deterministic,), "silu", layer_norm=self.layer_norm)
        self.core = GRU(self.deterministic)
        self.prior = nn.Sequential([perceptron(), dense(logits, init)])
        self.posterior = nn.Sequential([perceptron(), dense(logits, init)])
        self.decoder = nn.Sequential([perceptron(), dense(self.size, init)])
        # Rewards are 0 at first, so that no return explodes before there is data.
        self.reward = nn.Sequential([perceptron(), dense(self.bins, zeros)])
        self.continue_logit = nn.Sequential([perceptron(), dense(1, init)])

    def __call__(self, transitions: Transition):
        """Decode the successors of a window [T, B]; called to initialize every parameter."""
        features = self.unroll(transitions, None).after.latent.features
        return self.decode(features), self.outcome(features)

    def start(self, timestep: TimeStep, key: Array | None) -> Beliefs:
        """Infer beliefs about time steps [..., B] as the first ones of episodes.

        `key` None: the likeliest latents.
        """
        seen = self._encode(timestep)
        nothing = jnp.zeros((*seen.shape[:-1], self.deterministic))
        return self._infer(nothing, seen, self._noise(key, seen.shape[:-1]))

    def filter(self, latent: Latent, action: Tree, timestep: TimeStep, key: Array | None) -> Latent:
        """Infer the latent [B] of a time step from the previous latent and the action taken there.

        Where `timestep.first` the latent is reset. `key` None: the likeliest latent.
        """
        seen = self._encode(timestep)
        noise = self._noise(key, seen.shape[:-1])
        start = self._infer(jnp.zeros_like(latent.deterministic), seen, noise)
        after = self._infer(self._transition(latent, self._action(action)), seen, noise)
        return trees.where(timestep.first, start.latent, after.latent)

    def unroll(self, transitions: Transition, key: Array | None) -> Unrolled:
        """Infer beliefs about a window [T, B] of transitions.

        The latent is reset where `first`, and at the window's first step, since its past is not
        known. `key` None: the likeliest latents.
        """
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

        scan = nn.scan(
            module_again(step), variable_broadcast="params", split_rngs={"params": False}
        )
        inputs = (start.latent, first, action, arrived, noise)
        _, (before, after, posterior) = scan(self, self.initial(first.shape[1]), inputs)
        after = Beliefs(after, posterior, self._prior(after.deterministic))
        return Unrolled(start, first, before, after)

    def imagine(self, latent: Latent, action: Tree, key: Array) -> Latent:
        """Imagine the latent that `action` leads to, sampled from the prior."""
        hidden = self._transition(latent, self._action(action))
        noise = self._noise(key, hidden.shape[:-1])
        return Latent(hidden, self._sample(self._prior(hidden), noise))

    def decode(self, features: Array) -> Array:
        """Decode an observation [..., D]: the symlog of a feature, or the logit of a binary one."""
        return self.decoder(features)

    def outcome(self, features: Array) -> tuple[Array, Array]:
        """Predict the outcome of the step that led to a latent's `features`.

        Returns logits [..., bins] of the reward's two-hot code (`losses.two_hot`), and the logit
        [...] of the probability that the episode did not terminate there.
        """
        return self.reward(features), self.continue_logit(features)[..., 0]

    def initial(self, n: int) -> Latent:
        """Return a latent [n] of zeros, which the first step of an episode resets."""
        return Latent(
            jnp.zeros((n, self.deterministic)), jnp.zeros((n, self.groups * self.classes))
        )

    def _infer(self, hidden: Array, seen: Array, noise: Array) -> Beliefs:
        posterior = self._posterior(hidden, seen)
        return Beliefs(
            Latent(hidden, self._sample(posterior, noise)), posterior, self._prior(hidden)
        )

    def _encode(self, timestep: TimeStep) -> Array:
        return self.encoder(losses.symlog(encoders.features(self.observation_space, timestep)))

    def _action(self, action: Tree) -> Array:
        if isinstance(self.action_space, Box):  # as the environment plays it
            action = jnp.clip(action, *bounds(self.action_space))
        return encoders.action_features(self.action_space, action)

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
