"""Planners over continuous actions: sequences of actions whose return a model predicts, found by
random shooting, the cross-entropy method, MPPI or gradients through the model.

    plan = make_plan(key, model, start, 15, env.action_space, Planner(how="cem"))
    action = plan.actions[0]
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array, Key, Tree, struct
from jaxrl.kit import group, static

PLANNERS = ("shooting", "cem", "mppi", "gradient")


@group
class Planner:
    """Search for a sequence of actions. A plan costs candidates x iterations x horizon calls of the
    model, whatever the planner."""

    how: str = static("gradient", choices=PLANNERS)
    """Planner: random shooting, the cross-entropy method (cem), model predictive path integral
    control (mppi), or gradient ascent through the model (gradient)."""
    candidates: int = static(32, low=1, high=MANY)
    """Number of sequences of actions side by side."""
    iterations: int = static(5, low=1, high=MANY)
    """Number of times that all candidates are improved or drawn anew."""
    elites: int = static(4, low=1, high=MANY)
    """Number of best candidates that cem fits its next distribution to."""
    temperature: float = static(0.1, above=0)
    """Temperature of mppi's weights, in standard deviations of the candidates' returns."""
    spread: float = static(0.5, above=0)
    """Standard deviation of the first candidates around a warm start, and of all of mppi's, in
    half-widths of the actions' bounds."""
    step_size: float = static(0.1, above=0)
    """Step size of gradient's Adam, in half-widths of the actions' bounds."""


class Model(Protocol):
    """A model of one step from one state."""

    def __call__(self, state: Tree, action: Array, key: Key, /) -> tuple[Tree, Array]:
        """Return the next state and the reward, [].

        state: a tree. action: within its bounds. key: of the step's noise, the same for all
            candidates.
        """
        ...


@struct
class Plan:
    """A sequence of H actions and what the model says of it."""

    actions: Array
    """[H, *shape]."""
    value: Array
    """Predicted discounted return, []."""


def make_plan(
    key: Key,
    model: Model,
    start: Tree,
    horizon: int,
    space: Space,
    planner: Planner,
    *,
    warm: Array | None = None,
    discount: Array | float = 1.0,
) -> Plan:
    """Plan `horizon` (H) actions from one state.

    Candidates are sequences in half-widths of the actions' bounds and stay within them. Sources:
    Chua et al., 2018 (cem); Williams et al., 2017, "Information theoretic MPC for model-based
    reinforcement learning" (mppi); S V et al., 2023, "Gradient-based planning with world models"
    (gradient, by Adam from several starts, the best of which is taken).

    start: the state, one tree. space: a bounded box.
    warm: actions [H, *shape] that the search begins around, such as the rest of the last plan or a
        policy's; None for actions from all of the box.

    Raises `UserError` for a horizon below 1 and for more elites than candidates.
    """
    if horizon < 1:
        raise UserError(f"The horizon of a plan must be at least 1, got {horizon}.")
    count = planner.candidates
    if planner.how == "cem" and planner.elites > count:
        raise UserError(f"elites is {planner.elites}; there are only {count} candidates.")
    low, high = spaces.bounds(space)  # type: ignore[arg-type]
    center, half_width = (high + low) / 2, (high - low) / 2
    noise_key, key = jax.random.split(key)
    noise = jax.random.split(noise_key, horizon)
    shape = (horizon, *center.shape)

    def value(units: Array) -> Array:
        """Return the predicted return of actions in half-widths, [H, *shape]."""

        def step(state, inputs):
            unit, key = inputs
            return model(state, center + half_width * unit, key)

        rewards = jax.lax.scan(step, start, (units, noise))[1]
        return (discount ** jnp.arange(horizon) * rewards).sum()

    values = jax.vmap(value)
    mean = jnp.zeros(shape) if warm is None else (warm - center) / half_width

    def draw(key: Key, mean: Array, deviation: Array) -> Array:
        """Draw candidates [N, H, *shape]; the first is the mean itself."""
        drawn = mean + deviation * jax.random.normal(key, (count, *shape))
        return jnp.clip(drawn.at[0].set(mean), -1, 1)

    def draw_first(key: Key) -> Array:
        if warm is not None:
            return draw(key, mean, jnp.full(shape, planner.spread))
        return jax.random.uniform(key, (count, *shape), minval=-1, maxval=1)

    def best(units: Array, found: Array) -> tuple[Array, Array]:
        place = found.argmax()
        return units[place], found[place]

    keys = jax.random.split(key, planner.iterations)
    if planner.how == "gradient":
        units, found = climb(values, draw_first(keys[0]), planner)
        units, found = best(units, found)
    elif planner.how == "shooting":

        def shoot(held, key):
            units = draw_first(key)
            new = best(units, values(units))
            better = new[1] > held[1]
            return jax.tree.map(lambda a, b: jnp.where(better, a, b), new, held), None

        (units, found), _ = jax.lax.scan(shoot, (mean, jnp.float32(-jnp.inf)), keys)
    else:
        wide = planner.how == "cem" and warm is None
        deviation = jnp.full(shape, 1.0 if wide else planner.spread)

        def refit(held, key):
            mean, deviation = held
            units = draw(key, mean, deviation)
            return fit(units, values(units), deviation, planner), None

        (units, _), _ = jax.lax.scan(refit, (mean, deviation), keys)
        found = value(units)
    return Plan(jnp.asarray(center) + half_width * units, found)


def fit(units: Array, found: Array, deviation: Array, planner: Planner) -> tuple[Array, Array]:
    """Return mean and standard deviation [H, *shape] of the next candidates by cem or mppi.

    units: candidates [N, H, *shape]. found: their returns [N]. deviation: the one that they were
        drawn with, which mppi keeps.
    """
    if planner.how == "cem":
        elite = units[jax.lax.top_k(found, planner.elites)[1]]
        return elite.mean(0), elite.std(0)
    scaled = (found - found.max()) / (planner.temperature * jnp.maximum(found.std(), 1e-8))
    return jnp.tensordot(jax.nn.softmax(scaled), units, 1), deviation


def climb(values: Any, units: Array, planner: Planner) -> tuple[Array, Array]:
    """Climb the returns of candidates [N, H, *shape] by Adam, within -1 and 1. Returns the
    candidates after `iterations` evaluations and the returns [N] of the best that each one was."""
    optimizer = optax.adam(planner.step_size)

    def total(units):
        found = values(units)
        return found.sum(), found

    def keep(units, found, held):
        better = found > held[1]
        wide = better.reshape(-1, *(1,) * (units.ndim - 1))
        return jnp.where(wide, units, held[0]), jnp.where(better, found, held[1])

    def step(carry, _):
        units, state, held = carry
        gradient, found = jax.grad(total, has_aux=True)(units)
        held = keep(units, found, held)
        change, state = optimizer.update(-gradient, state)
        units = jnp.clip(units + jnp.asarray(change), -1, 1)
        return (units, state, held), None

    held = units, jnp.full(len(units), -jnp.inf)
    carry = units, optimizer.init(units), held
    (units, _, held), _ = jax.lax.scan(step, carry, None, planner.iterations)
    return held


def shift(actions: Array) -> Array:
    """Return the rest of a plan [H, *shape] after its first action, whose last action is
    repeated."""
    return jnp.concatenate([actions[1:], actions[-1:]])


def check_bounded_box(space: Space, name: str) -> None:
    """Raise `UserError` unless actions are one box."""
    if not isinstance(space, Box):
        raise UserError(f"{name} plans over actions that are one box, not {space!r}.")
