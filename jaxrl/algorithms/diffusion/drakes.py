"""DRAKES (Wang et al., 2024, "Fine-tuning discrete diffusion models via reward optimization with
applications to DNA and protein design", arXiv:2410.13643, and its published code): the gradient of
a reward through the sampling of a masked diffusion model, made differentiable by Gumbel-softmax.

A step draws each letter, or the mask, as softmax((log q + Gumbel noise) / `temperature`) instead of
its largest entry, so that strings are vectors of probabilities and the whole chain has a gradient;
the string at the end is rounded, with the gradient of what is rounded (straight-through). Only the
last `soft_steps` are such; those before are drawn as usual, without a gradient. What is maximized
is the reward less `beta` times the divergence of the chain from the frozen model's.

The divergence is that of jump processes (`losses.ctmc_kl`), each letter counted by how far it is
masked, over the soft steps and the others alike. For a perfect model the maximizer is p(x) exp(r(x)
/ beta). The paper's rewards are networks that predict activities of DNA and proteins; here the
reward is the environment's, which is known where letters are only probable.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared.fine_tuning import begin_as_cloned
from jaxrl.algorithms.diffusion.shared.token_diffusion import (
    LEAST,
    STRING_SCORES,
    Logits,
    TokenTuning,
    check_strings,
    measure_strings,
    one_hot,
    sample_strings,
    sizes_of,
    tuned_parts,
    unmask,
)
from jaxrl.core.types import Array, Environment, Key
from jaxrl.envs.bandits.strings import relaxed_reward
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper, loss, static


@group
class Config(TokenTuning):
    """Settings of DRAKES: reward gradients through a masked diffusion model (arXiv:2410.13643)."""

    soft_steps: int = static(8, low=1)
    """Number of steps, the last ones, that the gradient passes through."""
    temperature: float = hyper(1.0, above=0)
    """Temperature of Gumbel-softmax. 1: authors' code."""
    beta: float = hyper(0.2, low=0)
    """Weight of the divergence from the frozen model, in units of the reward."""


def round_straight_through(x: Array) -> Array:
    """Return the one-hot of the largest entry of vectors [..., V], with the gradient of `x`."""
    hard = jax.nn.one_hot(x.argmax(-1), x.shape[-1])
    return x + jax.lax.stop_gradient(hard - x)


def soft_chain(
    key: Key,
    logits: Logits,
    n: int,
    size: tuple[int, int],
    steps: int,
    soft: int,
    heat: Array | float,
) -> tuple[Array, Array]:
    """Sample strings with a gradient: what each step began with [K, n, L, V + 1], and the strings
    at the end as one-hots [n, L, V].

    soft: number of the last steps that have a gradient. heat: temperature.
    """
    length, letters = size

    def take(string: Array, item: tuple[Array, Key]) -> tuple[Array, Array]:
        step, key = item
        probs = unmask(logits, string, step, steps)
        logged = jnp.log(jnp.maximum(probs, LEAST)) + jax.random.gumbel(key, probs.shape)
        new = jax.nn.softmax(logged / heat)
        hard = jax.nn.one_hot(logged.argmax(-1), letters + 1)
        is_soft = step >= steps - soft
        new = jnp.where(is_soft, new, jax.lax.stop_gradient(hard))
        masked = string[..., letters:]
        after = (1 - masked) * string + masked * new
        return jnp.where(is_soft, after, jax.lax.stop_gradient(after)), string

    masked = one_hot(jnp.full((n, length), letters), letters)
    items = jnp.arange(steps, dtype=jnp.float32), jax.random.split(key, steps)
    last, begun = jax.lax.scan(take, masked, items)
    return begun, round_straight_through(last[..., :letters])


def chain_divergence(logits: Logits, base: Logits, begun: Array) -> Array:
    """Return the divergence [n] of a chain from that of the frozen model, from what each of the K
    steps began with [K, n, L, V + 1]."""
    steps = len(begun)
    level = 1 - jnp.arange(steps)[:, None] / steps
    level = jnp.broadcast_to(level, begun.shape[:2])
    # Letters are unmasked at the rate 1 / (1 - alpha).
    rate = -jnp.log(level)[..., None, None]
    log_rate, base_log_rate = (jax.nn.log_softmax(f(begun, level)) + rate for f in (logits, base))
    duration = begun[..., -1] / steps
    return losses.ctmc_kl(log_rate, base_log_rate, duration).sum(-1)


def recipe(env: Environment, config: Config) -> Recipe:
    size, steps = sizes_of(env), config.steps

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Compute the divergence from the frozen model less the reward of new strings."""
        n, h, soft = x.reward.size, net.hyper, min(config.soft_steps, steps)
        drawn = soft_chain(net.key(), net.denoiser, n, size, steps, soft, h.temperature)
        reward = relaxed_reward(drawn[1], env.params)
        distance = chain_divergence(net.denoiser, net.base, drawn[0])
        metrics = {"divergence": distance, "sampled_reward": reward}
        shaped = lambda leaf: leaf.reshape(x.reward.shape)
        return LossOutput(shaped(h.beta * distance - reward), jax.tree.map(shaped, metrics))

    def act(net, timestep, memory, key, greedy):
        count = timestep.reward.shape[0]
        return sample_strings(key, net.denoiser, count, size, steps), memory, {}

    return Recipe(
        parts=tuned_parts(env, config),
        act=act,
        losses=(denoiser_loss,),
        adopt=begin_as_cloned,
        scores=STRING_SCORES,
    )


drakes = AlgorithmBuilder(
    "drakes", Config, recipe, check=check_strings, measure=measure_strings, goes_on_from="mdlm"
)

TINY = {
    "env": "strings", "env_params": {"length": 3, "letters": 2}, "num_envs": 8, "num_shards": 4,
    "hidden": (8,), "steps": 3, "soft_steps": 2,
}  # fmt: skip
