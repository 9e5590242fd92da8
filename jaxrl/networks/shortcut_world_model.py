"""A transformer that imagines the next frame in a few denoising steps."""

from __future__ import annotations

from typing import Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import diffusion
from jaxrl.core.types import Array, Key, struct
from jaxrl.networks.apply import Apply
from jaxrl.networks.dense import dense, hidden_dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP
from jaxrl.networks.transformer import Cache, Transformer


@struct
class Token:
    """The model's input for each frame; all leading axes are the same."""

    frame: Array  # float32 [..., D]: mixture of noise and frame
    action: Array  # int32 [...]: the action that led to the frame; `num_actions` if unknown
    level: Array  # int32 [...]: noise level of the frame, 0 (noise) .. levels (clean)
    step: Array  # int32 [...]: log2 of the size of the next denoising step times `levels`


class Denoiser(Protocol):
    """Predict clean frames [..., D] from noisy ones.

    noisy: [..., D].
    level: int32 [...], noise level of each frame, as in `Token`.
    step: int32 [...], size of the next denoising step, as in `Token`.
    """

    def __call__(self, noisy: Array, level: Array, step: Array) -> Array: ...


class ShortcutWorldModel(nn.Module):
    """A causal transformer over the frames of an episode, which predicts clean frames (Hafner et
    al., 2025, "Training agents inside of scalable world models", arXiv:2509.24527).

    Each frame has its own noise level, and the size of the denoising step to be taken (shortcut
    models: Frans et al., 2024, arXiv:2410.12557). A frame is a flat vector and a single token, so
    the paper's tokenizer and its attention within a frame are absent here.
    """

    size: int  # D
    num_actions: int
    length: int  # number of frames of an episode and of what is imagined after it
    width: int = 48
    layers: int = 2
    heads: int = 2
    levels: int = 16  # a power of two: the finest step is 1 / levels
    context: int = 15  # noise level of past frames
    hidden: tuple[int, ...] = (48,)
    bins: int = 41

    def setup(self):
        init = initializer("lecun", 1.0)
        zeros = nn.initializers.zeros
        # All embeddings start as large as positions, since a frame's noise would drown the action.
        embed = lambda n: nn.Embed(n, self.width, embedding_init=nn.initializers.normal(0.1))
        self.embed_frame = hidden_dense(self.width, initializer("orthogonal", 0.1))
        self.embed_action = embed(self.num_actions + 1)
        self.embed_level = embed(self.levels + 1)
        self.embed_step = embed(self.levels.bit_length())
        self.transformer = Transformer(self.width, self.length, self.layers, self.heads)
        self.clean = dense(self.size, init)
        self.reward = nn.Sequential([MLP(self.hidden, "silu"), dense(self.bins, zeros)])
        self.continue_logit = nn.Sequential([MLP(self.hidden, "silu"), dense(1, init)])

    def __call__(self, token: Token, memory: Cache) -> tuple[Array, Cache]:
        """Read one frame: token [B], memory [B] of past frames -> features [B, width], memory."""
        features, memory = self.transformer(self._embed(token), memory)
        if self.is_initializing():  # create every parameter
            self.clean(features)
            self.outcome(features)
        return features, memory

    def unroll(self, tokens: Token) -> tuple[Array, Cache]:
        """Read an episode from its first frame: tokens [T, B] -> features [T, B, width], and the
        memory after each frame [T, B]. No feature depends on later frames."""
        first = jnp.zeros(tokens.action.shape, bool).at[0].set(True)
        blank = self.transformer.initial(first.shape[1]).shrink()
        return self.transformer.unroll(self._embed(tokens), first, blank)

    def denoise(self, token: Token, memory: Cache) -> Array:
        """Predict the clean frame [B, D] of a noisy one that follows the frames in `memory` [B]."""
        return self.clean(self(token, memory)[0])

    def outcome(self, features: Array) -> tuple[Array, Array]:
        """Predict the outcome of the step that led to a frame: two-hot logits [..., bins] of its
        reward, and the logit [...] of the probability that the episode did not terminate there."""
        return self.reward(features), self.continue_logit(features)[..., 0]

    def context_token(self, frame: Array, action: Array, key: Key) -> Token:
        """Return the tokens of past frames [..., D], with a little noise (`context`) added."""
        level = jnp.full(action.shape, self.context, jnp.int32)
        noise = jax.random.normal(key, frame.shape)
        noisy = diffusion.flow_interpolant(noise, frame, level / self.levels)
        return Token(noisy, action, level, jnp.zeros_like(level))

    def initial(self, n: int) -> Cache:
        """Return the empty memory [n] before an episode's first frame."""
        sizes = self.width, self.length, self.layers, self.heads
        return Transformer(*sizes, parent=None).initial(n)

    def _embed(self, token: Token) -> Array:
        return (
            self.embed_frame(token.frame)
            + self.embed_action(token.action)
            + self.embed_level(token.level)
            + self.embed_step(token.step)
        )


def next_frame(
    model: ShortcutWorldModel, apply: Apply, cache: Cache, action: Array, key: Key, steps: int
) -> tuple[Array, Array, Cache]:
    """Imagine the frame [B, D] that `action` [B] leads to, after the frames in `cache` [B].

    apply: `model.apply` with the parameters bound.
    steps: number of denoising steps, a power of two.

    Returns the frame, its features [B, width] as a past frame, and the cache with it.
    """
    noise_key, key = jax.random.split(key)

    def denoise(noisy, level, step):
        return apply(Token(noisy, action, level, step), cache, method="denoise")

    noise = jax.random.normal(noise_key, (*action.shape, model.size))
    frame = imagine_frame(denoise, noise, steps, model.levels)
    features, cache = apply(model.context_token(frame, action, key), cache)
    return frame, features, cache


def imagine_frame(denoise: Denoiser, noise: Array, steps: int, levels: int) -> Array:
    """Denoise `noise` [..., D] into a frame [..., D] in `steps` equal steps, a power of two."""
    size = levels // steps
    step = jnp.full(noise.shape[:-1], size.bit_length() - 1, jnp.int32)

    def closer(frame, i):
        level = jnp.full(noise.shape[:-1], i * size, jnp.int32)
        time = level / levels
        velocity = diffusion.velocity_from_clean(frame, denoise(frame, level, step), time)
        return diffusion.flow_step(frame, velocity, jnp.full_like(time, 1 / steps)), None

    return jax.lax.scan(closer, noise, jnp.arange(steps, dtype=jnp.int32))[0]
