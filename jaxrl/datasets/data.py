"""A data set: transitions [N], one episode after the other, as NumPy arrays; and what is in it.

What a data set may hold, wherever it comes from:

- Numbers are finite, also as the dtypes that they are used in; the metrics alone may hold NaN.
- Rounding aside (float64 to float32) no number is changed, so none that would be is accepted.
- Indices are those of the spaces. Actions that are real numbers may lie beyond their bounds, since
  worlds clip and a policy's Gaussian has no bounds; beyond `FARTHEST` times the bounds they
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

FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")  # of an episode
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
    x, where = data.transitions, f"the data set '{data.name}'"
    if np.ndim(x.reward) != 1:
        raise UserError(f"The reward of {where} has the shape {list(np.shape(x.reward))}, not [N].")
    if len(x.reward) == 0:
        raise UserError(f"The data set '{data.name}' is empty.")
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
            f"The episodes of the data set '{data.name}' are not whole: the step after each "
            "terminated or truncated one, and no other, must be the first of an episode."
        )
    bare = lambda timestep: dataclasses.replace(timestep, metrics=None)
    numbers = Transition(bare(x.timestep), x.action, bare(x.next_timestep), (), {})
    for path, leaf in jax.tree_util.tree_leaves_with_path(numbers):
        what = f"{jax.tree_util.keystr(path, simple=True, separator='.')} of {where}"
        values = _numbers(leaf, what)
        _check_finite(values, values, what)
    inside = ~done[:-1]
    if _row(x.observation, 1) != _row(x.next_observation, 1):
        raise UserError(
            f"The observations of {where} are {_shapes(x.observation, 1)} before each step and "
            f"{_shapes(x.next_observation, 1)} after it; they must be alike."
        )
    for here, there in zip(
        jax.tree.leaves(x.observation), jax.tree.leaves(x.next_observation), strict=True
    ):
        if not np.array_equal(here[1:][inside], there[:-1][inside]):
            raise UserError(f"The steps of the data set '{data.name}' do not follow each other.")


def _numbers(values: Any, what: str) -> np.ndarray:
    """`values` as an array of real numbers. Raises `UserError` where they are none."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        raise UserError(f"The {what} is no array.") from None
    if array.dtype.kind not in "biuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise UserError(f"The {what} is an array of {array.dtype}; it must be one of real numbers.")
    return array


def _check_finite(values: np.ndarray, given: np.ndarray, what: str) -> None:
    if jnp.issubdtype(values.dtype, jnp.floating):
        _refuse(~np.isfinite(values), given, what, f"it must be finite as {values.dtype}")


def _refuse(wrong: np.ndarray, values: np.ndarray, what: str, right: str) -> None:
    """Raises `UserError` with the first row of `wrong` and the value there."""
    if wrong.any():
        row, *entry = (int(i) for i in np.argwhere(wrong)[0])
        place = f"row {row}, entry {entry}" if entry else f"row {row}"
        raise UserError(f"The {what} is {values[(row, *entry)]} in {place}; {right}.")


def _cast(values: Any, dtype: Any, what: str) -> np.ndarray:
    """`values` as `dtype`, which may round them and no more. Raises `UserError` for what is not
    finite then, and for integers that would be others."""
    values = _numbers(values, what)
    real = jnp.issubdtype(dtype, jnp.floating)
    if not real and jnp.issubdtype(values.dtype, jnp.floating):
        raise UserError(f"The {what} is {values.dtype}; it must be {np.dtype(dtype)}.")
    with np.errstate(over="ignore"):
        cast = values.astype(dtype, copy=False)
    _check_finite(cast, values, what)
    if not real and cast is not values:
        _refuse(cast != values, values, what, f"it must be {np.dtype(dtype)}")
    return cast


