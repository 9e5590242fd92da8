"""An agent on the kit beside the one that it replaces: same parameters, batches and keys must give
the same parameters, targets, optimizer states and metrics."""

import dataclasses
import types
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Policy
from jaxrl.kit.descent import Trained


def drawn(source, agent, updates, key):
    """`updates` batches, each after another window of experience of an untrained agent."""

    @jax.jit
    def make(key):
        keys = jax.random.split(key, 3)
        policy = Policy(agent.act, agent.memory, agent.init(keys[0], agent.hyper))
        state = source.init(keys[1], source.hyper, policy)

        def body(state, key):
            collect_key, sample_key = jax.random.split(key)
            state, fresh, _ = source.collect(state, policy, collect_key)
            return state, source.sample(state, fresh, sample_key)

        return jax.lax.scan(body, state, jax.random.split(keys[2], updates))[1]

    batches = make(key)
    return [jax.tree.map(lambda x: x[i], batches) for i in range(updates)]  # noqa: B023


def difference(a, b):
    """The largest relative difference of two trees; 0 where they have the same bits."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        assert x.shape == y.shape
        apart = np.where(x == y, 0.0, np.abs(x - y) / (np.abs(y) + 1e-3))
        if np.isnan(apart).any():  # no number is as good as another
            return np.inf
        worst = max(worst, float(np.max(apart, initial=0.0)))
    return worst


def put(state, trained):
    """A state of the kit's with parts [params, optimizer state, target] by name."""
    parts = {name: Trained(*values) for name, values in trained.items()}
    return dataclasses.replace(state, parts=parts)


def taken(state):
    return {n: (p.params, p.optimizer, p.target) for n, p in state.parts.items()}


def precise(tree):
    """`tree` with its floats in 64 bits, so that what is left of a difference is no rounding."""
    double = lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x
    return jax.tree.map(double, tree)


def follow(
    old,
    new,
    trained,
    batches,
    names,
    keys,
    to_old=lambda batch: batch,
    rename: Mapping[str, str] = types.MappingProxyType({}),
    cast=lambda tree: tree,
    fixed=(),
):
    """Compare an update at a time; returns the largest difference of anything.

    trained(old state) -> what `put` takes; names: new metric -> old; rename: new hyper -> old;
    fixed: hypers that the old one has not, and that are not swept.
    """
    worst = 0.0
    old_state = old.init(keys[0], old.hyper)
    new_state = put(new.init(keys[0], new.hyper), trained(old_state))
    variants = [(old, new, old_state, new_state)]
    # The same again, vmapped over seeds and hyper-parameters.
    several = jax.random.split(keys[0], 3)
    factor = jnp.array([0.5, 1.0, 0.9])
    swept = {
        n: jnp.asarray(v) * (factor**0 if n in fixed else factor) for n, v in new.hyper.items()
    }
    old_hyper = {rename.get(n, n): v for n, v in swept.items()}
    olds = jax.vmap(lambda key, hyper: old.init(key, {**old.hyper, **hyper}))(several, old_hyper)
    news = put(jax.vmap(new.init)(several, swept), trained(olds))
    mapped = [
        dataclasses.replace(a, update=jax.vmap(a.update, in_axes=(0, None, None)))
        for a in (old, new)
    ]
    variants.append((*mapped, olds, news))
    for old_agent, new_agent, a, b in variants:
        a, b = cast(a), cast(b)
        old_update, new_update = jax.jit(old_agent.update), jax.jit(new_agent.update)
        for batch, key in zip(batches, keys, strict=False):
            a, was = old_update(a, cast(to_old(batch)), key)
            b, now = new_update(b, cast(batch), key)
            worst = max(worst, difference(taken(b), taken(put(b, trained(a)))))
            for name, before in names.items():
                worst = max(worst, difference(now.metrics[name], was.metrics[before]))
            if was.feedback is not None:
                worst = max(worst, difference(now.feedback, was.feedback))
    return worst
