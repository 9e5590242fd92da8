"""Distributions of environments of one shape, for meta-training and testing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Key, Tree
from jaxrl.envs.tables import mdp, random_mdp


def around(env: Environment, spread: float) -> Callable[[Key], Tree]:
    """Return `draw(key) -> params`, which draws environments like `env`, of the same shapes.

    A table of outcomes becomes a random MDP with as many states, actions and outcomes (Garnet, see
    `envs.tables.random_mdp`) and the noise of `env`'s rewards. In other environments, every float
    is multiplied by its own factor, log-uniform in [1 / spread, spread].

    Raises `UserError` for a spread below 1, and if there is nothing to vary.
    """
    if not spread >= 1:
        raise UserError(f"spread is {spread}; it must be at least 1.")
    leaves, structure = jax.tree_util.tree_flatten(env.params, is_leaf=_is_table)
    varied = [_is_table(x) or jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in leaves]
    if not any(varied):
        raise UserError(f"'{env.name}' has no parameters that could vary between environments.")

    def draw(key):
        keys = jax.random.split(key, len(leaves))
        parts = zip(keys, leaves, varied, strict=True)
        return structure.unflatten([_vary(k, x, spread) if v else x for k, x, v in parts])

    return draw


def _is_table(x) -> bool:
    return isinstance(x, mdp.Table)


def _vary(key, x, spread):
    if not _is_table(x):
        logarithm = jax.random.uniform(key, jnp.shape(x), minval=-1.0, maxval=1.0)
        return x * jnp.exp(logarithm * jnp.log(spread))
    table = random_mdp.draw(key, *x.successor.shape)
    # The expert is not needed, and keeping the old one avoids solving for it.
    table = dataclasses.replace(table, optimal=x.optimal, **{
        name: getattr(x, name) for name in ("noise", "success", "features", "start",
                                            "start_probability", "terminal")
    })  # fmt: skip
    return jax.tree.map(lambda new, old: jnp.asarray(new, jnp.result_type(old)), table, x)