def spans(transitions: Transition) -> list[slice]:
    """The rows of each episode."""
    ends = np.flatnonzero(transitions.done) + 1
    return [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def returns(transitions: Transition) -> np.ndarray:
    """The undiscounted return of each episode, float64 [episodes]."""
    starts = np.flatnonzero(transitions.first)
    return np.add.reduceat(np.asarray(transitions.reward, np.float64), starts)


def from_streams(transitions: Transition, size: int | None = None) -> Transition:
    """Recorded steps [T, B] of streams that began with an episode as [N]: the whole episodes in the
    order of their ends; what the recording cut off is left out. With a `size` as many of them,
    spread evenly over the recording, as come near that many steps.

    Raises `UserError` if no episode ended.
    """
    done = np.asarray(transitions.done)
    rows = [
        np.arange(a, b) * done.shape[1] + column
        for column in range(done.shape[1])
        for a, b in _episodes(done[:, column])
    ]
    if not rows:
        raise UserError(f"No episode ended within the {len(done)} recorded steps.")
    rows.sort(key=lambda row: row[-1])
    steps = sum(len(row) for row in rows)
    if size is not None and size < steps:
        kept = max(1, round(len(rows) * size / steps))
        rows = [rows[i] for i in np.linspace(0, len(rows) - 1, kept).round().astype(int)]
    chosen = np.concatenate(rows)
    return jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:])[chosen], transitions)


def _episodes(done: np.ndarray) -> list[tuple[int, int]]:
    ends = (np.flatnonzero(done) + 1).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True)) if ends else []


def from_episodes(episodes: Sequence[dict[str, Any]]) -> Transition:
    """Transitions [N] of episodes in the usual form of files (Minari's): for an episode of T steps
    `observations` [T + 1], `actions` [T], `rewards` [T], `terminations` and `truncations` [T], and
    optionally `goal` [T + 1]. Flags are booleans, or integers that are 0 or 1.

    The last observation is the successor of the last step, and opens nothing. An episode whose
    record stops before its end was cut there: its last step counts as truncated. Where the last
    step is both terminated and truncated, as a clock of Gymnasium's says at its last step, the task
    ended there: it counts as terminated, as everywhere in this framework.

    Raises `UserError` for fields that are missing, lengths that do not fit, an end before the last
    step, rewards that are not finite as float32, flags that are none, and for episodes of which one
    is not like the others.
    """
    parts = [_episode(i, e) for i, e in enumerate(episodes)]
    if not parts:
        raise UserError("There are no episodes.")
    return concatenated(parts, [f"episode {i}" for i in range(len(parts))])


