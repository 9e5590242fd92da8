import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import spaces
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete

INF = float("inf")
SPACES = {
    "discrete": Discrete(3),
    "multi": MultiDiscrete((2, 5)),
    "box": Box(-2.0, 3.0, (2, 2)),
    "nested bounds": Box((-1.0, 0.0), (1.0, 9.0), (2,)),
    "scalar": Box(0.0, 1.0, ()),
    "unbounded": Box(-INF, INF, (3,)),
    "bounded below": Box(0.0, INF, (50,)),
    "bounded above": Box(-INF, (0.0, 5.0), (2,)),
    "pixels": Box(0, 255, (4, 4, 1), jnp.uint8),
    "dict": {"a": Discrete(2), "b": (Box(0.0, 1.0, (2,)), MultiDiscrete((3,)))},
}


@pytest.mark.parametrize("space", SPACES.values(), ids=list(SPACES))
def test_samples_lie_in_the_space(space):
    keys = jax.random.split(jax.random.key(0), 40)
    samples = jax.vmap(lambda key: spaces.sample(space, key))(keys)
    assert jax.vmap(lambda x: spaces.contains(space, x))(samples).all()
    for leaf in jax.tree.leaves(samples):
        assert len(np.unique(leaf, axis=0)) > 1
    example = spaces.example(space)
    assert jax.tree.map(jnp.shape, example) == jax.tree.map(lambda x: x.shape[1:], samples)
    assert jax.tree.map(lambda x: x.dtype, example) == jax.tree.map(lambda x: x.dtype, samples)


def test_samples_cover_the_space():
    keys = jax.random.split(jax.random.key(1), 400)
    draw = lambda space: np.asarray(jax.vmap(lambda key: spaces.sample(space, key))(keys))
    assert set(draw(Discrete(4))) == {0, 1, 2, 3}
    assert {tuple(x) for x in draw(MultiDiscrete((2, 3)))} == {
        (a, b) for a in (0, 1) for b in range(3)
    }
    assert set(draw(Box(0, 3, (), jnp.int32))) == {0, 1, 2, 3}
    box = draw(Box(-2.0, 3.0, ()))
    assert box.min() < -1.9 and box.max() > 2.9 and abs(box.mean() - 0.5) < 0.25


@pytest.mark.parametrize(
    "space,value",
    [
        (Discrete(3), jnp.int32(3)),
        (Discrete(3), jnp.int32(-1)),
        (Discrete(3), jnp.float32(1)),
        (Discrete(3), jnp.zeros(1, jnp.int32)),
        (MultiDiscrete((2, 5)), jnp.array([2, 0])),
        (Box(-1.0, 1.0, (2,)), jnp.array([0.0, 1.5])),
        (Box(-1.0, 1.0, (2,)), jnp.array([0.0, jnp.nan])),
        (Box(-1.0, 1.0, (2,)), jnp.zeros(3)),
        ({"a": Discrete(2), "b": Discrete(2)}, {"a": jnp.int32(0), "b": jnp.int32(2)}),
    ],
)
def test_values_that_are_not_contained(space, value):
    assert not spaces.contains(space, value)


def test_bounds_broadcast():
    low, high = spaces.bounds(SPACES["nested bounds"])
    np.testing.assert_array_equal(low, [-1, 0])
    np.testing.assert_array_equal(high, [1, 9])
    assert spaces.bounds(SPACES["box"])[0].shape == (2, 2)


def test_parts_of_a_container_are_drawn_independently():
    pair = spaces.sample((Box(0.0, 1.0, (3,)), Box(0.0, 1.0, (3,))), jax.random.key(0))
    assert (pair[0] != pair[1]).all()


def test_other_objects_are_not_spaces():
    with pytest.raises(TypeError, match="not a space"):
        spaces.sample("left", jax.random.key(0))
    assert spaces.is_space(Discrete(2)) and not spaces.is_space({"a": Discrete(2)})


def test_all_legal_indices_are_equally_likely():
    legal = np.array([[True, False, True, False], [False, False, False, True]])
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: spaces.sample_legal(legal, key)))(keys))
    assert drawn.dtype == np.int32 and (drawn[:, 1] == 3).all()
    np.testing.assert_allclose(
        np.bincount(drawn[:, 0], minlength=4) / 2000, [0.5, 0, 0.5, 0], atol=0.05
    )


@pytest.mark.parametrize("low", [-5, -(2**31)])
def test_the_widest_boxes_of_integers_are_sampled(low):
    space = Box(low, 2**31 - 1, (100,), jnp.int32)
    drawn = np.asarray(spaces.sample(space, jax.random.key(0)))
    assert (drawn >= low).all() and drawn.max() > 2**30 and len(set(drawn.tolist())) > 90
