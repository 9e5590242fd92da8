"""Transitions [N] of whole episodes, one after the other, from streams, files, and other parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import TimeStep, Transition
from jaxrl.datasets import arrays

FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")  # of an episode


def spans(transitions: Transition) -> list[slice]:
    """Return the rows of each episode."""
    ends = np.flatnonzero(transitions.done) + 1
    return [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def returns(transitions: Transition) -> np.ndarray:
    """Return the undiscounted return of each episode, float64 [episodes]."""
    starts = np.flatnonzero(transitions.first)
    return np.add.reduceat(np.asarray(transitions.reward, np.float64), starts)


def without_region(transitions: Transition, values: np.ndarray, share: float) -> Transition:
    """Return the transitions [N] without the `share` of them whose `values` [N, D] are nearest to
    the mean, in standard deviations: data with a hole.

    An episode is cut where steps are left out: the step before counts as truncated, and the next
    one that is left as the first of an episode.

    Raises `UserError` if no transition is left.
    """
    spread = values.std(0)
    offset = (values - values.mean(0)) / np.where(spread > 0, spread, 1)
    distance = np.sqrt(np.square(offset).mean(-1))
    kept = distance > np.quantile(distance, share)
    if not kept.any():
        raise UserError("No transition is left beside the hole; all have the same values.")
    before, after = np.roll(kept, 1), np.roll(kept, -1)  # episodes are whole, so ends do not matter
    first = np.asarray(transitions.first) | ~before
    truncated = np.asarray(transitions.truncated) | (~after & ~np.asarray(transitions.terminated))
    x = dataclasses.replace(
        transitions,
        timestep=dataclasses.replace(transitions.timestep, first=first),
        next_timestep=dataclasses.replace(transitions.next_timestep, truncated=truncated),
    )
    return jax.tree.map(lambda leaf: np.asarray(leaf)[kept], x)


def from_streams(transitions: Transition, size: int | None = None) -> Transition:
    """Return the whole episodes [N] in recorded steps [T, B] of streams, ordered by their ends.

    Episodes that the recording cut off, at their beginning or their end, are left out.

    size: number of steps to come near, by leaving out episodes evenly over the recording.

    Raises `UserError` if no episode ended.
    """
    done, first = np.asarray(transitions.done), np.asarray(transitions.first)
    rows = [
        np.arange(a, b) * done.shape[1] + column
        for column in range(done.shape[1])
        for a, b in _episodes(done[:, column])
        if first[a, column]
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
    """Make transitions [N] from episodes in the usual form of files (Minari's).

    An episode of T steps has `observations` [T + 1], `actions` [T], `rewards` [T], `terminations`
    [T] and `truncations` [T], and optionally `goal` [T + 1]. Flags are booleans, or integers that
    are 0 or 1.

    The last observation is the successor of the last step, and no step starts from it. If the
    record of an episode stops before its end, its last step counts as truncated. If the last step
    is both terminated and truncated, as a time limit of Gymnasium reports when the task ends at the
    limit, it counts as terminated, as everywhere in jaxrl.

    Raises `UserError` for missing fields, lengths that do not fit, an end before the last step,
    rewards that are not finite as float32, values that are not flags, and an episode that differs
    in structure or shape from the others.
    """
    parts = [_episode(i, e) for i, e in enumerate(episodes)]
    if not parts:
        raise UserError("There are no episodes.")
    return concatenate(parts, [f"episode {i}" for i in range(len(parts))])


def concatenate(parts: Sequence[Transition], names: Sequence[str]) -> Transition:
    """Concatenate the rows of all `parts`. Raises `UserError`, by their `names`, for a part whose
    rows do not have the structure and shape of the first."""
    wholes = {
        "observations": lambda x: x.observation,
        "actions": lambda x: x.action,
        "goals": lambda x: x.timestep.goal,
        "transitions": lambda x: x,
    }
    for name, part in zip(names, parts, strict=True):
        for what, of in wholes.items():
            if arrays.form(of(part), 1) != arrays.form(of(parts[0]), 1):
                ours, theirs = (arrays.shapes(of(x), 1) for x in (part, parts[0]))
                raise UserError(f"The {what} of {name} are {ours}, and of {names[0]} {theirs}.")
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _episode(number: int, episode: dict[str, Any]) -> Transition:
    missing = [field for field in FIELDS if field not in episode]
    if missing:
        raise UserError(f"Episode {number} has no {' and no '.join(missing)}.")
    fields: dict[str, Any] = {"goal": None, **episode}
    fields["rewards"] = arrays.cast(fields["rewards"], np.float32, f"reward of episode {number}")
    for name in ("terminations", "truncations"):
        fields[name] = arrays.cast(fields[name], bool, f"field '{name}' of episode {number}")
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
    """Return the number of steps. Raises `UserError` for a field with too few or too many rows."""
    reward = fields["rewards"]
    for name in ("rewards", "terminations", "truncations"):
        if fields[name].ndim != 1:
            shape = list(fields[name].shape)
            raise UserError(f"'{name}' of episode {number} has the shape {shape}, not [T].")
    steps = len(reward)
    if not steps:
        raise UserError(f"Episode {number} has no steps; it needs at least 1.")
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