def concatenated(parts: Sequence[Transition], names: Sequence[str]) -> Transition:
    """The rows of all `parts`, one after the other. Raises `UserError` where a part has rows of
    another structure or shape than the first."""
    wholes = {
        "observations": lambda x: x.observation,
        "actions": lambda x: x.action,
        "goals": lambda x: x.timestep.goal,
        "transitions": lambda x: x,
    }
    for name, part in zip(names, parts, strict=True):
        for what, of in wholes.items():
            if _row(of(part), 1) != _row(of(parts[0]), 1):
                ours, theirs = (_shapes(of(x), 1) for x in (part, parts[0]))
                raise UserError(f"The {what} of {name} are {ours}, and of {names[0]} {theirs}.")
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _row(tree: Tree, skip: int) -> Any:
    """The structure of a tree, and its leaves' shapes less the leading axes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(x)[skip:] for x in leaves]


def _shapes(tree: Tree, skip: int) -> str:
    """The same for a message."""
    return str(jax.tree.map(lambda x: list(np.shape(x)[skip:]), tree))


def _episode(number: int, episode: dict[str, Any]) -> Transition:
    missing = [field for field in FIELDS if field not in episode]
    if missing:
        raise UserError(f"Episode {number} has no {' and no '.join(missing)}.")
    fields: dict[str, Any] = {"goal": None, **episode}
    fields["rewards"] = _cast(fields["rewards"], np.float32, f"reward of episode {number}")
    for name in ("terminations", "truncations"):
        fields[name] = _cast(fields[name], bool, f"field '{name}' of episode {number}")
    steps = _lengths(number, fields)
    reward, terminated = fields["rewards"], fields["terminations"]
    if (terminated | fields["truncations"])[:-1].any():
        raise UserError(f"Episode {number} ends before its last step.")
    truncated = (np.arange(steps) == steps - 1) & ~terminated

    def timestep(part: slice, reward, terminated, truncated, first) -> TimeStep:
        cut = lambda tree: jax.tree.map(lambda x: np.asarray(x)[part], tree)
        return TimeStep(
            cut(fields["observations"]),
            reward,
            terminated,
            truncated,
            first,
            goal=cut(fields["goal"]),
        )

    none, first = np.zeros(steps, bool), np.arange(steps) == 0
    before = np.concatenate([np.zeros(1, np.float32), reward[:-1]])
    return Transition(
        timestep(slice(0, -1), before, none, none, first),
        jax.tree.map(np.asarray, fields["actions"]),
        timestep(slice(1, None), reward, terminated, truncated, none),
        (),
        {},
    )


def _lengths(number: int, fields: dict[str, Any]) -> int:
    """The steps of an episode. Raises `UserError` where a field has too few or too many rows."""
    reward = fields["rewards"]
    for name in ("rewards", "terminations", "truncations"):
        if fields[name].ndim != 1:
            shape = list(fields[name].shape)
            raise UserError(f"'{name}' of episode {number} has the shape {shape}, not [T].")
    steps = len(reward)
    if not steps:
        raise UserError(f"Episode {number} has no step; it needs at least 1.")
    for name in (*FIELDS, "goal"):
        needed = steps + (name in ("observations", "goal"))
        for leaf in jax.tree.leaves(fields[name]):
            found = len(leaf) if np.ndim(leaf) else "a single value for"
            if found != needed:
                raise UserError(
                    f"Episode {number} has {steps} rewards and {found} {name}; it needs {needed} "
                    f"{name}."
                )
    return steps


def conform(data: Dataset, env: Environment) -> Dataset:
    """`data` with the dtypes of `env`.

    Raises `UserError` where its observations, goals or actions have another structure or shape than
    those of `env`, or numbers that their dtypes do not have (see `_cast`), for indices beyond the
    spaces', and for an action further than a million times its bounds (at least 1) from 0.
    """
    shapes = jax.eval_shape(lambda key: env.reset(key, env.params)[1], jax.random.key(0))
    action = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(tuple(s.shape), s.dtype),
        env.action_space,
        is_leaf=spaces.is_space,
    )

    def cast(what: str, found: Tree, expected: Tree) -> Tree:
        if _row(found, 1) != _row(expected, 0):
            raise UserError(
                f"The {what}s of the data set '{data.name}' are {_shapes(found, 1)} and those of "
                f"'{env.name}' {_shapes(expected, 0)}."
            )
        return jax.tree.map(lambda x, s: _cast(x, s.dtype, what + where), found, expected)

    def timestep(x: TimeStep) -> TimeStep:
        observation = cast("observation", x.observation, shapes.observation)
        _check_indices(env.observation_space, observation, "observation" + where)
        return dataclasses.replace(
            x,
            observation=observation,
            goal=cast("goal", x.goal, shapes.goal),
            reward=_cast(x.reward, np.float32, "reward" + where),
        )

    x, where = data.transitions, f" of the data set '{data.name}'"
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
            _refuse(wrong, values, what, f"it must be an element of {space}")

    jax.tree.map(one, space, values, is_leaf=spaces.is_space)


def _check_distance(space: spaces.Space, values: Tree, what: str) -> None:
    """Raises `UserError` for real numbers too far beyond the bounds of `space`."""

    def one(space, values):
        if isinstance(space, spaces.Box) and jnp.issubdtype(values.dtype, jnp.floating):
            bounds = np.abs(np.stack(spaces.bounds(space)))
            farthest = FARTHEST * np.where(np.isfinite(bounds), bounds, 1).max(0).clip(1)
            _refuse(
                np.abs(values) > farthest, values, what, f"it must be near an element of {space}"
            )

    jax.tree.map(one, space, values, is_leaf=spaces.is_space)


def join(name: str, parts: Sequence[Dataset]) -> Dataset:
    """The episodes of all `parts`, in their order, with the references of the first. Raises
    `UserError` for no parts, and where one has another structure or shape than the first."""
    if not parts:
        raise UserError(f"The data set '{name}' has no parts.")
    transitions = concatenated([p.transitions for p in parts], [f"'{p.name}'" for p in parts])
    return Dataset(name, transitions, parts[0].references)


# ------------------------------------------------------------------------------- what is in it


def profile(data: Dataset) -> dict[str, Any]:
    """What a data set holds, as plain values: numbers of steps, episodes and their endings, returns
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
