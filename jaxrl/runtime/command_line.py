"""Command lines: `[CONFIG.yaml] --name value ...`, errors as one sentence with exit code 2."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl.core.errors import UserError, unknown
from jaxrl.runtime import configuration
from jaxrl.runtime.configuration import Experiment


class Stopped(Exception):
    """Training could not go on; the message says since when, and where its state lies."""


def run(main: Callable[[Sequence[str]], int | None]) -> typing.NoReturn:
    """Call `main` with the command line's arguments and exit with `call`'s code."""
    sys.exit(call(main, sys.argv[1:]))


def call(main: Callable[[Sequence[str]], int | None], argv: Sequence[str]) -> int:
    """The exit code of `main(argv)`: 2 on a `UserError`, 1 where training had to stop (both are
    printed as they are), 130 on an interrupt before there was anything to save."""
    try:
        return main(argv) or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def experiment(argv: Sequence[str], description: str) -> Experiment:
    """The Experiment that a command line describes; prints all options and exits on `--help`.

    With `--fork RUN` or `--resume RUN` the settings start from that run's own.
    Raises `UserError` for whatever is not understood.
    """
    files, options = split(argv)
    if len(files) > 1:
        raise UserError(f"One configuration file is expected, got {', '.join(files)}.")
    base = None
    for name in ("resume", "fork"):
        if options.get(name):
            from jaxrl.runtime.run_folder import read_config

            base = read_config(options[name][0])
            if name == "fork":  # it has a name and a parent of its own
                base = dataclasses.replace(base, name="", fork="", warm_start="")
            break
    if files:
        base = configuration.experiment(configuration.load(files[0]), base)
    if options.get("algorithm"):
        base = configuration.experiment({"algorithm": options["algorithm"][0]}, base)
    base = base or configuration.experiment({})
    if "help" in options or "h" in options:
        show_help(base, description)
    return configuration.experiment(nest(options, base), base)


def split(argv: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Positional arguments, and option name (with _ for -) -> the words that follow it.

    Raises `UserError` for an option that is given twice.
    """
    positional: list[str] = []
    options: dict[str, list[str]] = {}
    words = positional
    for word in argv:
        if word.startswith("--") or word == "-h":
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            if name in options:
                raise UserError(f"--{name.replace('_', '-')} is given twice.")
            words = options[name] = [value] if equals else []
        else:
            words.append(word)
    return positional, options


def take(argv: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """All words that follow any `--name`, which may be given several times, and what remains."""
    taken: list[str] = []
    rest: list[str] = []
    words = rest
    for word in argv:
        if word == f"--{name}":
            words = taken
        elif word.startswith(f"--{name}="):
            taken.append(word.partition("=")[2])
        else:
            words = rest if word.startswith("--") else words
            words.append(word)
    return taken, rest


def nest(options: dict[str, list[str]], base: Any) -> dict[str, Any]:
    """Options as nested dicts, their values as text of the right structure."""
    known = configuration.leaves(base)
    data: dict[str, Any] = {}
    for name, words in options.items():
        negated = _negated(name)
        if negated != name and negated in known and known[negated][0] is bool and not words:
            name, words = negated, ["false"]
        parent = name.rpartition(".")[0]
        in_dict = parent in known and typing.get_origin(known[parent][0]) is dict
        if name not in known and not in_dict:
            flags = [f"--{n.replace('_', '-')}" for n in known]
            raise unknown("option", f"--{name.replace('_', '-')}", flags)
        kind = known[parent if in_dict else name][0]
        *path, last = name.split(".")
        place = data
        for part in path:
            place = place.setdefault(part, {})
        place[last] = _value(name, words, typing.get_args(kind)[1] if in_dict else kind)
    return data


def _negated(name: str) -> str:
    """`agent.x` of `agent.no_x` and of `no_agent.x`; the name itself without a `no_`."""
    parent, dot, last = name.rpartition(".")
    if name.startswith("no_"):
        return name[3:]
    return parent + dot + last[3:] if last.startswith("no_") else name


def _value(name: str, words: list[str], kind: Any) -> Any:
    flag = f"--{name.replace('_', '-')}"
    if kind is bool and not words:
        return True
    origin = typing.get_origin(kind)
    if origin is tuple:
        return " ".join(words)
    if origin is dict:
        if len(words) % 2 == 0 and not any("=" in word for word in words):  # length 1.5
            return dict(zip(words[::2], words[1::2], strict=True))
        pairs = [word.partition("=") for word in words]
        if not all(equals for _, equals, _ in pairs):
            raise UserError(f"{flag} needs pairs such as length=1.5, got '{' '.join(words)}'.")
        return {key: value for key, _, value in pairs}
    if len(words) != 1:
        raise UserError(f"{flag} needs one value, got {' '.join(words) or 'none'}.")
    return words[0]


def show_help(base: Experiment, description: str) -> typing.NoReturn:
    """Print every option with its default and meaning, and exit with code 0."""
    import tyro

    tyro.cli(
        Experiment[type(base.agent)],  # type: ignore[misc]
        default=base,
        args=["--help"],
        description=description,
    )
    raise SystemExit(0)
