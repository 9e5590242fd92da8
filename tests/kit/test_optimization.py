import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.core.errors import UserError
from jaxrl.kit.groups import Optimizer, plain_optimizer, transformation
from jaxrl.kit.optimization import (
    LARGE,
    accumulated_gradient,
    apply_step,
    descend,
    norm,
)

PARAMS = {"w": jnp.array([1.0, -2.0, 3.0]), "b": jnp.float32(0.5)}
GRADIENT = {"w": jnp.array([3.0, 0.0, 4.0]), "b": jnp.float32(12.0)}  # norm 13

OPTAX = {
    "adam": lambda rate: optax.adam(rate, eps=1e-5),
    "rmsprop": lambda rate: optax.rmsprop(rate, decay=0.99, eps=1e-5),
    "sgd": optax.sgd,
}


@pytest.mark.parametrize("name", list(OPTAX))
@pytest.mark.parametrize("max_norm", [0.5, 13.5, np.inf])
def test_equal_to_the_optax_chain(name, max_norm):
    clip = optax.identity() if np.isinf(max_norm) else optax.clip_by_global_norm(max_norm)
    theirs = optax.chain(clip, OPTAX[name](0.01))
    ours = plain_optimizer(name)
    params, state = PARAMS, ours.init(PARAMS)
    expected, their_state = PARAMS, theirs.init(PARAMS)
    for scale in (1.0, 0.1, -1.0):
        gradient = jax.tree.map(lambda g, scale=scale: scale * g, GRADIENT)
        params, state, norm = descend(ours, gradient, state, params, 0.01, max_norm)
        updates, their_state = theirs.update(gradient, their_state, expected)
        expected = optax.apply_updates(expected, updates)
        np.testing.assert_allclose(norm, 13 * abs(scale), rtol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), params, expected)


@pytest.mark.parametrize("sizes", [(3,), (3, 1, 4), (LARGE,), (2, LARGE, 3 * LARGE)])
def test_the_norm_of_small_and_large_leaves(sizes):
    leaves = [np.random.default_rng(n).normal(size=n) for n in sizes]
    expected = np.linalg.norm(np.concatenate(leaves))
    np.testing.assert_allclose(norm([jnp.float32(x) for x in leaves]), expected, rtol=1e-5)


def test_a_zero_gradient_changes_nothing_and_is_no_nan():
    zero = jax.tree.map(jnp.zeros_like, PARAMS)
    for max_norm in (0.5, jnp.inf):
        params, _, norm = descend(optax.identity(), zero, optax.EmptyState(), PARAMS, 0.1, max_norm)
        jax.tree.map(np.testing.assert_array_equal, params, PARAMS)
        assert norm == 0


@pytest.mark.parametrize("max_norm", [0.5, jnp.inf])
def test_descending_can_be_differentiated(max_norm):
    """Gradients of a whole training run are finite, also where no limit is set."""

    def after(params, rate):
        gradient = jax.grad(lambda p: (p["w"] ** 2).sum() + p["b"] ** 2)(params)
        params, _, _ = descend(
            optax.identity(), gradient, optax.EmptyState(), params, rate, max_norm
        )
        return params["w"].sum()

    by_params, by_rate = jax.grad(after, argnums=(0, 1))(PARAMS, 0.1)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(by_params))
    numeric = (after(PARAMS, 0.1 + 1e-2) - after(PARAMS, 0.1 - 1e-2)) / 2e-2
    np.testing.assert_allclose(by_rate, numeric, rtol=1e-3)


def test_names():
    with pytest.raises(UserError, match=r"Unknown optimizer 'adm'; did you mean 'adam'\?"):
        plain_optimizer("adm")


def loss(params, data, number):
    error = data["x"] @ params["w"] + params["b"] - data["y"]
    return (error**2).mean(), {"error": jnp.abs(error).mean()}


@pytest.mark.parametrize("axis,shape", [(0, (12,)), (1, (2, 12)), (1, (1, 12))])
@pytest.mark.parametrize("rows", [0, 3, 4, 12, 100])
def test_chunks_add_up_to_the_whole(axis, shape, rows):
    data = {
        "x": jax.random.normal(jax.random.key(0), (*shape, 3)),
        "y": jax.random.normal(jax.random.key(1), shape),
    }
    whole, info = jax.grad(loss, has_aux=True)(PARAMS, data, None)
    gradient, chunked_info = accumulated_gradient(loss, PARAMS, data, axis, rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), gradient, whole)
    np.testing.assert_allclose(chunked_info["error"], info["error"], rtol=1e-6)


