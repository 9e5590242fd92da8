"""Command lines: `[CONFIG.yaml] --name value ...`, errors as one sentence with exit code 2."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl.core.errors import UserError, unknown
from jaxrl.runtime import configuration
from jaxrl.runtime.configuration import Experiment


def run(main: Callable[[Sequence[str]], int | None]) -> typing.NoReturn:
    """Call `main` with the command line's arguments and exit: 2 on a `UserError`, which is printed
    as it is."""
    try:
        sys.exit(main(sys.argv[1:]) or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def experiment(argv: Sequence[str], description: str) -> Experiment:
    """The Experiment that a command line describes; prints all options and exits on `--help`.

    With `--fork RUN` or `--resume RUN` the settings start from that run's own.
    Raises `UserError` for whatever is not understood.
    """
    files, options = split(argv)
    if len(files) > 1:
        raise UserError(f"One configuration file is expected, got {', '.join(files)}.")
    base = None
    parent = options.get("resume") or options.get("fork")
    if parent:
        from jaxrl.runtime.run_folder import read_config

        base = read_config(parent[0])
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
        if name.startswith("no_") and name[3:] in known:
            name, words = name[3:], ["false"]
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


def _value(name: str, words: list[str], kind: Any) -> Any:
    flag = f"--{name.replace('_', '-')}"
    if kind is bool and not words:
        return True
    origin = typing.get_origin(kind)
    if origin is tuple:
        return words
    if origin is dict:
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
