"""A dataset: transitions [N], one episode after the other, as NumPy arrays; and what is in it.

What a dataset may hold, wherever it comes from:

- Numbers are finite, also as the dtypes that they are used in; the metrics alone may hold NaN.
- Rounding aside (float64 to float32) no number is changed, so none that would be is accepted.
- Indices are those of the spaces. Actions that are real numbers may lie beyond their bounds, since
  environments clip and a policy's Gaussian has no bounds; beyond `FARTHEST` times the bounds they
  are no actions.
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
from jaxrl.datasets.transitions import concatenated, returns

FARTHEST = 1e6  # times an action's bounds (at least 1): no policy's noise comes near


@dataclasses.dataclass(frozen=True)
class References:
    """Mean returns that D4RL's score is measured by: 0 is `random`, 100 is `expert`. Raises
    `UserError` unless they are finite numbers and `expert` is the larger one."""

    random: float
    expert: float

    def __post_init__(self):
        for name, value in vars(self).items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and abs(value) < 1e300):  # also where a comparison is of NaN
                raise UserError(f"The reference return '{name}' is {value!r}; it must be a number.")
        if not self.random < self.expert:
            raise UserError(
                f"The reference return of the expert is {self.expert} and that of the random "
                f"policy {self.random}; the expert's must be larger."
            )


@dataclasses.dataclass(frozen=True)
class Dataset:
    """transitions: [N], NumPy arrays; each episode whole and in order, its last step terminated or
    truncated, its first one marked by `first`."""

    name: str
    transitions: Transition
    references: References | None = None

    def __post_init__(self):
        check(self)

    def __len__(self) -> int:
        return len(self.transitions.reward)


def check(data: Dataset) -> None:
    """Raises `UserError` unless all arrays have the same number of rows, at least one, numbers are
    finite (but for metrics), no step is both terminated and truncated, episodes are whole, and the
    steps of one fit together: each begins where the one before it ended."""
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
    """`data` with the dtypes of `env`.

    Raises `UserError` where its observations, goals or actions have another structure or shape than
    those of `env`, or numbers that their dtypes do not have (see `arrays.cast`), for indices beyond
    the spaces', and for an action further than a million times its bounds (at least 1) from 0.
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
    taken = cast("action", x.action, action)
    _check_indices(env.action_space, taken, "action" + where)
    _check_distance(env.action_space, taken, "action" + where)
    transitions = dataclasses.replace(
        x, timestep=timestep(x.timestep), action=taken, next_timestep=timestep(x.next_timestep)
    )
    return dataclasses.replace(data, transitions=transitions)


def _check_indices(space: spaces.Space, values: Tree, what: str) -> None:
    """Raises `UserError` for an index that `space` does not have."""

    def one(space, values):
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            sizes = space.n if isinstance(space, spaces.Discrete) else np.asarray(space.sizes)
            wrong = (values < 0) | (values >= sizes)
            arrays.refuse(wrong, values, what, f"it must be an element of {space}")

    jax.tree.map(one, space, values, is_leaf=spaces.is_space)


def _check_distance(space: spaces.Space, values: Tree, what: str) -> None:
    """Raises `UserError` for real numbers too far beyond the bounds of `space`."""

    def one(space, values):
        if isinstance(space, spaces.Box) and jnp.issubdtype(values.dtype, jnp.floating):
            bounds = np.abs(np.stack(spaces.bounds(space)))
            farthest = FARTHEST * np.where(np.isfinite(bounds), bounds, 1).max(0).clip(1)
            arrays.refuse(
                np.abs(values) > farthest, values, what, f"it must be near an element of {space}"
            )

    jax.tree.map(one, space, values, is_leaf=spaces.is_space)


def join(name: str, parts: Sequence[Dataset]) -> Dataset:
    """The episodes of all `parts`, in their order, with the references of the first. Raises
    `UserError` for no parts, and where one has another structure or shape than the first."""
    if not parts:
        raise UserError(f"The dataset '{name}' has no parts.")
    transitions = concatenated([p.transitions for p in parts], [f"'{p.name}'" for p in parts])
    return Dataset(name, transitions, parts[0].references)


# ------------------------------------------------------------------------------- what is in it


def profile(data: Dataset) -> dict[str, Any]:
    """What a dataset holds, as plain values: numbers of steps, episodes and their endings, returns
    and lengths (mean, least, most), the range of each action, and where references are known the
    score of the data (`losses.normalized_score` of the mean return)."""
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
    """`value`, returns, on D4RL's scale, `losses.normalized_score`."""
    return losses.normalized_score(value, references.random, references.expert)


def _summary(values: np.ndarray) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        "least": float(values.min()),
        "most": float(values.max()),
    }
