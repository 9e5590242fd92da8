"""Parameters, what trains them, and the copy that follows them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl.core import schedules
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Values
from jaxrl.core.types import Array, Tree, struct
from jaxrl.kit.groups import Optimizer, transformation
from jaxrl.kit.optimization import as_one, bounded, stepped


@struct
class Trained:
    """What a part of an agent holds. `optimizer` is the state of an optax transformation, of one
    vector where the optimizer's settings say `flat`."""

    params: Tree
    optimizer: Tree
    target: Tree = None  # the copy; None where there is none


def each(function: Callable[..., Any], members: int) -> Callable[..., Any]:
    """`function`, of each of so many members, along the first axis of all that it is given; once
    where there are 0."""
    return jax.vmap(function) if members else function


@dataclasses.dataclass(frozen=True, eq=False)
class Descent:
    """How parameters descend: `settings` are those at `path` in the Config, whose
    hyperparameters are read from the state. Each of the `members` of an ensemble descends for
    itself; 0 where there is no such axis."""

    settings: Optimizer
    path: str
    transform: optax.GradientTransformation
    members: int = 0

    @classmethod
    def of(
        cls,
        settings: Optimizer,
        path: str,
        own: optax.GradientTransformation | None = None,
        members: int = 0,
    ) -> Descent:
        """own: an optax transformation in the place of the one that the settings name. It is given
        gradients, and its updates are multiplied by the step size. Raises `UserError` for an
        exponential schedule that ends at 0."""
        if settings.schedule == "exponential" and settings.learning_rate_end <= 0:
            raise UserError(
                f"{path}.learning_rate_end is {settings.learning_rate_end}; an exponential "
                "schedule needs a positive one."
            )
        if own is not None:  # which may look at the tree
            settings = dataclasses.replace(settings, flat=False)
        return cls(settings, path, transformation(settings) if own is None else own, members)

    def begin(self, params: Tree, copy: bool = False) -> Trained:
        """Parameters that were not trained yet, with a copy of them if asked for."""
        begun = lambda params: self.transform.init(as_one(params) if self.settings.flat else params)
        state = each(begun, self.members)(params)
        return Trained(params, state, jax.tree.map(jnp.copy, params) if copy else None)

    def learning_rate(self, hyper: Values, env_steps: Array) -> Array:
        """The step size after `env_steps` environment steps."""
        h = hyper[self.path]
        schedule = schedules.SCHEDULES[self.settings.schedule]
        fraction = schedules.progress(env_steps, h.learning_rate_steps)
        return schedule(h.learning_rate, h.learning_rate_end, fraction)

    def step(self, part: Trained, gradient: Tree, rate: Array) -> Trained:
        """One step of size `rate`."""

        def one(params, gradient, state):
            params, back = ravel_pytree(params) if self.settings.flat else (params, None)
            gradient = as_one(gradient) if self.settings.flat else gradient
            params, state = stepped(self.transform, gradient, state, params, rate)
            return back(params) if back else params, state

        params, state = each(one, self.members)(part.params, gradient, part.optimizer)
        return dataclasses.replace(part, params=params, optimizer=state)


def descend(
    descents: Mapping[str, Descent],
    parts: Mapping[str, Trained],
    gradients: Mapping[str, Tree],
    hyper: Values,
    env_steps: Array,
) -> tuple[dict[str, Trained], dict[str, Array]]:
    """One step of each of the parts that have gradients, and their gradients' norms.

    Parts with the same optimizer settings are one to it: the gradient that is scaled down to
    `max_grad_norm` is that of all of them, or of one member of each.
    """
    new, norms = dict(parts), {}
    alike = lambda name: (descents[name].path, descents[name].members)
    for path, members in dict.fromkeys(alike(name) for name in gradients):
        names = [name for name in gradients if alike(name) == (path, members)]
        bound = functools.partial(bounded, max_norm=hyper[path].max_grad_norm)
        together, norm = each(bound, members)({n: gradients[n] for n in names})
        alone = len(names) == 1 and not members
        for name in names:
            part, descent = parts[name], descents[name]
            rate = descent.learning_rate(hyper, env_steps)
            new[name] = descent.step(part, together[name], rate)
            norms[name] = norm if alone else optax.tree.norm(gradients[name])
    return new, norms


def follow(trained: Trained, rate: Array | float) -> Trained:
    """The copy moves toward the parameters by a share `rate` (tau) of the way; 1 for all of it."""
    moved: Any = optax.incremental_update(trained.params, trained.target, rate)
    return dataclasses.replace(trained, target=moved)
