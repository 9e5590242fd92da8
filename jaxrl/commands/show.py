"""Describe an environment, an algorithm or a wrapper, with its settings: `jaxrl show cartpole`."""

from __future__ import annotations

import inspect
import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence

from jaxrl.core.errors import UserError, unknown


def main(argv: Sequence[str]) -> int:
    usage = "jaxrl show ENV_OR_ALGORITHM_OR_WRAPPER"
    if {"-h", "--help"} & set(argv):
        print(usage)
        return 0
    if len(argv) != 1:
        raise UserError(f"Give one name, not {len(argv)}; usage: {usage}.")
    (name,) = argv
    from jaxrl import envs
    from jaxrl.algorithms import registry
    from jaxrl.envs.wrappers import registry as wrappers

    known = [*envs.names(), *registry.names(), *wrappers.names()]
    if name not in known and not any(mark in name for mark in ":/"):
        raise unknown("environment, algorithm or wrapper", name, known)
    kinds = ((algorithm, registry.names()), (wrapper, wrappers.names()))
    describe = next((lines for lines, names in kinds if name in names), environment)
    lines = describe(name)
    print("\n".join(lines))
    return 0


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
