"""Mutations: does the verdict of a claim notice that its mechanism is broken?"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from experiments.evidence import attempt, sides
from experiments.evidence.declare import Declaration, Exact, Mutation
from jaxrl.core.errors import UserError

OURS = ("jaxrl", "experiments")  # packages that cache what they build
Cached = type(functools.cache(lambda: None))


def mutate(
    declaration: Declaration,
    begun: Mapping[str, Any],
    tuning_root: int,
    store: Path,
    readers: attempt.Readers,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[str], None] = lambda line: None,
    best: Mapping[str, Mapping[str, Any]] = {},
) -> list[dict[str, Any]]:
    """Try each mutation: {name, before, after (verdicts), seen, said (in a sentence)} each.

    Takes the arguments of `attempt.run`, and resumes after an interruption as that does. Runs have
    seeds of their own, so that none is used that an attempt may report, and the settings that are
    best while nothing is broken.

    best: these settings [environment][side], as a record has them; tuned anew if empty.
    """
    parts = attempt.parts_of(begun, store, f"mutations-{begun['budget']}", clock, tell)
    bits = hashlib.sha256(f"mutations of {tuning_root}".encode()).digest()
    root, seeds = int.from_bytes(bits[:4]), attempt.seeds_of(begun)
    if not isinstance(declaration, Exact):
        tried = sides.trials(declaration, begun["budget"])
        known = {
            (environment, side): {"best": best[environment][side]}
            for environment, side in tried
            if best
        }
        tuned = known or sides.tune(declaration, tried, tuning_root, parts)

    def verdict(phase: str) -> str:
        if isinstance(declaration, Exact):
            return attempt.exact(declaration, seeds, root, parts, readers, f"{phase}: ")["verdict"]
        values = sides.report(declaration, tried, tuned, root, seeds, parts, phase)
        environments = sides.environments_of(tried)
        judged = attempt.verdict_of(declaration, environments, values, begun["level"], 0.0, readers)
        return judged["verdict"]

    before, found = verdict("unbroken"), []
    for mutation in declaration.mutations:
        name = mutation.name
        with apply(mutation):
            after = verdict(f"mutation {name}")
        seen = after != before
        if seen:
            said = f"The verdict notices '{name}': it changes from '{before}' to '{after}'."
        else:
            said = f"The verdict does not notice '{name}': it is '{before}' with it and without."
        found.append({"name": name, "before": before, "after": after, "seen": seen, "said": said})
    return found


@contextlib.contextmanager
def apply(mutation: Mutation) -> Iterator[None]:
    """Put the mutated value in place of an attribute, and back at the end.

    A function or class is replaced in every imported module that holds it; anything else, or an
    attribute of a class or an object, only where it is named. Nothing that was compiled or built
    before is used meanwhile, and nothing from meanwhile is used afterwards.

    Raises `UserError` if there is no such attribute.
    """
    module, _, path = mutation.where.partition(":")
    *outer, name = path.split(".")
    try:
        holder = functools.reduce(getattr, outer, importlib.import_module(module))
        original = vars(holder)[name]
    except (ImportError, AttributeError, KeyError):
        raise UserError(
            f"The mutation '{mutation.name}' is of '{mutation.where}', which does not exist."
        ) from None
    places = [(holder, name)] if outer or not callable(original) else list(_holding(original))
    try:
        _put(places, mutation.change(original))
        _forget(module.partition(".")[0])
        yield
    finally:
        _put(places, original)
        _forget(module.partition(".")[0])


def _holding(original: Any) -> Iterator[tuple[Any, str]]:
    """Return every module that holds `original`, with its name there."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            yield from ((module, name) for name, x in list(vars(module).items()) if x is original)


def _put(places: Iterable[tuple[Any, str]], value: Any) -> None:
    for holder, name in places:
        # These also set attributes of a frozen dataclass.
        put = type.__setattr__ if isinstance(holder, type) else object.__setattr__
        put(holder, name, value)


def _forget(package: str) -> None:
    """Clear all compiled programs, and the caches of our functions and of `package`."""
    jax.clear_caches()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in (*OURS, package):
            for value in list(vars(module).values()):
                if isinstance(value, Cached):
                    value.cache_clear()
