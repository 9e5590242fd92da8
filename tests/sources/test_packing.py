"""Trees packed into words are exact to the bit, and no larger than necessary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.sources.packing import pack, unpack

ITEMS = (3, 5)
NUMBERS = ["int8", "uint8", "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32"]


def bits(x):
    key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if key else x).tobytes()


def anything(dtype, shape):
    """Draw any pattern of bits uniformly: NaNs with payloads, infinities, signed zeros."""
    size = np.dtype(dtype).itemsize
    raw = np.random.default_rng(0).integers(0, 256, (*ITEMS, *shape, size), np.uint8)
    return jnp.asarray(raw.view(dtype)[..., 0])


def tree():
    found = {
        f"{d}{s}": anything(jnp.dtype(d), s) for d in NUMBERS for s in [(), (3,), (2, 0), (2, 3)]
    }
    noise = np.random.default_rng(1).random
    found |= {f"bool{s}": jnp.asarray(noise((*ITEMS, *s)) < 0.5) for s in [(), (7,), (4, 9)]}
    for generator in (random.PCG, random.THREEFRY):
        keys = jax.random.split(random.key(1, generator), (*ITEMS, 2))
        found[generator] = (keys, keys[..., 0], None)
    return found


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)


def test_there_and_back_to_the_bit():
    whole = tree()
    packed = jax.jit(lambda x: pack(x, 2))(whole)
    assert packed.words.dtype == jnp.uint32 and packed.words.shape[:2] == ITEMS
    assert_same(jax.jit(unpack)(packed), whole)
    one = unpack(jax.tree.map(lambda x: x[1, 3], packed))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(whole), strict=True):
        size = len(bits(a))  # items lie one after the other; this is the ninth
        assert a.shape == b.shape[2:] and bits(a) == bits(b)[8 * size : 9 * size]


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_numbers_of_eight_bytes(dtype):
    with jax.enable_x64():
        whole = [anything(dtype, ()), anything(dtype, (2, 3))]
        assert_same(unpack(pack(whole, 2)), whole)


def test_neighbors_share_words():
    def words(*leaves):
        shapes = [jax.ShapeDtypeStruct((4, *shape), dtype) for dtype, *shape in leaves]
        return jax.eval_shape(lambda x: pack(x, 1), shapes).words.shape[1]

    assert words((bool, 33)) == 2 and words(*[(bool,)] * 32) == 1
    assert words((jnp.int8, 5)) == 2 and words((jnp.bfloat16, 3)) == 2
    assert words((bool, 33), (jnp.int8, 5), (jnp.float16, 3), (jnp.float32, 3)) == 9
