"""The settings that a sweep varies, and its points: pure functions of settings and a seed."""

from __future__ import annotations

import dataclasses
import itertools
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.core import settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.hyper import MANY, check, hypers, log_scaled
from jaxrl.runtime import configuration
from jaxrl.runtime.configuration import Experiment

Point = dict[str, Any]  # setting -> value; settings under agent without that prefix
PARAMS = "env_params."
_RANGE = re.compile(r"(range|log|uniform)\(([^,()]*),([^,()]*)(?:,([^,()]*))?\)")


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of a setting in a sweep: those `listed`, or the range from `low` to `high`."""

    listed: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False  # whether values are uniform in the logarithm

    @staticmethod
    def of(listed: Sequence[Any]) -> Values:
        """Return the values of a list, with the range of its numbers."""
        numbers = [x for x in listed if isinstance(x, int | float)] or [0.0]
        return Values(tuple(listed), min(numbers), max(numbers))

    def at(self, u: float) -> Any:
        """Return the value for a number `u` in [0, 1), such as a uniform sample."""
        if self.listed:
            return self.listed[int(u * len(self.listed))]
        if self.log:
            return self.clip(self.low * (self.high / self.low) ** u)
        return self.clip(self.low + (self.high - self.low) * u)

    def holds(self, value: Any) -> bool:
        """Return whether `value` is listed, or in the range where nothing is listed."""
        return value in self.listed if self.listed else self.clip(value) == value

    def clip(self, value: float) -> float:
        """Clip a number to the range."""
        return float(min(max(value, self.low), self.high))


def parse(config: Experiment, words: Sequence[str]) -> dict[str, Values]:
    """Return the values of each setting in words such as `agent.learning-rate=1e-4,1e-3`.

    Others are `agent.hidden=64,64/32,32`, `agent.clip=uniform(0.1,0.3)` and `env-params.size=3,4`.
    Settings have their full names, those under agent without that prefix.

    `range(1e-4,1e-3)` is drawn from uniformly in the logarithm if the setting is declared with
    `log=True`, as learning rates are, and uniformly otherwise; `log` and `uniform` say which.
    A third number, as in `range(1e-4,1e-3,5)`, lists so many values instead, with equal factors or
    differences between them, both ends included.

    Raises:
        UserError: for an unknown setting, a value of the wrong type or out of range, a setting or
            value given twice, a range of a setting that is part of the program, or if nothing is
            varied (unless a sweep is resumed, or is over seeds alone).
    """
    if config.resume and words:
        raise UserError("A resumed sweep varies the same settings as before; leave out --vary.")
    if not (config.resume or words or config.seeds > 1):
        raise UserError("Say what to vary, such as --vary agent.learning-rate=1e-4,1e-3.")
    varied: dict[str, Values] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"--vary {word} needs values, such as {word}=1e-4,1e-3.")
        name, kind = _setting(config, name.replace("-", "_"))
        if name in varied:
            raise UserError(f"{_display_name(name)} is varied twice.")
        drawn = _RANGE.fullmatch(text)
        if drawn and not is_hyper(config, name):
            raise UserError(
                f"{_display_name(name)} is part of the program, so it cannot be varied over a "
                f"range; list values instead of {text}."
            )
        if drawn:
            varied[name] = _range(config, name, *drawn.groups())
            ends = [varied[name].low, varied[name].high]
        else:
            listed = [
                configuration.convert(_display_name(name), v, kind) for v in _split(text, kind)
            ]
            if len(set(listed)) < len(listed):
                raise UserError(f"{_display_name(name)} is given the same value twice: {text}.")
            varied[name], ends = Values.of(listed), listed
        for value in ends:
            apply(config, {name: value})
    return varied


def is_hyper(config: Experiment, name: str) -> bool:
    """Return whether points that differ in this setting are members of one program."""
    return name in hypers(config.agent)


def points(varied: Mapping[str, Values], samples: int, seed: int) -> list[Point]:
    """Return all combinations of the listed values, or `samples` points with independent values.

    With the same seed, fewer samples are the first of more.

    Raises:
        UserError: if `samples` is given without a range, or missing with one.
    """
    ranges = [_display_name(name) for name, values in varied.items() if not values.listed]
    if ranges and not samples:
        raise UserError(f"{ranges[0]} is varied over a range; add --samples N to draw N points.")
    if samples and not ranges:
        raise UserError("--samples needs a range, such as --vary 'agent.clip=uniform(0.1,0.3)'.")
    if not samples:
        rows = itertools.product(*(values.listed for values in varied.values()))
        return [dict(zip(varied, row, strict=True)) for row in rows]
    uniform = np.random.default_rng(seed).random((samples, len(varied)))
    return [
        {name: values.at(u) for (name, values), u in zip(varied.items(), row, strict=True)}
        for row in uniform
    ]


def apply(config: Experiment, point: Mapping[str, Any]) -> Experiment:
    """Return `config` with the settings of `point`. Raises `UserError` for a value out of range."""
    params = {k.removeprefix(PARAMS): v for k, v in point.items() if k.startswith(PARAMS)}
    agent = {k: v for k, v in point.items() if not k.startswith(PARAMS)}
    config = dataclasses.replace(
        config,
        agent=settings.replace(config.agent, agent),
        env_params={**config.env_params, **params},
    )
    check(config)
    return config


def format_value(value: Any) -> str:
    """Format a value for a table: `0.001`, `64,64`."""
    if isinstance(value, tuple):
        return ",".join(map(format_value, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _display_name(name: str) -> str:
    return name if name.startswith(PARAMS) else f"agent.{name}"


def _setting(config: Experiment, name: str) -> tuple[str, Any]:
    """Return the full name of a setting, without `agent.`, and its type."""
    if name.startswith(PARAMS):
        kind = configuration.leaves(config)[PARAMS[:-1]][0]
        return name, typing.get_args(kind)[1]
    known = {f"agent.{k}": kind for k, (kind, _) in configuration.leaves(config.agent).items()}
    found = settings.find_name(name, known, root="agent")
    if found is None:
        raise unknown("setting of a sweep", name, known)
    return found.removeprefix("agent."), known[found]


def _split(text: str, kind: Any) -> list[str]:
    """Return the values in `text`, separated by commas, or by slashes if they are lists."""
    lists = (typing.get_origin(kind) or kind) is tuple
    either = any((typing.get_origin(k) or k) is tuple for k in typing.get_args(kind))
    return text.split("/" if lists or (either and "/" in text) else ",")


def is_log(config: Experiment, name: str) -> bool:
    """Return whether a setting is declared to have values that differ by factors."""
    return name in log_scaled(config.agent)


def _range(
    config: Experiment, name: str, spread: str, first: str, last: str, count: str | None
) -> Values:
    label = _display_name(name)
    low, high = (configuration.convert(label, x.strip(), float) for x in (first, last))
    log = spread == "log" or (spread == "range" and is_log(config, name))
    if not low < high or (log and low <= 0):
        raise UserError(
            f"{label} is varied over {spread}({low:g},{high:g}); the first number must be the "
            f"smaller one{' and above 0' if log else ''}."
        )
    if count is None:
        return Values((), low, high, log)
    number = configuration.convert(label, count.strip(), int)
    if not 2 <= number <= MANY:
        raise UserError(f"{label} is varied over {number} values of a range; list at least 2.")
    listed = (np.geomspace if log else np.linspace)(low, high, number)
    return Values(tuple(listed.tolist()), low, high, log)
