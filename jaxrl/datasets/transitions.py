"""Transitions [N] of whole episodes, one after the other, from streams, files, and other parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import TimeStep, Transition
from jaxrl.datasets import arrays

FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")  # of an episode
STEPS = ("observations", "actions", "rewards", "terminals")  # of rows that are steps


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


def from_steps(steps: Mapping[str, Any]) -> Transition:
    """Make transitions [N] from rows of steps, one episode after the other (D4RL's form).

    `observations`, `actions`, `rewards` and `terminals` have a row for each step. `timeouts` may
    mark other ends of episodes, and `next_observations` may be there. Rows after the last end are
    an episode that counts as truncated.

    Without `next_observations` nothing is known of what follows an episode's last row. If that row
    terminates, its own observation takes the place of the next one, which no value is bootstrapped
    from (but a model of dynamics learns that the state lasts). Otherwise the row is no step but the
    end of the one before it, as in `qlearning_dataset` of D4RL.

    Raises `UserError` for missing fields, fields whose numbers of rows differ, and what
    `from_episodes` refuses.
    """
    missing = [name for name in STEPS if name not in steps]
    if missing:
        raise UserError(f"There are no {' and no '.join(missing)}.")
    flags = {
        name: arrays.cast(steps[name], bool, f"field '{name}'")
        for name in ("terminals", "timeouts")
        if name in steps
    }
    names = sorted(steps)  # whatever the order in a file
    sizes = {name: np.shape(x)[:1] for name in names for x in jax.tree.leaves(steps[name])}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{size[0] if size else 1} {name}" for name, size in sizes.items())
        raise UserError(f"Each step needs a row of every field; there are {counts}.")
    done = np.any(list(flags.values()), 0)
    ends = np.flatnonzero(np.append(done[:-1], True)) + 1 if len(done) else []
    episodes = [
        _of_rows(steps, flags["terminals"], slice(a, b))
        for a, b in zip([0, *ends[:-1]], ends, strict=True)
    ]
    return from_episodes([episode for episode in episodes if len(episode["rewards"])])


def _of_rows(steps: Mapping[str, Any], terminals: np.ndarray, rows: slice) -> dict[str, Any]:
    """Return the episode in some rows, as `from_episodes` takes it."""
    last = slice(rows.stop - 1, rows.stop)
    terminated = bool(terminals[rows.stop - 1])
    after = steps.get("next_observations", steps["observations"] if terminated else None)
    if after is None:  # the last row is the end of the step before it
        rows, observed = slice(rows.start, rows.stop - 1), cut(steps["observations"], rows)
    else:
        observed = jax.tree.map(
            lambda x, y: np.concatenate([x[rows], y[last]]), steps["observations"], after
        )
    number = rows.stop - rows.start
    return {
        "observations": observed,
        "actions": cut(steps["actions"], rows),
        "rewards": cut(steps["rewards"], rows),
        "terminations": (np.arange(number) == number - 1) & terminated,
        "truncations": np.zeros(number, bool),
    }


def cut(tree: Any, rows: slice) -> Any:
    """Return the given rows of each leaf, as arrays."""
    return jax.tree.map(lambda x: np.asarray(x)[rows], tree)


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
        return TimeStep(
            cut(fields["observations"], part),
            reward,
            terminated,
            truncated,
            first,
            goal=cut(fields["goal"], part),
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
