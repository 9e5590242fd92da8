"""Random number generators: the one place that chooses one.

All other code takes typed keys and calls `jax.random`, which runs the generator of the key that
`key(seed)` made. On the CPU that is `pcg`, a counter-based hash of 32-bit words, which runs and
compiles several times faster there than threefry. On accelerators it is threefry2x32, JAX's
default, which is as fast there and far better studied.

`pcg` is the pcg4d hash of Jarzynski & Olano (2020), "Hash Functions for GPU Rendering", JCGT 9(3),
with a third round and an output xorshift. The published two rounds are not enough for keys: sums
and products carry upward only, and one xorshift moves bits down by 16 places, so the low 15 output
bits do not depend on the top bit of any input word (tests/core/test_random.py shows it). Keys have
64 bits, so, as with threefry, two of n derived keys are equal by chance with a probability of about
n^2 / 2^65. It is not a cryptographic generator.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl.core import errors

PCG = "pcg"
THREEFRY = "threefry2x32"
AUTO = "auto"
GENERATORS = (AUTO, PCG, THREEFRY)  # what `key` takes

_MULTIPLIER, _INCREMENT = np.uint32(1664525), np.uint32(1013904223)
_HALF = np.uint32(16)
# A domain for each use, so that splitting, folding in and drawing from one key share no hash input.
_BITS, _SPLIT, _FOLD_IN = np.uint32(0x0B175B17), np.uint32(0x5B11751B), np.uint32(0xF01D1B0F)


def key(seed, generator: str = AUTO) -> jax.Array:
    """Make the first key of a run.

    Args:
        seed: a Python or NumPy integer in [0, 2**64), each of which gives another key; or an
            integer array of shape [], possibly traced, so that `jax.vmap(key)(seeds)` works. A
            negative number in an array counts as its two's complement (-1 in int32 is the seed
            2**32 - 1). Equal numbers give equal keys, however they are passed.
        generator: 'pcg', 'threefry2x32' or 'auto', which is `default_generator()`.

    Returns:
        A typed key of shape []. For threefry2x32 it is the key of `jax.random.key`.

    Raises:
        UserError: for an unknown generator, and for a seed that is not such an integer.
    """
    impl = implementation(default_generator() if generator == AUTO else generator)
    if isinstance(seed, jax.Array):
        if seed.ndim or not jnp.issubdtype(seed.dtype, jnp.integer):
            raise errors.UserError(
                f"A seed is one integer, not {seed.dtype}{list(seed.shape)}; for several keys use "
                "jax.vmap(random.key)(seeds)."
            )
        return jax.random.key(seed, impl=impl)
    try:
        number = operator.index(seed)
    except TypeError:
        raise errors.UserError(
            f"A seed is one integer from 0 to 2**64 - 1, not {seed!r}."
        ) from None
    if not 0 <= number < 2**64:
        raise errors.UserError(f"A seed is one integer from 0 to 2**64 - 1, not {number}.")
    # jax.random.key would truncate a Python integer to 32 bits, so the words are made here.
    words = np.uint32(number >> 32), np.uint32(number & 0xFFFFFFFF)
    data = _mix_seed(*words) if impl is _PCG else jnp.asarray(words, jnp.uint32)
    return jax.random.wrap_key_data(data, impl=impl)


def default_generator() -> str:
    """Return the generator that 'auto' means here: 'pcg' if JAX computes on the CPU, and
    'threefry2x32' elsewhere."""
    return PCG if jax.default_backend() == "cpu" else THREEFRY


def generator_name(key: jax.Array) -> str:
    """Return the name of a key's generator, as `implementation` takes it; `key` is a typed key or
    an array of them, of any shape."""
    return str(jax.random.key_impl(key))


def implementation(name: str):
    """Return the implementation of a generator, for `jax.random.wrap_key_data(data, impl=...)` to
    restore keys from `jax.random.key_data(key)` and `generator_name(key)`.

    Raises:
        UserError: for an unknown generator.
    """
    if name not in _IMPLEMENTATIONS:
        raise errors.unknown("generator", name, GENERATORS)
    return _IMPLEMENTATIONS[name]


def _hash(k0, k1, counter, domain):
    """Hash four uint32 words, which broadcast, to two by three rounds of pcg4d.

    When key and domain are shared, the first word costs 8 multiplications per element and the
    second one more; XLA drops the second if it is not used.
    """
    x, y, z = (v * _MULTIPLIER + _INCREMENT for v in (k0, k1, counter))
    w = domain  # a constant whose bits are mixed already
    for _ in range(2):
        x = x + y * w
        y = y + z * x
        z = z + x * y
        w = w + y * z
        x, y, z, w = (v ^ (v >> _HALF) for v in (x, y, z, w))
    x = x + y * w
    y = y + z * x
    return x ^ (x >> _HALF), y ^ (y >> _HALF)


def _counters(shape: tuple[int, ...]) -> jax.Array:
    """Count 0, 1, 2, ... in row-major order: uint32 [*shape]. It sums iotas instead of reshaping
    one, so that each device of a sharded program counts its own part."""
    if math.prod(shape) > 2**32:
        raise errors.UserError(
            f"The 'pcg' generator draws at most 2**32 numbers from one key, not {math.prod(shape)} "
            f"(shape {tuple(shape)}); split the key, or use the generator 'threefry2x32'."
        )
    counters = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = np.uint32(math.prod(shape[axis + 1 :]) % 2**32)
        counters = counters + lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
    return counters


@functools.partial(jax.jit, inline=True)
def _mix_seed(high, low):
    """Make a key [2] from the two halves of a seed. It is a bijection of 64 bits (each line can be
    undone), so no two seeds have the same key. The shape is pcg2d's, with more rounds than it needs
    to avalanche."""
    x, y = jnp.uint32(low), jnp.uint32(high)
    x, y = x * _MULTIPLIER + _INCREMENT, y * _MULTIPLIER + _INCREMENT
    for _ in range(6):
        x = x + y * _MULTIPLIER
        y = y + x * _MULTIPLIER
        x, y = x ^ (x >> _HALF), y ^ (y >> _HALF)
    return jnp.stack([x, y])


def _seed(seed):
    if seed.dtype.itemsize == 8:
        high, low = (seed >> np.array(32, seed.dtype)).astype(jnp.uint32), seed.astype(jnp.uint32)
    else:
        high, low = jnp.uint32(0), seed.astype(jnp.uint32)
    return _mix_seed(high, low)


# Compiled once per shape for eager use, else some forty dispatches per call; inlined in a trace.
@functools.partial(jax.jit, static_argnums=1, inline=True)
def _split(key, shape):
    return jnp.stack(_hash(key[0], key[1], _counters(shape), _SPLIT), axis=-1)


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def _random_bits(key, bit_width, shape):
    high, low = _hash(key[0], key[1], _counters(shape), _BITS)
    if bit_width == 32:
        return high
    if bit_width == 64:
        return (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)
    return (high >> np.uint32(32 - bit_width)).astype(f"uint{bit_width}")


@functools.partial(jax.jit, inline=True)
def _fold_in(key, data):
    return jnp.stack(_hash(key[0], key[1], data.astype(jnp.uint32), _FOLD_IN), axis=-1)


_PCG = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name=PCG,
    tag=PCG,
)
_IMPLEMENTATIONS = {PCG: _PCG, THREEFRY: THREEFRY}


def _register() -> None:
    """Let `jax.random.wrap_key_data(..., impl='pcg')` find the generator by its name. JAX has no
    public way to do so yet; if the private one moves, `implementation('pcg')` still works."""
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        from jax._src.random import prng

        prng.register_prng(_PCG._impl)  # pyright: ignore[reportAttributeAccessIssue]


_register()
