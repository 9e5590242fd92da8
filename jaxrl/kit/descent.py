"""Parameters, what trains them, and the copy that follows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl.core import schedules
from jaxrl.core.settings import Values
from jaxrl.core.types import Array, Tree, struct
from jaxrl.kit.groups import Optimizer, transformation
from jaxrl.kit.optimisation import as_one, bounded, stepped


@struct
class Trained:
    """What a part of an agent holds. `optimizer` is the state of an optax transformation, of one
    vector where the optimizer's settings say `flat`."""

    params: Tree
    optimizer: Tree
    target: Tree = None  # the copy; None where there is none


@dataclasses.dataclass(frozen=True, eq=False)
class Descent:
    """How parameters descend: `settings` are those at `path` in the Config, whose
    hyper-parameters are read from the state."""

    settings: Optimizer
    path: str
    transform: optax.GradientTransformation

    @classmethod
    def of(
        cls, settings: Optimizer, path: str, own: optax.GradientTransformation | None = None
    ) -> Descent:
        """own: an optax transformation in the place of the one that the settings name. It is given
        gradients, and its updates are multiplied by the step size."""
        if own is not None:  # which may look at the tree
            settings = dataclasses.replace(settings, flat=False)
        return cls(settings, path, transformation(settings) if own is None else own)

    def begin(self, params: Tree, copy: bool = False) -> Trained:
        """Parameters that were not trained yet, with a copy of them if asked for."""
        state = self.transform.init(as_one(params) if self.settings.flat else params)
        return Trained(params, state, jax.tree.map(jnp.copy, params) if copy else None)

    def learning_rate(self, hyper: Values, frames: Array) -> Array:
        """The step size after `frames` environment steps."""
        h = hyper[self.path]
        schedule = schedules.SCHEDULES[self.settings.schedule]
        fraction = schedules.progress(frames, h.learning_rate_steps)
        return schedule(h.learning_rate, h.learning_rate_end, fraction)

    def step(self, part: Trained, gradient: Tree, rate: Array) -> Trained:
        """One step of size `rate`."""
        params, back = ravel_pytree(part.params) if self.settings.flat else (part.params, None)
        gradient = as_one(gradient) if self.settings.flat else gradient
        params, state = stepped(self.transform, gradient, part.optimizer, params, rate)
        return dataclasses.replace(part, params=back(params) if back else params, optimizer=state)


def descend(
    descents: Mapping[str, Descent],
    parts: Mapping[str, Trained],
    gradients: Mapping[str, Tree],
    hyper: Values,
    frames: Array,
) -> tuple[dict[str, Trained], dict[str, Array]]:
    """One step of each of the parts that have gradients, and their gradients' norms.

    Parts with the same optimizer settings are one to it: the gradient that is scaled down to
    `max_grad_norm` is that of all of them.
    """
    new, norms = dict(parts), {}
    for path in dict.fromkeys(descents[name].path for name in gradients):
        names = [name for name in gradients if descents[name].path == path]
        together, norm = bounded({n: gradients[n] for n in names}, hyper[path].max_grad_norm)
        for name in names:
            part, descent = parts[name], descents[name]
            rate = descent.learning_rate(hyper, frames)
            new[name] = descent.step(part, together[name], rate)
            norms[name] = norm if len(names) == 1 else optax.tree.norm(gradients[name])
    return new, norms


def follow(trained: Trained, rate: Array | float) -> Trained:
    """The copy moves towards the parameters by a share `rate` (tau) of the way; 1 for all of it."""
    moved: Any = optax.incremental_update(trained.params, trained.target, rate)
    return dataclasses.replace(trained, target=moved)
