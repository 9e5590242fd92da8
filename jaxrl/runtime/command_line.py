"""Command lines: `[CONFIG] --name value ...`, errors as one sentence with exit code 2."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from jaxrl.core import plugins, settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.runtime import configuration
from jaxrl.runtime.configuration import Experiment, Trust

T = TypeVar("T")


class Stopped(Exception):
    """Training could not go on; the message says since when, and where its state lies."""


def run(main: Callable[[Sequence[str]], int | None]) -> typing.NoReturn:
    """Call `main` with the command line's arguments and exit with `call`'s code. Modules of one's
    own in the current folder can be named."""
    sys.path.append(os.getcwd())
    try:
        code = call(main, sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as in `jaxrl list envs | head`
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for what is flushed at exit
        code = 128 + signal.SIGPIPE
    sys.exit(code)


def call(main: Callable[[Sequence[str]], int | None], argv: Sequence[str]) -> int:
    """The exit code of `main(argv)`: 2 on a `UserError` and where the memory does not suffice, 1
    where training had to stop (all are printed as they are), 130 on an interrupt before there was
    anything to save."""
    try:
        return main(argv) or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not out_of_memory(error):
            raise
        print(
            f"error: There is not enough memory for what this asks for ({_first_line(error)}); "
            "fewer environments or seeds, or smaller networks, buffers or datasets, need less; "
            "jaxrl sweep --chunk N trains N members side by side.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def out_of_memory(error: BaseException) -> bool:
    """Whether NumPy, XLA or the operating system (for a thread's stack, say) had no memory left."""
    said = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and ("RESOURCE_EXHAUSTED" in said or "can't start new thread" in said)
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def experiment(argv: Sequence[str], description: str) -> Experiment:
    """The Experiment that a command line describes; prints all options and exits on `--help`.

    With `--fork RUN` or `--resume RUN` the settings start from that run's own. Code from outside of
    jaxrl that the run names is trusted if `--trust` is given, or if it is named here or in the
    configuration file as well. Raises `UserError` for whatever is not understood.
    """
    files, options = split(argv, kinds_of(Experiment), configuration.is_named)
    if len(files) > 1:
        raise UserError(f"One configuration file is expected, got {', '.join(files)}.")
    data = configuration.read(files[0]) if files else {}
    base = None
    for name in ("resume", "fork"):
        if options.get(name):
            from jaxrl.runtime.run_folder import read_config

            base = read_config(options[name][0], _trusted(data, options))
            if name == "fork":  # it has a name and a parent of its own
                base = dataclasses.replace(base, name="", fork="", warm_start="")
            break
    if files:
        base = configuration.experiment(data, base)
    if options.get("algorithm"):
        base = configuration.experiment({"algorithm": options["algorithm"][0]}, base)
    base = base or configuration.experiment({})
    if "help" in options or "h" in options:
        show_help(base, description)
    return configuration.experiment(nest(options, base), base)


def places_and_options(
    argv: Sequence[str], kind: type[T], usage: str, is_place: Callable[[str], bool], places: int = 1
) -> tuple[list[str], T]:
    """What `argv` names (as many as `places`; one or more where that is 0), and its options as a
    `kind`, a dataclass whose fields have defaults; prints them and exits on `--help`. is_place: as
    for `split`.

    Raises `UserError` for whatever is not understood; `usage` says how it is meant.
    """
    found, options = split(argv, kinds_of(kind), is_place)
    if options.keys() & {"help", "h"}:
        _help(kind, kind(), usage)
    if len(found) != (places or max(1, len(found))):
        raise UserError(f"Got {len(found)} names ({', '.join(found) or 'none'}); usage: {usage}.")
    return found, configuration.override(kind(), nest(options, kind()))


@dataclasses.dataclass(frozen=True)
class _Consent:
    trust: bool = False


def _trusted(data: dict[str, Any], options: dict[str, list[str]]) -> Trust:
    """The code that a person who wrote this file and these options agrees to import."""
    said = {name: words for name, words in options.items() if _negated(name) == "trust"}
    if configuration.override(_Consent(), nest(said, _Consent())).trust:
        return True
    typed = [re.split(r"[=,\s]+", word) for words in options.values() for word in words]
    return configuration.foreign(data) | plugins.foreign(typed)


def split(
    argv: Sequence[str],
    kinds: Mapping[str, Any] = types.MappingProxyType({}),
    is_place: Callable[[str], bool] = lambda word: False,
) -> tuple[list[str], dict[str, list[str]]]:
    """Positional arguments, and option name (with _ for -) -> the words that follow it.

    kinds: option -> the type of its value, as far as known.
    is_place: whether a word is a positional argument wherever it stands, but where an option needs
        one value and has none yet.

    Raises `UserError` for an option that is given twice.
    """
    positional: list[str] = []
    options: dict[str, list[str]] = {}
    words, kind = positional, None
    for word in argv:
        if word.startswith("--") or word == "-h":
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            if name in options:
                raise UserError(f"--{name.replace('_', '-')} is given twice.")
            words = options[name] = [value] if equals else []
            kind = kinds.get(name)
        elif is_place(word) and (words or not _needs(kind, word)):
            positional.append(word)
        else:
            words.append(word)
    return positional, options


def is_folder(word: str) -> bool:
    """Whether a word on the command line is that of a run's folder, which may not exist."""
    return Path(word).is_dir() or ("/" in word and "=" not in word)


def kinds_of(cls: type) -> dict[str, Any]:
    """Option -> type of its value, of the fields of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _needs(kind: Any, word: str) -> bool:
    """Whether `word`, the first after an option of this type, is its value whatever it looks like:
    a flag needs none, and a list or mapping may be empty."""
    if kind is bool:
        return word.lower() in ("true", "false")
    return kind is not None and typing.get_origin(kind) not in (tuple, dict)


def take(
    argv: Sequence[str], name: str, is_place: Callable[[str], bool] = lambda word: False
) -> tuple[list[str], list[str]]:
    """All words that follow any `--name`, which may be given several times, and what remains.
    is_place: as for `split`."""
    taken: list[str] = []
    rest: list[str] = []
    words = rest
    for word in argv:
        if word == f"--{name}":
            words = taken
        elif word.startswith(f"--{name}="):
            taken.append(word.partition("=")[2])
        else:
            ours = words is taken and not word.startswith("--") and not is_place(word)
            words = taken if ours else rest
            words.append(word)
    return taken, rest


def nest(options: dict[str, list[str]], base: Any) -> dict[str, Any]:
    """Nest options as dicts, their values as text of the right structure. Names may be shortened
    (`settings.find_name`)."""
    known = configuration.leaves(base)
    data: dict[str, Any] = {}
    for name, words in options.items():
        name, negated = (
            settings.find_name(x, known, root="agent") or x for x in (name, _negated(name))
        )
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
        if len(words) % 2 == 0 and not any("=" in word for word in words):  # force 20
            return dict(zip(words[::2], words[1::2], strict=True))
        pairs = [word.partition("=") for word in words]
        if not all(equals for _, equals, _ in pairs):
            raise UserError(f"{flag} needs pairs such as force=20, got '{' '.join(words)}'.")
        return {key: value for key, _, value in pairs}
    if len(words) != 1:
        raise UserError(f"{flag} needs one value, got {' '.join(words) or 'none'}.")
    return words[0]


def show_help(base: Experiment, description: str) -> typing.NoReturn:
    """Print every option with its default and meaning, and exit with code 0."""
    _help(Experiment[type(base.agent)], base, description)  # type: ignore[misc]


def _help(kind: Any, base: Any, description: str) -> typing.NoReturn:
    import tyro

    tyro.cli(kind, default=base, args=["--help"], description=description)
    raise SystemExit(0)
