import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import hyper as h
from jaxrl.core.errors import UserError
from jaxrl.core.types import struct


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float = h.hyper(0.5)
    width: int = 3
    limit: float = h.hyper(float("inf"), high=float("inf"))


@struct
class Inner:
    weight: jax.Array
    hyper: dict


@struct
class Outer:
    inner: Inner
    hyper: dict


def state():
    return Outer(Inner(jnp.ones(2), {"rate": jnp.float32(1)}), {"rate": jnp.float32(1)})


def test_hypers_are_the_declared_fields_as_float32_scalars():
    values = h.hypers(Config(rate=1))
    assert set(values) == {"rate", "limit"}
    for value in values.values():
        assert value.dtype == np.float32 and value.shape == ()
    assert values["rate"] == 1 and values["limit"] == np.inf


def test_nan_is_refused():
    with pytest.raises(UserError, match=r"^rate is nan; it must be a number\.$"):
        h.hypers(Config(rate=float("nan")))


def test_two_parts_may_not_share_a_name():
    assert set(h.merge({"a": 1}, {"b": 2}, {})) == {"a", "b"}
    with pytest.raises(UserError, match="'a'"):
        h.merge({"a": 1}, {"a": 2})


def test_override_knows_its_names():
    defaults = h.hypers(Config())
    assert h.override(defaults, None) == defaults
    assert h.override(defaults, {"rate": 2.0})["rate"] == 2.0
    with pytest.raises(UserError, match=r"Unknown hyperparameter 'rat'; did you mean 'rate'\?"):
        h.override(defaults, {"rat": 2.0})


@pytest.mark.parametrize("value", [1, 1.0, np.float64(1), np.int32(1), jnp.ones((), jnp.int32)])
def test_an_overriding_value_becomes_a_float32_array_like_the_default(value):
    """Otherwise an integer would stay one, and every new Python type would compile anew."""
    chosen = h.select(Config(), h.override(h.hypers(Config()), {"rate": value}))["rate"]
    assert chosen.dtype == jnp.float32
    assert not chosen.weak_type


def test_select_takes_what_the_config_declares():
    assert set(h.select(Config(), {"rate": 1.0, "limit": 2.0, "other": 3.0})) == {"rate", "limit"}


def test_replace_and_read_reach_every_copy():
    changed = h.replace_hyper(state(), {"rate": 3})
    assert changed.hyper["rate"] == 3 and changed.inner.hyper["rate"] == 3
    assert changed.hyper["rate"].dtype == jnp.float32
    np.testing.assert_array_equal(changed.inner.weight, state().inner.weight)
    assert h.read_hyper(changed) == {"rate": 3}
    with pytest.raises(UserError, match="rate"):
        h.replace_hyper(state(), {"rats": 3})


def test_replace_keeps_the_members_of_a_population():
    population = jax.vmap(lambda i: dataclasses.replace(state(), hyper={"rate": i}))(
        jnp.arange(3.0)
    )
    np.testing.assert_array_equal(h.replace_hyper(population, {"rate": 5}).hyper["rate"], [5, 5, 5])
    each = h.replace_hyper(population, {"rate": jnp.array([4, 5, 6])})
    np.testing.assert_array_equal(each.hyper["rate"], [4, 5, 6])
    np.testing.assert_array_equal(each.inner.hyper["rate"], [4, 5, 6])


def test_replace_gives_a_member_its_value_in_all_its_copies():
    """This holds even if a member has as many copies as there are members."""
    copies = jax.vmap(jax.vmap(lambda _: state()))(jnp.zeros((2, 2)))
    each = h.replace_hyper(copies, {"rate": jnp.array([4, 5])})
    np.testing.assert_array_equal(each.hyper["rate"], [[4, 4], [5, 5]])


def test_replace_under_jit_and_grad():
    gradient = jax.jit(jax.grad(lambda r: h.replace_hyper(state(), {"rate": r}).hyper["rate"] ** 2))
    assert gradient(3.0) == 6


def test_hyperparameters_are_renamed_wherever_they_are_stored():
    renamed = h.rename_hyper([state(), {"rate": 3}], lambda name: f"ppo.{name}")
    assert h.read_hyper(renamed) == {"ppo.rate": 1} and renamed[1] == {"rate": 3}
    assert renamed[0].inner.hyper == renamed[0].hyper == {"ppo.rate": 1}
    np.testing.assert_array_equal(renamed[0].inner.weight, state().inner.weight)
