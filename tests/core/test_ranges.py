"""Declared ranges: the values that pass, and the messages about the others."""

import dataclasses
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.core.hyper import COUNT, MANY, WIDE, Range, check, hyper, hypers, static

INF, NAN = math.inf, math.nan


@dataclasses.dataclass(frozen=True)
class Part:
    share: float = static(0.5, low=0, high=1)


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float = hyper(0.1, low=0)
    limit: float = hyper(INF, above=0, high=INF)
    discount: float = hyper(0.9, low=0, high=1)
    level: float = hyper(0.5, above=0, below=1)
    part_of: float = hyper(0.5, above=0, high=1)
    offset: float = hyper(-10.0)
    number: int = static(1, low=1)
    copies: int = static(1, low=1, high=MANY)
    dice: int = static(6, low=1, high=20)
    pool: int | None = static(None, low=1)
    widths: tuple[int, ...] = static((8,), low=1, high=WIDE, least_length=1)
    pair: tuple[float, ...] = static((0.0, 1.0), least_length=2)
    kind: str = static("adam", choices={"adam": 1, "rmsprop": 2, "sgd": 3})
    kinds: tuple[str, ...] = static((), choices=("a", "b"))
    part: Part = Part()
    free: object = None
    flag: bool = True


def assert_refused(sentence, **changes):
    with pytest.raises(UserError) as raised:
        check(Config(**changes))
    assert str(raised.value) == sentence


def test_a_setting_that_may_be_none_is_a_whole_number_where_its_lowest_one_is():
    assert_refused("pool is 2.5; it must be a whole number.", pool=2.5)
    check(Config(pool=3))


def test_a_range_stands_in_the_fields_metadata():
    fields = {f.name: f.metadata for f in dataclasses.fields(Config)}
    assert fields["discount"] == {"hyper": True, "range": Range(low=0, high=1)}
    assert fields["copies"] == {"range": Range(low=1, high=MANY)}
    assert fields["number"] == {"range": Range(low=1, high=COUNT)}
    assert fields["kind"]["range"].choices == ("adam", "rmsprop", "sgd")


@pytest.mark.parametrize(
    ("name", "value", "must"),
    [
        ("rate", -1.0, "be at least 0"),
        ("rate", INF, "be finite"),
        ("rate", -INF, "be at least 0"),
        ("rate", NAN, "be a number"),
        ("rate", 1e300, "be a number that a 32-bit float holds"),
        ("rate", "fast", "be a number"),
        ("rate", True, "be a number"),
        ("rate", None, "be a number"),
        ("limit", 0.0, "be above 0"),
        ("limit", -INF, "be above 0"),
        ("limit", 1e300, "be a number that a 32-bit float holds"),
        ("limit", 1e-60, "be a number that a 32-bit float holds"),  # 0 as a 32-bit float
        ("discount", 1.5, "be between 0 and 1"),
        ("discount", INF, "be between 0 and 1"),
        ("level", 1.0, "be above 0 and below 1"),
        ("level", 1 - 1e-12, "be a number that a 32-bit float holds"),  # 1 as a 32-bit float
        ("part_of", 0, "be above 0 and at most 1"),
        ("offset", -INF, "be finite"),
        ("number", 0, "be at least 1"),
        ("number", 2**31, "be at most 2147483647"),
        ("number", 2.0, "be a whole number"),
        ("number", None, "be a whole number"),
        ("copies", 0, "be at least 1"),
        ("copies", 10**12, "be at most 16777216"),
        ("dice", 0, "be between 1 and 20"),
        ("pool", 0, "be at least 1"),
        ("kind", "lion", "be one of adam, rmsprop, sgd"),
        ("kind", "adan", "be one of adam, rmsprop, sgd (did you mean 'adam'?)"),
        ("kind", 3, "be one of adam, rmsprop, sgd"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_sentence(name, value, must):
    assert_refused(f"{name} is {value!r}; it must {must}.", **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("widths", (), "widths is []; it must have at least one entry."),
        ("widths", 8, "widths is 8; it must be a list."),
        ("rate", (0.1,), "rate is [0.1]; it must be a number."),
        ("widths", (8, 0), "widths is [8, 0]; each entry must be at least 1."),
        ("widths", (10**6,), "widths is [1000000]; each entry must be at most 65536."),
        ("pair", (1.0,), "pair is [1.0]; it must have at least 2 entries."),
        ("pair", (1.0, INF), "pair is [1.0, inf]; each entry must be finite."),
        ("kinds", ("a", "c"), "kinds is ['a', 'c']; each entry must be one of a, b."),
        ("part", Part(2.0), "part.share is 2.0; it must be between 0 and 1."),
        ("rate", np.float32(-1), "rate is -1.0; it must be at least 0."),
        ("number", np.int64(0), "number is 0; it must be at least 1."),
    ],
)
def test_lists_parts_and_numbers_of_numpy(name, value, sentence):
    assert_refused(sentence, **{name: value})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rate": 0, "limit": INF, "discount": 1, "part_of": 1.0, "offset": -3e38},
        {"rate": np.float64(0.1), "number": np.int32(3), "copies": MANY},
        {"number": COUNT},
        {"discount": 0.1, "level": 0.1},  # 0.1 is a different number in 32 bits
        {"pool": 3, "widths": [4, 4], "kinds": ("b", "a", "b")},
        {"free": NAN, "flag": "anything"},  # not declared
    ],
)
def test_a_value_in_range_passes(changes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(Config(**changes))


def test_no_warning_of_an_overflow_is_printed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_refused(
            "limit is 1e+300; it must be a number that a 32-bit float holds.", limit=1e300
        )
        with pytest.raises(UserError, match=r"; it must be a number that a 32-bit float holds\."):
            check(Config(rate=10**400))


def test_the_prefix_stands_before_every_name():
    with pytest.raises(UserError, match=r"^agent\.rate is -1; it must be at least 0\.$"):
        check(Config(rate=-1), "agent.")
    with pytest.raises(UserError, match=r"^agent\.part\.share is nan; it must be a number\.$"):
        check(Config(part=Part(NAN)), "agent.")


def test_arrays_and_tracers_pass():
    def check_traced(rate):
        check(Config(rate=rate))
        return rate

    assert jax.jit(check_traced)(-1.0) == -1
    check(Config(rate=jnp.float32(-1), discount=np.ones(3)))


def test_hypers_checks_all_settings():
    with pytest.raises(UserError, match=r"^widths is \[\]; it must have at least one entry\.$"):
        hypers(Config(widths=()))
