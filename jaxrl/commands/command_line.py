"""Parsing of command lines, `[CONFIG] --name value ...`, and the exit codes of commands."""

from __future__ import annotations

import atexit
import dataclasses
import os
import re
import signal
import sys
import threading
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from jaxrl.algorithms import registry as algorithms
from jaxrl.core import plugins, settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.runtime import configuration
from jaxrl.runtime.configuration import Experiment, Trust
from jaxrl.runtime.errors import Stopped, first_line, out_of_memory

T = TypeVar("T")
PATIENCE = 5.0  # seconds that an interrupted command may take to clean up


def run(main: Callable[[Sequence[str]], int | None]) -> typing.NoReturn:
    """Call `main` with this process's arguments and exit with the code that `call` returns.

    Modules in the current folder can be imported by name.
    """
    sys.path.append(os.getcwd())
    try:
        code = call(main, sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `jaxrl list envs | head`
        # Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    if code == 128 + signal.SIGINT:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> typing.NoReturn:
    """End the process as `sys.exit` does, without waiting for computations that may never end."""
    late = threading.Timer(PATIENCE, os._exit, [code])  # if even this waits for one
    late.daemon = True
    late.start()
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code)


def call(main: Callable[[Sequence[str]], int | None], argv: Sequence[str]) -> int:
    """Return the exit code of `main(argv)`, and print its error, if any, as one sentence.

    0: success. 1: training had to stop (`Stopped`). 2: a `UserError`, or too little memory.
    130: interrupted before there was anything to save.
    """
    try:
        return main(argv) or 0
    except UserError as error:
        print(f"error: {_printable(error)}", file=sys.stderr)
        return 2
    except Stopped as error:
        print(f"error: {_printable(error)}", file=sys.stderr)
        return 1
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if found := re.search(r"^UserError: (.+)$", str(error), re.MULTILINE):
            print(f"error: {found[1]}", file=sys.stderr)  # of a function that XLA called
            return 2
        if not out_of_memory(error):
            raise
        print(
            f"error: There is not enough memory ({first_line(error).rstrip('.')}); use fewer "
            "environments or seeds, or smaller networks, buffers or datasets, or train N members "
            "at a time with jaxrl sweep --chunk N.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _printable(error: Exception) -> str:
    """Return an error's message without what would control a terminal."""
    return "".join(x if x.isprintable() or x in "\n\t" else repr(x)[1:-1] for x in str(error))


def experiment(argv: Sequence[str], description: str) -> Experiment:
    """Return the Experiment that a command line describes; on `--help`, print its options and exit.

    With `--fork RUN` or `--resume RUN` the settings start from that run's own. Code outside of
    jaxrl that the run names is trusted with `--trust`, or if the command line or the configuration
    file names it too.

    Raises:
        UserError: for anything that is not understood.
    """
    files, options = split_words(argv, option_types(Experiment), configuration.is_configuration)
    files, options = _name_algorithm(files, options)
    data = configuration.read(files[0]) if files else {}
    base = None
    for name in ("resume", "fork"):
        if options.get(name):
            from jaxrl.runtime.run_folder import read_config

            base = read_config(options[name][0], _trusted_code(data, options))
            if name == "fork":  # a fork has a name and a parent of its own
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


def _name_algorithm(
    words: list[str], options: dict[str, list[str]]
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the configuration files among the positional arguments, at most one, and the options.

    The name of an algorithm (`jaxrl train ppo --env catch`) is an option that is written without
    its name. Raises `UserError` for words that name no configuration, with the command that was
    meant.
    """
    from jaxrl import envs

    if not words or (len(words) == 1 and configuration.is_configuration(words[0])):
        return words, options
    first, *rest = words
    algorithm, _, env = first.partition("/")
    is_path = ":" in first and "/" not in first
    if len(words) == 2 and algorithm == first and rest[0] in envs.names():
        raise UserError(f"Name the environment by --env: jaxrl train {first} --env {rest[0]}.")
    if rest:
        raise UserError(f"Give one configuration file, not {', '.join(words)}.")
    if first in envs.names():
        raise UserError(
            f"'{first}' is an environment; name an algorithm too: jaxrl train ppo --env {first}."
        )
    if first not in algorithms.names() and not is_path:
        if algorithm in algorithms.names() and env in envs.names():
            raise UserError(
                f"There is no configuration '{first}'; with the algorithm's defaults: "
                f"jaxrl train {algorithm} --env {env}."
            )
        shipped = configuration.shipped_files()
        raise unknown("configuration or algorithm", first, [*shipped, *algorithms.names()])
    if "algorithm" in options:
        raise UserError(f"The algorithm is given twice: {first}, and with --algorithm.")
    if not options.keys() & {"env", "resume", "fork", "help", "h"}:
        found = [name for name in configuration.shipped_files() if name.startswith(f"{first}/")]
        ways = [f"jaxrl train {first} --env ENV"]
        if found:
            ways.insert(0, f"jaxrl train {', '.join(found)}")
        raise UserError(f"Say in which environment '{first}' is trained: {', or '.join(ways)}.")
    return [], {"algorithm": [first], **options}


def positionals_and_options(
    argv: Sequence[str],
    kind: type[T],
    usage: str,
    is_positional: Callable[[str], bool],
    count: int = 1,
) -> tuple[list[str], T]:
    """Return the positional arguments in `argv`, and its options as an instance of `kind`.

    On `--help`, print the options and exit.

    Args:
        kind: a dataclass whose fields all have defaults.
        usage: the correct usage, for errors.
        is_positional: as in `split_words`.
        count: number of positional arguments; 0 for one or more.

    Raises:
        UserError: for anything that is not understood.
    """
    found, options = split_words(argv, option_types(kind), is_positional)
    if options.keys() & {"help", "h"}:
        _print_help(kind, kind(), usage)
    if len(found) != (count or max(1, len(found))):
        raise UserError(f"Got {len(found)} names ({', '.join(found) or 'none'}); usage: {usage}.")
    return found, configuration.override(kind(), nest(options, kind()))


@dataclasses.dataclass(frozen=True)
class _Consent:
    trust: bool = False


def _trusted_code(data: dict[str, Any], options: dict[str, list[str]]) -> Trust:
    """Return the code that the author of this file and these options agrees to import."""
    trust = {name: words for name, words in options.items() if _positive_name(name) == "trust"}
    if configuration.override(_Consent(), nest(trust, _Consent())).trust:
        return True
    words = [re.split(r"[=,\s]+", word) for words in options.values() for word in words]
    return configuration.foreign_code(data) | plugins.foreign(words)


def split_words(
    argv: Sequence[str],
    kinds: Mapping[str, Any] = types.MappingProxyType({}),
    is_positional: Callable[[str], bool] = lambda word: False,
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the positional arguments, and the words that follow each option (named with _ for -).

    Args:
        kinds: option -> type of its value, for the options that are known.
        is_positional: True for a word that is a positional argument wherever it stands, unless the
            option before it still needs a value.

    Raises:
        UserError: for an option that is given twice.
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
        elif is_positional(word) and (words or not _needs_word(kind, word)):
            positional.append(word)
        else:
            words.append(word)
    return positional, options


def is_folder(word: str) -> bool:
    """Return whether a word on the command line names a run's folder, which need not exist."""
    return Path(word).is_dir() or ("/" in word and "=" not in word)


def option_types(cls: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _needs_word(kind: Any, word: str) -> bool:
    """Return whether `word`, the first after an option of type `kind`, is the option's value.

    A flag needs no value, and a list or mapping may be empty.
    """
    if kind is bool:
        return word.lower() in ("true", "false")
    return kind is not None and typing.get_origin(kind) not in (tuple, dict)


def take_words(
    argv: Sequence[str], name: str, is_positional: Callable[[str], bool] = lambda word: False
) -> tuple[list[str], list[str]]:
    """Return the words that follow any `--name`, which may be repeated, and the words that remain.

    `is_positional` is as in `split_words`.
    """
    taken: list[str] = []
    rest: list[str] = []
    words = rest
    for word in argv:
        if word == f"--{name}":
            words = taken
        elif word.startswith(f"--{name}="):
            taken.append(word.partition("=")[2])
        else:
            more = words is taken and not word.startswith("--") and not is_positional(word)
            words = taken if more else rest
            words.append(word)
    return taken, rest


def nest(options: dict[str, list[str]], base: Any) -> dict[str, Any]:
    """Return options as nested dicts, each value as text of the structure of its setting.

    Names may be shortened (`settings.find_name`).
    """
    known = configuration.leaves(base)
    data: dict[str, Any] = {}
    for name, words in options.items():
        name, negated = (
            settings.find_name(x, known, root="agent") or x for x in (name, _positive_name(name))
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
        place[last] = _option_value(name, words, typing.get_args(kind)[1] if in_dict else kind)
    return data


def _positive_name(name: str) -> str:
    """Return `agent.x` for `agent.no_x` and `no_agent.x`, and any other name unchanged."""
    parent, dot, last = name.rpartition(".")
    if name.startswith("no_"):
        return name[3:]
    return parent + dot + last[3:] if last.startswith("no_") else name


def _option_value(name: str, words: list[str], kind: Any) -> Any:
    flag = f"--{name.replace('_', '-')}"
    if kind is bool and not words:
        return True
    origin = typing.get_origin(kind)
    if origin is tuple:
        return " ".join(words)
    if origin is dict:
        if len(words) % 2 == 0 and not any("=" in word for word in words):  # such as: force 20
            return dict(zip(words[::2], words[1::2], strict=True))
        if typing.get_args(kind)[1] is int:  # such as: seeds=2,batch=4
            words = [part for word in words for part in word.split(",")]
        pairs = [word.partition("=") for word in words]
        if not all(equals for _, equals, _ in pairs):
            raise UserError(f"{flag} needs pairs such as force=20, got '{' '.join(words)}'.")
        return {key: value for key, _, value in pairs}
    if len(words) != 1:
        raise UserError(f"{flag} needs one value, got {' '.join(words) or 'none'}.")
    return words[0]


def show_help(base: Experiment, description: str) -> typing.NoReturn:
    """Print every option with its default and meaning, and exit with code 0."""
    _print_help(Experiment[type(base.agent)], base, description)  # type: ignore[misc]


def _print_help(kind: Any, base: Any, description: str) -> typing.NoReturn:
    import tyro

    tyro.cli(kind, default=base, args=["--help"], description=description)
    raise SystemExit(0)
