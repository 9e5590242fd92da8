"""A dataset: transitions [N], one episode after the other, as NumPy arrays.

A dataset is checked wherever it comes from:

- Numbers are finite, also in the dtypes in which they are used. Only metrics may hold NaN.
- Numbers are rounded (float64 to float32) but never changed otherwise; a number that would change
  is refused.
- Indices are elements of the spaces. Actions that are real numbers may lie beyond their bounds,
  since environments clip and a policy's Gaussian has no bounds, but not beyond `FARTHEST` times the
  bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.core import spaces, trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, TimeStep, Transition, Tree
from jaxrl.datasets import arrays
from jaxrl.datasets.transitions import concatenate, returns

FARTHEST = 1e6  # times an action's bounds (at least 1): no policy's noise comes near


@dataclasses.dataclass(frozen=True)
class References:
    """Mean returns that define D4RL's score. Raises `UserError` unless they are finite numbers and
    `expert` is the larger one."""

    random: float
    """Mean return of the random policy, a score of 0."""
    expert: float
    """Mean return of the expert, a score of 100."""

    def __post_init__(self):
        for name, value in vars(self).items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and abs(value) < 1e300):  # false for NaN too
                raise UserError(f"The reference return '{name}' is {value!r}; it must be a number.")
        if not self.random < self.expert:
            raise UserError(
                f"The reference return of the expert is {self.expert} and that of the random "
                f"policy {self.random}; the expert's must be larger."
            )


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Whole episodes of experience, which are checked when the dataset is made."""

    name: str
    """Name in messages."""
    transitions: Transition
    """NumPy arrays [N]: whole episodes in order, the last step of each terminated or truncated, its
    first one marked by `first`."""
    references: References | None = None
    """Mean returns that scores are measured by, where they are known."""

    def __post_init__(self):
        check(self)

    def __len__(self) -> int:
        return len(self.transitions.reward)


def check(data: Dataset) -> None:
    """Raise `UserError` unless all arrays have the same number of rows, at least one, numbers are
    finite (except metrics), no step is both terminated and truncated, episodes are whole, and each
    step of an episode begins where the step before it ended."""
    x, where = data.transitions, f"the dataset '{data.name}'"
    if np.ndim(x.reward) != 1:
        raise UserError(f"The reward of {where} has the shape {list(np.shape(x.reward))}, not [N].")
    if len(x.reward) == 0:
        raise UserError(f"The dataset '{data.name}' is empty.")
    trees.check_rows(x, len(x.reward), f"the rewards of {where}")
    for name in ("first", "terminated", "truncated"):
        values = np.asarray(getattr(x, name))
        if values.dtype != bool or values.ndim != 1:
            raise UserError(
                f"'{name}' of {where} is {values.dtype}{list(values.shape)}; it must be bool [N]."
            )
    both = np.asarray(x.terminated) & np.asarray(x.truncated)
    if both.any():
        raise UserError(
            f"The step in row {both.argmax()} of {where} is both terminated and truncated; a step "
            "that terminates must not be truncated as well."
        )
    first, done = np.asarray(x.first), np.asarray(x.done)
    if not (first[0] and done[-1] and np.array_equal(first[1:], done[:-1])):
        raise UserError(
            f"The episodes of the dataset '{data.name}' are not whole: the step after each "
            "terminated or truncated one, and no other, must be the first of an episode."
        )
    bare = lambda timestep: dataclasses.replace(timestep, metrics=None)
    numbers = Transition(bare(x.timestep), x.action, bare(x.next_timestep), (), {})
    for path, leaf in jax.tree_util.tree_leaves_with_path(numbers):
        what = f"{jax.tree_util.keystr(path, simple=True, separator='.')} of {where}"
        values = arrays.numbers(leaf, what)
        arrays.check_finite(values, values, what)
    inside = ~done[:-1]
    if arrays.form(x.observation, 1) != arrays.form(x.next_observation, 1):
        raise UserError(
            f"The observations of {where} are {arrays.shapes(x.observation, 1)} before each step "
            f"and {arrays.shapes(x.next_observation, 1)} after it; they must be alike."
        )
    for here, there in zip(
        jax.tree.leaves(x.observation), jax.tree.leaves(x.next_observation), strict=True
    ):
        if not np.array_equal(here[1:][inside], there[:-1][inside]):
            raise UserError(f"The steps of the dataset '{data.name}' do not follow each other.")


