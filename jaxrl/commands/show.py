"""Describe an environment, an algorithm, a wrapper, a loss or a configuration:
`jaxrl show cartpole`."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jaxrl
from jaxrl.core.aliases import aliases
from jaxrl.core.errors import UserError, unknown


def main(argv: Sequence[str]) -> int:
    usage = "jaxrl show NAME (an environment, algorithm, wrapper, loss or configuration)"
    if {"-h", "--help"} & set(argv):
        print(usage)
        return 0
    if len(argv) != 1:
        raise UserError(f"Give one name, not {len(argv)}; usage: {usage}.")
    (name,) = argv
    print("\n".join(_describe(name)))
    return 0


def _describe(name: str) -> Iterator[str]:
    """Return the lines that describe whatever is called `name`. Raises `UserError`."""
    from jaxrl import envs
    from jaxrl.algorithms import registry
    from jaxrl.envs.wrappers import registry as wrappers
    from jaxrl.runtime import configuration, policy_files

    known = {
        algorithm: registry.names(),
        wrapper: wrappers.names(),
        environment: envs.names(),
        loss: losses(),
    }
    for lines, names in known.items():
        if name in names:
            return lines(name)
    if configuration.is_configuration(name):
        return config(name)
    if found := {x.casefold(): x for x in aliases()}.get(name.casefold()):
        return alias(found)
    if ":" in name and "/" not in name:
        return algorithm(name) if _is_algorithm(name) else environment(name)
    if "/" in name:
        if name.startswith(policy_files.PREFIX):
            raise UserError(
                f"'{name}' is a policy; see `jaxrl list pretrained` and `jaxrl evaluate {name}`."
            )
        if name.partition("/")[0] in registry.names():
            raise unknown("configuration", name, configuration.shipped_files())
        return environment(name)  # of another package
    every = [*itertools.chain(*known.values()), *aliases()]
    raise unknown("environment, algorithm, wrapper or loss", name, every)


def _is_algorithm(path: str) -> bool:
    """Return whether `module:attribute` is an algorithm, not an environment."""
    from jaxrl.core import plugins
    from jaxrl.core.types import Algorithm
    from jaxrl.kit import AlgorithmBuilder, DirectBuilder

    kinds = (AlgorithmBuilder, DirectBuilder)
    value = plugins.find("environment or algorithm", path, {}, lambda x: isinstance(x, kinds))
    return isinstance(value, kinds) or plugins.type_hints(value).get("return") is Algorithm


def losses() -> dict[str, Callable[..., Any]]:
    """Return the functions of `jaxrl.losses` by name."""
    from jaxrl import losses as room

    public = {name: value for name, value in vars(room).items() if not name.startswith("_")}
    return {name: value for name, value in public.items() if inspect.isfunction(value)}


def loss(name: str) -> Iterator[str]:
    """Describe a loss by its signature, docstring and source."""
    function = inspect.unwrap(losses()[name])
    signature = str(inspect.signature(function)).replace("'", "")  # annotations are strings
    yield f"jaxrl.losses.{name}{signature}\n"
    yield f"{inspect.getdoc(function)}\n"
    file = Path(inspect.getfile(function)).relative_to(Path(jaxrl.__file__).parents[1])
    lines, first = inspect.getsourcelines(function)
    yield f"Source, {file.as_posix()}, line {first}:\n"
    (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
    assert isinstance(tree, ast.FunctionDef)
    body = tree.body[1].lineno - 1 if ast.get_docstring(tree) and len(tree.body) > 1 else 0
    yield "".join(lines[body:]).rstrip()


def alias(name: str) -> Iterator[str]:
    """Describe whatever is meant by a name that people type, such as SimPO."""
    here = aliases()[name]
    if isinstance(here, str):
        yield f"{name}: {here}"
        return
    algorithms = [
        f"; jaxrl show {x[7:]} describes the algorithm" for x in here if x[:7] == "agents."
    ]
    others = [x for x in here if not x.startswith("agents.")]
    yield f"{name} is here as {', '.join(others) or 'an algorithm'}{''.join(algorithms)}.\n"
    for function in (x for x in here if x in losses()):
        yield from (*loss(function), "")


def config(name: str) -> Iterator[str]:
    """Describe a configuration by its file and the command that trains it."""
    from jaxrl.runtime import configuration

    yield configuration.find(name).read_text(encoding="utf-8")
    yield f"Train with it: jaxrl train {name}"
    yield f"All settings: jaxrl train {name} --help"


def environment(name: str) -> Iterator[str]:
    from jaxrl import envs
    from jaxrl.envs import describe

    env = envs.make(name)
    yield from (f"{text}\n" for text in describe.texts(name))
    yield f"observation: {_spaces(env.observation_space)}"
    yield f"action:      {_spaces(env.action_space)}"
    yield f"time limit:  {f'{env.max_steps} steps' if env.max_steps else 'none'}"
    settings = describe.settings(name)
    if settings:
        yield "\nSettings (--env-params NAME=VALUE; those marked * may differ between copies):"
    for setting in settings:
        mark = "*" if setting.of == "params" else " "
        yield from _setting_lines(f"{mark} {setting.name} = {setting.default}", setting.meaning)


def wrapper(name: str) -> Iterator[str]:
    from jaxrl.envs import wrappers
    from jaxrl.envs.wrappers import registry

    yield f"{inspect.getdoc(getattr(wrappers, name))}\n"
    arguments = [
        f"{p.name}: {'VALUE' if p.default in (p.empty, None) else json.dumps(p.default)}"
        for p in registry.arguments(name).values()
    ]
    named = f"'[{{{name}: {{{', '.join(arguments)}}}}}]'" if arguments else name
    yield f"--wrappers {named}"


def algorithm(name: str) -> Iterator[str]:
    from jaxrl.algorithms import describe, registry
    from jaxrl.runtime import configuration

    yield f"{describe.text(name)}\n"
    config = registry.default_config(name)
    yield "Settings (--NAME VALUE; --vary sweeps those marked * in one program):"
    for setting in describe.settings(config):
        mark = "*" if setting.swept else " "
        between = f"  ({setting.range})" if setting.range else ""
        first = f"{mark} {setting.name} = {setting.default}{between}"
        yield from _setting_lines(first, setting.meaning)
    groups = describe.groups(config)
    if groups:
        yield "\nWhy these defaults:"
        for group, why in groups.items():
            yield from _setting_lines(f"  {group}", why)
    found = [
        shipped
        for shipped, path in configuration.shipped_files().items()
        if configuration.load(path).get("algorithm") == name
    ]
    if found:
        yield f"\nConfigurations: {', '.join(found)}"


def _spaces(space: object) -> str:
    from jaxrl.envs import describe

    if isinstance(space, dict):
        return "; ".join(f"{name}: {_spaces(part)}" for name, part in space.items())
    return describe.space(space).strip("`")  # type: ignore[arg-type]


def _setting_lines(first: str, meaning: str) -> list[str]:
    width = min(shutil.get_terminal_size().columns, 100)
    indented = textwrap.wrap(
        meaning, width, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
    )
    return [first, *indented]
