"""The floor: matrix products and attention contractions of the same sizes and number, in JAX.

No softmax, normalization, activation, sampling, environment, optimizer, or cache that is written.
As in our network, a step attends to all slots of an episode.
"""

from __future__ import annotations

import time
from typing import Any

import decoding


def prepare(case: dict[str, Any], seed: int) -> decoding.Turn:
    import jax
    import jax.numpy as jnp

    width, layers, heads = case["width"], case["layers"], case["heads"]
    tokens, size = case["vocabulary"], width // heads
    episodes = case["prompts"] * case["answers"]
    steps = case["prompt_length"] - 1 + case["answer_length"]
    slots = steps + 1
    keys = iter(jax.random.split(jax.random.key(seed), 100))
    normal = lambda *shape: jax.random.normal(next(keys), shape)
    dense = lambda n, m: normal(n, m) / n**0.5
    block = lambda: {
        "project": dense(width, 3 * width),
        "mix": dense(width, width),
        "grow": dense(width, 4 * width),
        "shrink": dense(4 * width, width),
    }
    weights = {
        "embed": dense(tokens, width),
        "blocks": [block() for _ in range(layers)],
        "heads": dense(width, tokens + 1),  # policy and value
    }
    caches = [[normal(episodes, heads, slots, size) for _ in range(2)] for _ in range(layers)]

    def apply(weights, x, attend):
        """x [..., tokens] -> [..., tokens + 1]; attend(layer, query, key, value) -> as query."""
        x = x @ weights["embed"]
        for i, block in enumerate(weights["blocks"]):
            parts = jnp.split(x @ block["project"], 3, -1)
            parts = [part.reshape(*x.shape[:-1], heads, size) for part in parts]
            x = x + attend(i, *parts).reshape(x.shape) @ block["mix"]
            x = x + x @ block["grow"] @ block["shrink"]
        return x @ weights["heads"]

    @jax.jit
    def rollout(weights, caches, x):
        def attend(i, query, key, value):
            logits = jnp.einsum("bhd,bhsd->bhs", query, caches[i][0]) / slots
            return jnp.einsum("bhs,bhsd->bhd", logits, caches[i][1]) + key + value

        def step(x, _):
            return x + 1e-6 * apply(weights, x, attend)[:, :tokens], None

        return jax.lax.scan(step, x, None, steps)[0]

    def window(weights, x):
        def attend(i, query, key, value):
            logits = jnp.einsum("tbhd,sbhd->bhts", query, key) / slots
            return jnp.einsum("bhts,sbhd->tbhd", logits, value)

        return apply(weights, x, attend)

    @jax.jit
    def update(weights, reference, x):
        """Compute the outputs of both policies and the gradient of one."""
        known = window(reference, x)
        return jax.grad(lambda weights: (window(weights, x) * known).mean())(weights)

    x, texts = normal(episodes, tokens), normal(steps, episodes, tokens)
    reference = jax.tree.map(lambda w: w + 0.01, weights)
    jax.block_until_ready((weights, caches, x, texts, reference))

    def turn() -> tuple[float, float]:
        clock = time.perf_counter()
        jax.block_until_ready(rollout(weights, caches, x))
        written = time.perf_counter()
        jax.block_until_ready(update(weights, reference, texts))
        return written - clock, time.perf_counter() - written

    return turn


if __name__ == "__main__":
    decoding.main(prepare)