@pytest.mark.parametrize("used", [1, 4, 5, 12])
def test_chunks_beyond_what_is_used_are_not_computed(used):
    """NaN lies there, which would spread."""
    data = {"x": jnp.ones((12, 3)).at[:used].mul(2.0), "y": jnp.ones(12)}
    count = -(-used // 4) * 4
    poisoned = jax.tree.map(lambda x: x.at[count:].set(jnp.nan), data)
    gradient, _ = jax.jit(lambda used: accumulated_gradient(loss, PARAMS, poisoned, 0, 4, used))(
        used
    )
    head = jax.tree.map(lambda x: x[:count], data)
    alone, _ = accumulated_gradient(loss, PARAMS, head, 0, 0)  # a mean over fewer rows
    expected = jax.tree.map(lambda x: x * count / 12, alone)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), gradient, expected)


@pytest.mark.parametrize("used", [None, 12])
def test_each_chunk_has_a_number(used):
    number = lambda params, data, number: (params["w"].sum() * 0.0, number.astype(jnp.float32))
    data = {"x": jnp.ones((12, 3))}
    used = used if used is None else jnp.int32(used)
    _, mean = accumulated_gradient(number, {"w": jnp.ones(2)}, data, 0, 4, used)
    assert mean == (0 + 1 + 2) / 3


def test_chunks_that_do_not_divide():
    data = {"x": jnp.ones((12, 3)), "y": jnp.ones(12)}
    with pytest.raises(UserError, match="12 rows does not split into chunks of 5"):
        accumulated_gradient(loss, PARAMS, data, 0, 5)


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        (
            {"name": "adam", "eps": 1e-5, "weight_decay": 0.1},
            optax.adamw(0.01, eps=1e-5, weight_decay=0.1),
        ),
        ({"name": "sgd", "momentum": 0.9}, optax.sgd(0.01, momentum=0.9)),
        ({"name": "sgd"}, optax.sgd(0.01)),
        ({"name": "radam", "eps": 1e-5}, optax.radam(0.01, eps=1e-5)),
        ({"name": "rmsprop", "decay": 0.9, "eps": 1e-3}, optax.rmsprop(0.01, decay=0.9, eps=1e-3)),
        (
            {"name": "torch_rmsprop", "decay": 0.9, "eps": 1e-3},
            optax.rmsprop(0.01, decay=0.9, eps=1e-3, eps_in_sqrt=False),
        ),
        (
            {"name": "centered_rmsprop", "decay": 0.95, "eps": 0.01},
            optax.rmsprop(0.01, decay=0.95, eps=0.01, centered=True),
        ),
    ],
)
def test_the_settings_transformation_is_optaxs(settings, theirs):
    ours = transformation(Optimizer(**settings))
    params, state, expected, their_state = PARAMS, ours.init(PARAMS), PARAMS, theirs.init(PARAMS)
    for scale in (1.0, 0.1, -1.0):
        gradient = jax.tree.map(lambda g, scale=scale: scale * g, GRADIENT)
        params, state = apply_step(ours, gradient, state, params, jnp.float32(0.01))
        updates, their_state = theirs.update(gradient, their_state, expected)
        expected = optax.apply_updates(expected, updates)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), params, expected)


def test_pytorchs_rmsprop_adds_epsilon_to_the_root():
    """Against two steps by hand: v <- d v + (1 - d) g^2, p <- p - rate g / (sqrt(v) + eps)."""
    ours = transformation(Optimizer("torch_rmsprop", decay=0.9, eps=0.1))
    params, state, v, p = jnp.float32([1.0]), ours.init(jnp.float32([1.0])), 0.0, 1.0
    for gradient in (0.3, -0.5):
        params, state = apply_step(ours, jnp.float32([gradient]), state, params, jnp.float32(0.01))
        v = 0.9 * v + 0.1 * gradient**2
        p -= 0.01 * gradient / (v**0.5 + 0.1)
        np.testing.assert_allclose(params, [p], rtol=1e-6)
