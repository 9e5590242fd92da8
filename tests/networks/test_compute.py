"""Networks that compute in bfloat16, or their activations twice, are what they were otherwise."""

import functools

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import registry
from jaxrl.algorithms.planning.shared.imagination import imagine
from jaxrl.core import random
from jaxrl.core.train import advance, start
from jaxrl.networks.compute import Compute, computing, find_unused, with_compute
from jaxrl.networks.dense import hidden_matmul
from jaxrl.networks.recurrent import GRU
from jaxrl.networks.torsos import MLP, Convolution, PixelEncoder
from jaxrl.networks.transformer import Transformer
from jaxrl.runtime import building
from jaxrl.runtime.driver import Program
from tests.contracts.devices import assert_equal, numbers
from tests.runtime import tiny

BF16, REMAT = Compute("bf16"), Compute(remat=True)


class Memory(nn.Module):
    """A recurrent memory over a window [T, B, D] from its beginning."""

    width: int

    @nn.compact
    def __call__(self, x):
        core = GRU(self.width)
        return core.unroll(x, jnp.zeros(x.shape[:2], bool), core.initial(x.shape[1]))[0]


def dots(function, *args):
    """Return the types of the inputs of each product and convolution in a traced function."""
    found = []

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name in ("dot_general", "conv_general_dilated"):
                found.append({v.aval.dtype.name for v in equation.invars})
            for inner in jax.core.jaxprs_in_params(equation.params):
                visit(inner)

    # A function of its own, since JAX keeps what it has traced of a function.
    visit(jax.make_jaxpr(lambda *args: function(*args))(*args).jaxpr)
    return found


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3)])
def test_a_product_and_its_derivatives_are_in_bfloat16(shape):
    x, w = jax.random.normal(random.key(0), shape), jax.random.normal(random.key(1), (3, 4))
    loss = lambda x, w: (hidden_matmul(x, w) ** 2).sum()
    both = jax.grad(loss, (0, 1))
    exact = both(x, w)
    with computing(BF16):
        y, rounded = hidden_matmul(x, w), both(x, w)
        assert dots(both, x, w) == [{"bfloat16"}] * 3
        along = jax.jvp(functools.partial(hidden_matmul, x), (w,), (w,))[1]
    assert y.dtype == along.dtype == jnp.float32
    half = lambda z: z.astype(jnp.bfloat16)
    np.testing.assert_array_equal(y, (half(x) @ half(w)).astype(jnp.float32))
    np.testing.assert_allclose(y, x @ w, atol=0.05)
    for got, wanted in zip(rounded, exact, strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, wanted, rtol=0.05, atol=0.2)
    assert dots(both, x, w) == [{"float32"}] * 3  # as it was


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (MLP((8, 8)), (4, 3)),
        (Convolution((4,), form="direct"), (4, 8, 8, 3)),
        (Convolution((4,), form="slices"), (4, 8, 8, 3)),
        (PixelEncoder(((4, 4, 2),)), (4, 12, 12, 1)),
        (Memory(5), (3, 4, 3)),
    ],
)
def test_layers_compute_in_bfloat16(network, shape):
    x = jax.random.normal(random.key(0), shape)
    params = network.init(random.key(1), x)
    exact = network.apply(params, x)
    with computing(BF16):
        assert set(map(frozenset, dots(network.apply, params, x))) == {frozenset({"bfloat16"})}
        y = network.apply(params, x)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, exact, atol=0.05)


def test_a_function_is_traced_once_for_each_way():
    """A jit within it, whose cache knows nothing of the algorithm, included."""
    x, w = jnp.ones((4, 3)), jnp.ones((3, 2))
    inner = jax.jit(hidden_matmul)
    for compute in (Compute(), BF16, REMAT, Compute("bf16", True), Compute()):
        with computing(compute):
            kind = "bfloat16" if compute.precision == "bf16" else "float32"
            assert dots(inner, x, w) == [{kind}]
    assert dots(inner, x, w) == [{"float32"}]


