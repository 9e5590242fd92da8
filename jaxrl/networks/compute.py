"""Ways in which networks compute: hidden layers in bfloat16, activations computed twice.

`with_compute` makes an algorithm whose networks do so; parameters, statistics, losses and
optimizers stay in float32 (Micikevicius et al., 2018, "Mixed precision training",
arXiv:1710.03740, section 3.1; bfloat16 has the range of float32, so that losses need no scale).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from jaxrl.core.types import Algorithm, Array, Policy

PRECISIONS = ("float32", "bf16")


@dataclasses.dataclass(frozen=True)
class Compute:
    """A way in which networks compute.

    precision: `bf16` for products of hidden layers and of attention in bfloat16, whose sums XLA
        takes in float32; last layers stay in float32.
    remat: whether transformers and the unrolled steps of world models keep no activations for
        gradients, but compute them again (Chen et al., 2016, "Training deep nets with sublinear
        memory cost", arXiv:1604.06174).
    """

    precision: str = "float32"
    remat: bool = False


PLAIN = Compute()
_compute = contextvars.ContextVar("compute", default=PLAIN)
_used: contextvars.ContextVar[Counter[str]] = contextvars.ContextVar("used")


@contextlib.contextmanager
def computing(compute: Compute, used: Counter[str] | None = None) -> Iterator[None]:
    """Make networks that are traced here compute as `compute` says.

    used: counts the products in bfloat16 (`precision`) and what is computed again (`remat`).
    """
    tokens = _compute.set(compute), _used.set(Counter() if used is None else used)
    try:
        # JAX keeps what it has traced of a function by its context, of which a label is a part: so
        # what is traced in one way is not used in another. XLA does nothing with the label.
        with set_xla_metadata(compute=f"{compute.precision}{' remat' * compute.remat}"):
            yield
    finally:
        _compute.reset(tokens[0])
        _used.reset(tokens[1])


def product(multiply: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    """Return `multiply(x, y)`, in bfloat16 if the networks compute so; the result is float32."""
    if _compute.get().precision == "float32":
        return multiply(x, y)
    _used.get()["precision"] += 1
    return multiply(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)).astype(jnp.float32)


def again(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the body of a scan that keeps no activations, if networks compute so."""
    return _again(functools.partial(jax.checkpoint, prevent_cse=False), function)


def module_again(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do what `again` does for any function whose first argument is a flax module."""
    return _again(nn.remat, function)


def is_remat() -> bool:
    """Return whether activations are to be computed again, in what is traced now."""
    if _compute.get().remat:
        _used.get()["remat"] += 1
    return _compute.get().remat


def _again(transform: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    return transform(function) if is_remat() else function


# What has been changed in the traces of an algorithm that `with_compute` made.
_counts: weakref.WeakKeyDictionary[Algorithm, Counter[str]] = weakref.WeakKeyDictionary()


def find_unused(algorithm: Algorithm, compute: Compute) -> list[str]:
    """Return those fields of `compute` that have changed nothing in the `algorithm` that
    `with_compute` made, in all that was traced of it so far."""
    asked = [f.name for f in dataclasses.fields(Compute) if getattr(compute, f.name) != f.default]
    return [name for name in asked if not _counts[algorithm][name]]


@functools.cache
def with_compute(algorithm: Algorithm, compute: Compute) -> Algorithm:
    """Return an algorithm whose networks compute as `compute` says."""
    used: Counter[str] = Counter()

    @functools.cache  # a policy's functions are compared by identity
    def inside(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with computing(compute, used):
                return function(*args, **options)

        return call

    def policy(state: Any) -> Policy:
        found = algorithm.policy(state)
        return dataclasses.replace(found, act=inside(found.act))

    made = dataclasses.replace(
        algorithm,
        init=inside(algorithm.init),
        step=inside(algorithm.step),
        policy=policy,
        measure=inside(algorithm.measure),
    )
    _counts[made] = used
    return made
