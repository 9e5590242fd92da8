import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.networks.recurrent import GRU

T, B, D, H = 9, 4, 3, 5


def setup():
    x = jax.random.normal(random.key(0), (T, B, D))
    first = jax.random.uniform(random.key(1), (T, B)) < 0.3
    memory = jax.random.normal(random.key(2), (B, H))
    gru = GRU(H)
    params = gru.init(random.key(3), x[0], memory)
    return gru, params, x, first, memory


@pytest.mark.slow
def test_unrolling_is_stepping_with_a_reset_memory_at_first_steps():
    gru, params, x, first, memory = setup()
    assert first[1:].any() and not first.all()
    features, memories = jax.jit(lambda *a: gru.apply(*a, method="unroll"))(
        params, x, first, memory
    )
    step = jax.jit(gru.apply)
    for t in range(T):
        memory = jnp.where(first[t][:, None], gru.initial(B), memory)
        expected, memory = step(params, x[t], memory)
        np.testing.assert_allclose(features[t], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(memories[t], memory, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_nothing_flows_over_a_first_step():
    gru, params, x, first, memory = setup()
    first = first.at[5].set(True)
    unroll = lambda x, memory: gru.apply(params, x, first, memory, method="unroll")[0]
    changed = unroll(x.at[:5].add(1.0), memory + 1)
    np.testing.assert_array_equal(changed[5:], unroll(x, memory)[5:])
    assert (changed[0] != unroll(x, memory)[0]).any()
    gradient = jax.grad(lambda x: unroll(x, memory)[5:].sum())(x)
    assert (gradient[:5] == 0).all() and (gradient[5:] != 0).any()


def test_the_memory_before_a_window_counts_unless_it_opens_an_episode():
    gru, params, x, _, memory = setup()
    first = jnp.zeros((T, B), bool).at[0, 1].set(True)
    unroll = lambda memory: gru.apply(params, x, first, memory, method="unroll")[0][0]
    same = (unroll(memory) == unroll(memory + 1)).all(-1)
    np.testing.assert_array_equal(same, [False, True, False, False])


def test_a_step_is_that_of_the_cell_of_flax_with_the_same_weights():
    gru, params, x, _, memory = setup()
    reference = nn.GRUCell(H)
    assert jax.tree.map(jnp.shape, params["params"]["cell"]) == jax.tree.map(
        jnp.shape, reference.init(random.key(3), memory, x[0])["params"]
    )
    expected, _ = reference.apply({"params": params["params"]["cell"]}, memory, x[0])
    features, after = gru.apply(params, x[0], memory)
    np.testing.assert_array_equal(after, expected)
    np.testing.assert_array_equal(features, expected)
