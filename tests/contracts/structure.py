"""Contract of every algorithm with the loop, as far as tracing alone can tell."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.hyper import read_hyper
from jaxrl.core.train import advance, start
from jaxrl.core.types import Algorithm


def check_structure(algorithm: Algorithm) -> None:
    """A step gives back what it takes, metrics are metrics, and every hyperparameter is a float32
    scalar of which each member of a sweep may have its own value. Compiles nothing."""
    assert algorithm.name and algorithm.config is not None
    assert algorithm.env_steps > 0 and algorithm.initial_env_steps >= 0
    key = jax.eval_shape(lambda: random.key(0))
    run = jax.eval_shape(lambda key: start(algorithm, key), key)
    again, metrics = jax.eval_shape(lambda run: advance(algorithm, run), run)
    assert jax.tree.structure(run) == jax.tree.structure(again)
    for before, after in zip(jax.tree.leaves(run), jax.tree.leaves(again), strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
        assert before.weak_type == after.weak_type  # else the second chunk compiles anew
    assert metrics and all(m.is_metric(x) for x in metrics.values())
    for name, value in algorithm.hyper.items():
        assert np.asarray(value).dtype == np.float32 and np.shape(value) == (), name

        def begin(value, name=name):
            return start(algorithm, random.key(0), {name: value})

        batched = jax.eval_shape(jax.vmap(begin), jnp.ones(2))
        assert read_hyper(batched)[name].shape == (2,), name
