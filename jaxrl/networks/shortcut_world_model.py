"""A transformer that imagines the next frame by a few denoising steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import diffusion, losses
from jaxrl.core.types import Array, Key, struct
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP
from jaxrl.networks.transformer import Cache, Transformer


@struct
class Token:
    """What the model is told of each frame; all leading axes alike."""

    frame: Array  # float32 [..., D]: noise and frame, mixed
    action: Array  # int32 [...]: taken to get here; `num_actions` where nobody said
    level: Array  # int32 [...]: of the frame, 0 (noise) .. levels (clean)
    step: Array  # int32 [...]: log2 of the step to be taken, in units of 1 / levels


class ShortcutWorldModel(nn.Module):
    """A causal transformer over the frames of an episode, each with a noise level of its own and
    the size of the denoising step that is to be taken (shortcut models: Frans et al., 2024,
    arXiv:2410.12557); it predicts clean frames (Hafner et al., 2025, "Training agents inside of
    scalable world models", arXiv:2509.24527).

    A frame is one token, so that attention within a frame, of which the paper's transformer has
    much, is empty here; so is the paper's tokenizer: frames are flat vectors.
    """

    size: int  # D
    num_actions: int
    length: int  # frames of an episode, and of what is imagined after
    width: int = 48
    layers: int = 2
    heads: int = 2
    levels: int = 16  # a power of two: the finest step is 1 / levels
    context: int = 15  # noise level of frames that are looked back at
    hidden: tuple[int, ...] = (48,)
    bins: int = 41

    def setup(self):
        init = initializer("lecun", 1.0)
        zeros = nn.initializers.zeros
        # All as large as positions are at first: a frame's noise would drown the action.
        embed = lambda n: nn.Embed(n, self.width, embedding_init=nn.initializers.normal(0.1))
        self.embed_frame = dense(self.width, initializer("orthogonal", 0.1))
        self.embed_action = embed(self.num_actions + 1)
        self.embed_level = embed(self.levels + 1)
        self.embed_step = embed(self.levels.bit_length())
        self.transformer = Transformer(self.width, self.length, self.layers, self.heads)
        self.clean = dense(self.size, init)
        self.reward = nn.Sequential([MLP(self.hidden, "silu"), dense(self.bins, zeros)])
        self.continue_logit = nn.Sequential([MLP(self.hidden, "silu"), dense(1, init)])

    def __call__(self, token: Token, memory: Cache) -> tuple[Array, Cache]:
        """One frame: token [B], memory [B] of the frames before -> features [B, width], memory."""
        features, memory = self.transformer(self._embed(token), memory)
        if self.is_initializing():  # reach every parameter
            self.clean(features)
            self.outcome(features)
        return features, memory

    def unroll(self, tokens: Token) -> tuple[Array, Cache]:
        """Frames from an episode's first on, [T, B] -> features [T, B, width], memories after each
        [T, B]. No feature depends on later frames."""
        first = jnp.zeros(tokens.action.shape, bool).at[0].set(True)
        return self.transformer.unroll(
            self._embed(tokens), first, self.transformer.initial(first.shape[1])
        )

    def denoise(self, token: Token, memory: Cache) -> Array:
        """The clean frame [B, D] that a noisy one may be, after the frames in `memory` [B]."""
        return self.clean(self(token, memory)[0])

    def outcome(self, features: Array) -> tuple[Array, Array]:
        """Of the step that led to a frame: two-hot logits [..., bins] of its reward, and the logit
        [...] of not having terminated there."""
        return self.reward(features), self.continue_logit(features)[..., 0]

    def as_context(self, frame: Array, action: Array, key: Key) -> Token:
        """Frames [..., D] that are looked back at: a little noisy."""
        level = jnp.full(action.shape, self.context, jnp.int32)
        noise = jax.random.normal(key, frame.shape)
        noisy = diffusion.flow_interpolant(noise, frame, level / self.levels)
        return Token(noisy, action, level, jnp.zeros_like(level))

    def initial(self, n: int) -> Cache:
        empty = jnp.zeros((n, self.layers, self.length, self.heads, self.width // self.heads))
        return Cache(empty, empty, jnp.zeros(n, jnp.int32))

    def _embed(self, token: Token) -> Array:
        return (
            self.embed_frame(token.frame)
            + self.embed_action(token.action)
            + self.embed_level(token.level)
            + self.embed_step(token.step)
        )


def draw_levels(key: Key, shape: tuple[int, ...], levels: int) -> tuple[Array, Array]:
    """Steps 2 ** step / levels, half of them the finest, which alone learns from frames, the others
    uniformly of all powers of two up to 1 (as all are in arXiv:2509.24527, equation 4); and noise
    levels on the grid of that step below 1: int32 [*shape] each."""
    finest_key, step_key, key = jax.random.split(key, 3)
    step = jax.random.randint(step_key, shape, 0, levels.bit_length())
    step = jnp.where(jax.random.bernoulli(finest_key, 0.5, shape), 0, step)
    size = 2**step
    place = jax.random.uniform(key, shape) * (levels // size)
    return jnp.floor(place).astype(jnp.int32) * size, step


def shortcut_target(predict, noisy: Array, clean: Array, level: Array, step: Array, levels: int):
    """What the clean frame at (`noisy`, `level`, `step`) is to be predicted as: `clean` where the
    step is the finest, else where two steps of half the size lead (arXiv:2509.24527, equation 7).

    predict(noisy, level, step) -> clean [..., D], the model itself. noisy, clean: [..., D]; level,
    step: int32 [...]. Returns [..., D], through which nothing flows back.
    """
    half = jnp.maximum(step - 1, 0)
    time, size = level / levels, 2.0**half / levels
    velocity = diffusion.velocity_from_clean(noisy, predict(noisy, level, half), time)
    between = diffusion.flow_step(noisy, velocity, size)
    # Where there is no half step, the time may be 1; what comes of it is not used.
    later = jnp.minimum(time + size, 1 - 1 / levels)
    next_level = jnp.minimum(level + 2**half, levels - 1)
    next_velocity = diffusion.velocity_from_clean(
        between, predict(between, next_level, half), later
    )
    both = diffusion.flow_clean(noisy, losses.shortcut_velocity(velocity, next_velocity), time)
    return jax.lax.stop_gradient(jnp.where((step == 0)[..., None], clean, both))


def frame_loss(
    model: Any,
    apply: Callable[..., Any],
    frames: Array,
    action: Array,
    key: Key,
    bootstrap: Array | float = 1.0,
) -> tuple[Array, Array]:
    """Shortcut forcing of frames [T, B, D] to which actions [T, B] led: the loss [T, B] of each,
    noisy to any degree, after those before it as contexts; and the features [T, B, width] of these.

    apply: `model.apply` with the parameters.
    bootstrap: 0 teaches the clean frame to steps of every size, which are told apart for nothing
        then.
    """
    level_key, noise_key, context_key = jax.random.split(key, 3)
    level, step = draw_levels(level_key, action.shape, model.levels)
    time = level / model.levels
    noisy = diffusion.flow_interpolant(jax.random.normal(noise_key, frames.shape), frames, time)

    contexts = model.as_context(frames, action, context_key)
    features, after = apply(contexts, method="unroll")
    nothing = model.initial(action.shape[1])
    before = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y[:-1]]), nothing, after)

    def predict(noisy, level, step):
        inputs = Token(noisy, action, level, step), before
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), inputs)
        return apply(*flat, method="denoise").reshape(frames.shape)

    target = shortcut_target(predict, noisy, frames, level, step, model.levels)
    target = jnp.where(bootstrap > 0.5, target, frames)
    return losses.shortcut_forcing(predict(noisy, level, step), target, time), features


def next_frame(
    model: Any, apply: Callable[..., Any], cache: Cache, action: Array, key: Key, steps: int
) -> tuple[Array, Array, Cache]:
    """Imagines the frame [B, D] that `action` [B] leads to, after those in `cache` [B], by `steps`
    denoising steps, and looks back at it: the frame, its features and the cache.

    apply: `model.apply` with the parameters.
    """
    noise_key, key = jax.random.split(key)

    def denoise(noisy, level, step):
        return apply(Token(noisy, action, level, step), cache, method="denoise")

    noise = jax.random.normal(noise_key, (*action.shape, model.size))
    frame = imagine_frame(denoise, noise, steps, model.levels)
    features, cache = apply(model.as_context(frame, action, key), cache)
    return frame, features, cache


def imagine_frame(denoise, noise: Array, steps: int, levels: int) -> Array:
    """A frame [..., D] from `noise` [..., D] by `steps` equal denoising steps, a power of two.

    denoise(noisy, level, step) -> clean [..., D], level and step int32 [...].
    """
    size = levels // steps
    step = jnp.full(noise.shape[:-1], size.bit_length() - 1, jnp.int32)

    def closer(frame, i):
        level = jnp.full(noise.shape[:-1], i * size, jnp.int32)
        time = level / levels
        velocity = diffusion.velocity_from_clean(frame, denoise(frame, level, step), time)
        return diffusion.flow_step(frame, velocity, jnp.full_like(time, 1 / steps)), None

    return jax.lax.scan(closer, noise, jnp.arange(steps, dtype=jnp.int32))[0]
