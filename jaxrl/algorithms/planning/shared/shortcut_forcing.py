"""Shortcut forcing: the loss of Dreamer 4's world model (arXiv:2509.24527, equation 7)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import diffusion, losses
from jaxrl.core.types import Array, Key
from jaxrl.networks.apply import Apply
from jaxrl.networks.shortcut_world_model import Denoiser, ShortcutWorldModel, Token


def draw_levels(key: Key, shape: tuple[int, ...], levels: int) -> tuple[Array, Array]:
    """Draw random noise levels and step sizes: int32 level and step [*shape].

    The step size is 2 ** step / levels. Half of the steps are the finest, since only these learn
    from frames; the others are uniform over all powers of two up to 1 (in arXiv:2509.24527,
    equation 4, all are). The noise level is uniform over multiples of the step size below 1.
    """
    finest_key, step_key, key = jax.random.split(key, 3)
    step = jax.random.randint(step_key, shape, 0, levels.bit_length())
    step = jnp.where(jax.random.bernoulli(finest_key, 0.5, shape), 0, step)
    size = 2**step
    place = jax.random.uniform(key, shape) * (levels // size)
    return jnp.floor(place).astype(jnp.int32) * size, step


def shortcut_target(
    predict: Denoiser,
    noisy: Array,
    clean: Array,
    level: Array,
    step: Array,
    levels: int,
) -> Array:
    """Compute the target [..., D] of the prediction at (`noisy`, `level`, `step`).

    It is `clean` if the step is the finest, else what two steps of half the size lead to
    (arXiv:2509.24527, equation 7). No gradient flows through it.

    predict: the model itself.
    noisy, clean: [..., D].
    level, step: int32 [...], as in `draw_levels`.
    """
    half = jnp.maximum(step - 1, 0)
    time, size = level / levels, 2.0**half / levels
    velocity = diffusion.velocity_from_clean(noisy, predict(noisy, level, half), time)
    between = diffusion.flow_step(noisy, velocity, size)
    # For the finest step there is no half step and the time may reach 1; its result is not used.
    later = jnp.minimum(time + size, 1 - 1 / levels)
    next_level = jnp.minimum(level + 2**half, levels - 1)
    next_velocity = diffusion.velocity_from_clean(
        between, predict(between, next_level, half), later
    )
    both = diffusion.flow_clean(noisy, losses.shortcut_velocity(velocity, next_velocity), time)
    return jax.lax.stop_gradient(jnp.where((step == 0)[..., None], clean, both))


def frame_loss(
    model: ShortcutWorldModel,
    apply: Apply,
    frames: Array,
    action: Array,
    key: Key,
    bootstrap: Array | float = 1.0,
) -> tuple[Array, Array]:
    """Compute the shortcut forcing loss of frames [T, B, D], to which actions [T, B] led.

    Each frame gets a random noise level and is predicted from the frames before it, which have the
    noise of `model.context`.

    apply: `model.apply` with the parameters bound.
    bootstrap: with 0 the target is the clean frame for steps of every size, so that the step size
        has no meaning.

    Returns the loss of each frame [T, B], and the features [T, B, width] of the frames with the
    noise of past ones.
    """
    level_key, noise_key, context_key = jax.random.split(key, 3)
    level, step = draw_levels(level_key, action.shape, model.levels)
    time = level / model.levels
    noisy = diffusion.flow_interpolant(jax.random.normal(noise_key, frames.shape), frames, time)

    contexts = model.context_token(frames, action, context_key)
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
