"""Optimizers of parts, gradient steps, and target networks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl.core import metrics as m
from jaxrl.core import schedules
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, Values, path_of, settings_of
from jaxrl.core.types import Array, Tree
from jaxrl.kit.groups import Optimizer, transformation
from jaxrl.kit.optimization import apply_step, as_one, clip_gradient
from jaxrl.kit.parts import Part, trainable, vmap_members, with_shared
from jaxrl.kit.state import Trained


class Descent(Protocol):
    """The optimizer of a part."""

    @property
    def clipped_with(self) -> Any:
        """Parts for which this is equal have their gradients clipped together."""
        ...

    @property
    def is_flat(self) -> bool:
        """True if parameters are descended as one vector."""
        ...

    def init(self, params: Tree) -> Tree:
        """Return the optimizer's first state."""
        ...

    def learning_rate(self, hyper: Values, env_steps: Array) -> Array | m.Mean:
        """Return the step size after `env_steps`; a mean of nothing where it is not known."""
        ...

    def max_norm(self, hyper: Values) -> Array | None:
        """Return the largest norm of a gradient; None to leave gradients as they are."""
        ...

    def step(self, part: Trained, gradient: Tree, hyper: Values, env_steps: Array) -> Trained:
        """Take one step."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class OwnDescent:
    """An optimizer of the kit: its settings, whose hyperparameters are read from the state.

    settings: those at `path` in the Config.
    members: size of the ensemble whose members descend for themselves; 0 for none.
    """

    settings: Optimizer
    path: str
    members: int = 0

    def __post_init__(self):
        if self.settings.schedule == "exponential" and self.settings.learning_rate_end <= 0:
            raise UserError(
                f"{self.path}.learning_rate_end is {self.settings.learning_rate_end}; an "
                "exponential schedule needs a positive one."
            )

    @functools.cached_property
    def transform(self) -> optax.GradientTransformation:
        return transformation(self.settings)

    @property
    def clipped_with(self) -> Any:
        return self.path, self.members

    @property
    def is_flat(self) -> bool:
        return self.settings.flat

    def init(self, params: Tree) -> Tree:
        begin = lambda params: self.transform.init(as_one(params) if self.is_flat else params)
        return vmap_members(begin, self.members)(params)

    def learning_rate(self, hyper: Values, env_steps: Array) -> Array:
        h = hyper[self.path]
        schedule = schedules.SCHEDULES[self.settings.schedule]
        fraction = schedules.progress(env_steps, h.learning_rate_steps)
        return schedule(h.learning_rate, h.learning_rate_end, fraction)

    def max_norm(self, hyper: Values) -> Array:
        return hyper[self.path].max_grad_norm

    def step(self, part: Trained, gradient: Tree, hyper: Values, env_steps: Array) -> Trained:
        rate = self.learning_rate(hyper, env_steps)

        def step_one(params, gradient, state):
            params, back = ravel_pytree(params) if self.is_flat else (params, None)
            gradient = as_one(gradient) if self.is_flat else gradient
            params, state = apply_step(self.transform, gradient, state, params, rate)
            return back(params) if back else params, state

        step = vmap_members(step_one, self.members)
        params, state = step(part.params, gradient, part.optimizer)
        return dataclasses.replace(part, params=params, optimizer=state)


@dataclasses.dataclass(frozen=True, eq=False)
class OptaxDescent:
    """An optax optimizer as it is: its updates are added, and its step size is its own.

    Raises `UserError` for one that climbs, such as `optax.scale_by_adam()` alone.
    """

    optimizer: optax.GradientTransformation
    part: str
    members: int = 0

    is_flat = False

    def __post_init__(self):
        if _climbs(self.optimizer):
            raise UserError(
                f"The optimizer of '{self.part}' climbs: its updates, which are added to the "
                "parameters, have the gradient's sign. End it with optax.scale(-learning_rate), or "
                "take a whole optimizer such as optax.adam(learning_rate)."
            )

    @property
    def clipped_with(self) -> Any:
        return self.part

    def init(self, params: Tree) -> Tree:
        return vmap_members(self.optimizer.init, self.members)(params)

    def learning_rate(self, hyper: Values, env_steps: Array) -> m.Mean:
        return m.Mean(jnp.float32(0), jnp.float32(0))

    def max_norm(self, hyper: Values) -> None:
        return None

    def step(self, part: Trained, gradient: Tree, hyper: Values, env_steps: Array) -> Trained:
        def step_one(params, gradient, state):
            updates, state = self.optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        step = vmap_members(step_one, self.members)
        params, state = step(part.params, gradient, part.optimizer)
        return dataclasses.replace(part, params=params, optimizer=state)


def _climbs(optimizer: optax.GradientTransformation) -> bool:
    """Return true if the first update of a vector of ones has the sign of its gradient of ones."""
    with jax.ensure_compile_time_eval():
        ones = jnp.ones(3)
        try:
            updates, _ = optimizer.update(ones, optimizer.init(ones), ones)
        except Exception:  # an optimizer of certain trees only, which cannot be tried without one
            return False
        return bool(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(updates)) > 0)


def descent_of(name: str, part: Part) -> Descent | None:
    """Return the optimizer of the part `name`; None where no loss descends it."""
    if part.optimizer is None:
        return None
    if isinstance(part.optimizer, Static):  # a group of the settings, as a recipe gets it
        return OwnDescent(settings_of(part.optimizer), path_of(part.optimizer), part.members)
    if not isinstance(part.optimizer, optax.GradientTransformation):
        raise UserError(
            f"The optimizer of '{name}' is {part.optimizer!r}; it must be an optax optimizer or a "
            "group of the settings."
        )
    return OptaxDescent(part.optimizer, name, part.members)


def descend(
    descents: Mapping[str, Descent],
    parts: Mapping[str, Trained],
    gradients: Mapping[str, Tree],
    hyper: Values,
    env_steps: Array,
) -> tuple[dict[str, Trained], dict[str, Array]]:
    """Take one step of each part that has a gradient; also return the norms of the gradients.

    Parts with the same optimizer settings are one to it: the gradient that is scaled down to
    `max_grad_norm` is that of all of them together, or of one member of each.
    """
    new, norms = dict(parts), {}
    together = dict.fromkeys(descents[name].clipped_with for name in gradients)
    for key in together:
        names = [name for name in gradients if descents[name].clipped_with == key]
        first = descents[names[0]]
        members, max_norm = getattr(first, "members", 0), first.max_norm(hyper)
        clipped = {name: gradients[name] for name in names}
        alone = len(names) == 1 and not members
        norm = None
        if max_norm is not None:
            clip = functools.partial(clip_gradient, max_norm=max_norm)
            clipped, norm = vmap_members(clip, members)(clipped)
        for name in names:
            part = parts[name]
            own = dataclasses.replace(part, params=trainable(part.params))
            stepped = descents[name].step(own, clipped[name], hyper, env_steps)
            params = with_shared(stepped.params, part.params)
            new[name] = dataclasses.replace(stepped, params=params)
            norms[name] = norm if alone and norm is not None else optax.tree.norm(gradients[name])
    return new, norms


def move_target(trained: Trained, rate: Array | float) -> Trained:
    """Move the target network toward the parameters by a share `rate` (tau); 1 copies them."""
    moved: Any = optax.incremental_update(trainable(trained.params), trained.target, rate)
    return dataclasses.replace(trained, target=moved)