def conform(data: Dataset, env: Environment) -> Dataset:
    """Return `data` with the dtypes of `env`.

    Raises `UserError` for observations, goals or actions whose structure or shape is not that of
    `env`, for numbers that its dtypes do not have (see `arrays.cast`), for indices that its spaces
    do not have, and for actions further from 0 than a million times their bounds (at least 1).
    """
    shapes = jax.eval_shape(lambda key: env.reset(key, env.params)[1], jax.random.key(0))
    action = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(tuple(s.shape), s.dtype),
        env.action_space,
        is_leaf=spaces.is_space,
    )

    def cast(what: str, found: Tree, expected: Tree) -> Tree:
        if arrays.form(found, 1) != arrays.form(expected, 0):
            raise UserError(
                f"The {what}s of the dataset '{data.name}' are {arrays.shapes(found, 1)} and "
                f"those of '{env.name}' {arrays.shapes(expected, 0)}."
            )
        return jax.tree.map(lambda x, s: arrays.cast(x, s.dtype, what + where), found, expected)

    def timestep(x: TimeStep) -> TimeStep:
        observation = cast("observation", x.observation, shapes.observation)
        _check_indices(env.observation_space, observation, "observation" + where)
        return dataclasses.replace(
            x,
            observation=observation,
            goal=cast("goal", x.goal, shapes.goal),
            reward=arrays.cast(x.reward, np.float32, "reward" + where),
        )

    x, where = data.transitions, f" of the dataset '{data.name}'"
    actions = cast("action", x.action, action)
    _check_indices(env.action_space, actions, "action" + where)
    _check_distance(env.action_space, actions, "action" + where)
    transitions = dataclasses.replace(
        x, timestep=timestep(x.timestep), action=actions, next_timestep=timestep(x.next_timestep)
    )
    return dataclasses.replace(data, transitions=transitions)


def _check_indices(space: spaces.Space, values: Tree, what: str) -> None:
    """Raise `UserError` for an index that `space` does not have."""

    def one(space, values):
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            sizes = space.n if isinstance(space, spaces.Discrete) else np.asarray(space.sizes)
            wrong = (values < 0) | (values >= sizes)
            arrays.refuse(wrong, values, what, f"it must be an element of {space}")

    jax.tree.map(one, space, values, is_leaf=spaces.is_space)


def _check_distance(space: spaces.Space, values: Tree, what: str) -> None:
    """Raise `UserError` for real numbers too far beyond the bounds of `space`."""

    def one(space, values):
        if isinstance(space, spaces.Box) and jnp.issubdtype(values.dtype, jnp.floating):
            bounds = np.abs(np.stack(spaces.bounds(space)))
            farthest = FARTHEST * np.where(np.isfinite(bounds), bounds, 1).max(0).clip(1)
            arrays.refuse(
                np.abs(values) > farthest, values, what, f"it must be near an element of {space}"
            )

    jax.tree.map(one, space, values, is_leaf=spaces.is_space)


def join(name: str, parts: Sequence[Dataset]) -> Dataset:
    """Join the episodes of all `parts`, in order, with the references of the first. Raises
    `UserError` for no parts, and for a part whose structure or shape is not that of the first."""
    if not parts:
        raise UserError(f"The dataset '{name}' has no parts.")
    transitions = concatenate([p.transitions for p in parts], [f"'{p.name}'" for p in parts])
    return Dataset(name, transitions, parts[0].references)


# ------------------------------------------------------------------------------- profile


def profile(data: Dataset) -> dict[str, Any]:
    """Describe a dataset by plain values: numbers of steps, episodes and their endings, returns and
    lengths (mean, least, most), the range of each action, and, if references are known, the score
    of the dataset (`losses.normalized_score` of the mean return)."""
    x = data.transitions
    totals, lengths = returns(x), np.diff(np.flatnonzero(np.append(x.first, True)))
    action = np.concatenate(
        [np.asarray(a).reshape(len(data), -1) for a in jax.tree.leaves(x.action)], 1
    )
    found = {
        "name": data.name,
        "steps": len(data),
        "episodes": len(totals),
        "terminated": int(np.asarray(x.terminated).sum()),
        "truncated": int(np.asarray(x.truncated).sum()),
        "return": _summary(totals),
        "length": _summary(lengths),
        "action": [action.min(0).tolist(), action.max(0).tolist()],
    }
    if data.references is not None:
        found["references"] = dataclasses.asdict(data.references)
        found["score"] = score(totals.mean(), data.references)
    return found


def score(value: Any, references: References) -> Any:
    """Convert returns to D4RL's scale, `losses.normalized_score`."""
    return losses.normalized_score(value, references.random, references.expert)


def _summary(values: np.ndarray) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        "least": float(values.min()),
        "most": float(values.max()),
    }
