"""Small shortcut world models for tests: a closed form, and a network with random tokens."""

import functools

import jax

from jaxrl.core import random
from jaxrl.networks.shortcut_world_model import ShortcutWorldModel, Token

T, B, D, LEVELS = 5, 2, 3, 8


def model(noisy, level, step):
    """Predict a clean frame, never correctly, with NumPy or JAX arrays."""
    level, step = level[..., None], step[..., None]
    return 0.3 * noisy + 0.1 * level - 0.2 * step + 1.0


@functools.cache
def network():
    """Return the network, its parameters and random tokens [T, B]."""
    net = ShortcutWorldModel(D, 3, T + 1, 8, 2, 2, LEVELS, LEVELS - 1, (8,), 5)
    keys = jax.random.split(random.key(2), 4)
    draw = lambda key, n: jax.random.randint(key, (T, B), 0, n)
    tokens = Token(
        jax.random.normal(keys[0], (T, B, D)), draw(keys[1], 4), draw(keys[2], 8), draw(keys[3], 4)
    )
    first = jax.tree.map(lambda x: x[0], tokens)
    params = jax.jit(net.init)(random.key(3), first, net.initial(B))
    return net, params, tokens