@pytest.mark.parametrize("name", ["ppo", "sac", "dqn", "rainbow", "muzero", "grpo"])
def test_an_algorithm_has_both_precisions_and_its_state_is_float32(name):
    env, config = registry.tiny(name)
    plain = registry.builder(name)[0](env, config)
    half = with_compute(plain, BF16)
    assert with_compute(plain, BF16) is half  # so that nothing is compiled twice
    run = jax.eval_shape(lambda: start(half, random.key(0)))
    kinds = dots(functools.partial(advance, half), run)
    assert {"bfloat16"} in kinds and {"float32"} in kinds and not find_unused(half, BF16)
    assert {x.dtype for x in jax.tree.leaves(run)} == {
        x.dtype for x in jax.tree.leaves(jax.eval_shape(lambda: start(plain, random.key(0))))
    }
    assert {"bfloat16"} not in dots(functools.partial(advance, plain), run)


def test_one_precision_does_not_change_the_other_in_the_same_process():
    algorithm = building.build(tiny.config())[1]
    ends = []
    for compute in (Compute(), BF16, Compute(), BF16):
        one = with_compute(algorithm, compute) if compute == BF16 else algorithm
        run, _ = advance(one, start(one, random.key(0)))
        ends.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(run.state.agent.parts)]))
    np.testing.assert_array_equal(ends[0], ends[2])
    np.testing.assert_array_equal(ends[1], ends[3])
    assert (ends[0] != ends[1]).any()
    np.testing.assert_allclose(ends[0], ends[1], atol=0.02)


@pytest.mark.parametrize("name", ["grpo", "dreamer", "muzero"])
def test_activations_that_are_computed_twice_change_nothing(name):
    env, config = registry.tiny(name)
    plain = registry.builder(name)[0](env, config)
    twice, ends = with_compute(plain, REMAT), []
    for algorithm in (plain, twice):
        program = Program(algorithm)
        begun = program.start(random.key(0))
        ends.append(numbers(program.compile(begun)(begun, 1).run.state))
    assert not find_unused(twice, REMAT)
    assert_equal(*ends, 1e-5)


def residual_bytes(function, *args):
    """Return the bytes that the forward pass keeps for the gradient."""
    held = jax.eval_shape(lambda *args: jax.vjp(lambda *args: function(*args), *args)[1], *args)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(held))


def test_a_transformer_keeps_less():
    network, x = Transformer(64, 64, layers=4), jnp.ones((64, 8, 64))
    window = x, jnp.zeros(x.shape[:2], bool), network.initial(x.shape[1])
    params = network.init(random.key(0), *window, method="unroll")
    unroll = lambda params: network.apply(params, *window, method="unroll")[0]
    before = residual_bytes(unroll, params)
    with computing(REMAT):
        assert residual_bytes(unroll, params) < 0.3 * before


def test_imagination_keeps_less():
    weights = jnp.ones((16, 256))

    def features(weights):
        def dynamics(state, action, key):
            hidden = jnp.tanh(jnp.tanh(state @ weights) @ weights.T)
            return hidden, hidden

        actor = lambda features: distrax.Deterministic(features)
        start = jnp.ones((32, 16)), jnp.ones((32, 16))
        return imagine(actor, dynamics, start, random.key(0), 8)[0]

    before = residual_bytes(features, weights)
    with computing(REMAT):
        assert residual_bytes(features, weights) < 0.3 * before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--algorithm", "tagi_dqn", "--precision", "bf16"), "precision is 'bf16', but with"),
        (("--remat",), "remat is True, but with these settings there is nothing in 'ppo'"),
        (("--precision", "fp16"), "float32"),
    ],
)
def test_what_would_change_nothing_is_refused(tmp_path, capsys, words, said):
    from jaxrl.commands import command_line, train

    assert command_line.call(train.main, [*words, "--out", str(tmp_path), "--quiet"]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
