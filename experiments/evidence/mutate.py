"""Whether the verdict of a check sees that its mechanism is broken."""

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
from experiments.evidence.declare import Check, Exact, Mutation
from jaxrl.core.errors import UserError

OURS = ("jaxrl", "experiments")  # packages that keep what they built
Cached = type(functools.cache(lambda: None))


def mutate(
    check: Check,
    begun: Mapping[str, Any],
    tuning_root: int,
    store: Path,
    readers: attempt.Readers,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[str], None] = lambda line: None,
    best: Mapping[str, Mapping[str, Any]] = {},
) -> list[dict[str, Any]]:
    """Of each mutation of a check: {name, before, after (verdicts), seen, said (in a sentence)}.

    Takes what `attempt.run` takes, and goes on from an interruption as that does. Runs have seeds
    of their own, so that none is seen that an attempt may report, and the settings that are best
    while nothing is broken: `best` [environment][side], as a record has them, and tuned anew
        without.
    """
    parts = attempt.parts_of(begun, store, f"mutations-{begun['budget']}", clock, tell)
    hashed = hashlib.sha256(f"mutations of {tuning_root}".encode()).digest()
    root, seeds = int.from_bytes(hashed[:4]), attempt.seeds_of(begun)
    if not isinstance(check, Exact):
        tried = sides.trials(check, begun["budget"])
        known = {
            (environment, side): {"best": best[environment][side]}
            for environment, side in tried
            if best
        }
        tuned = known or sides.tune(check, tried, tuning_root, parts)

    def verdict(phase: str) -> str:
        if isinstance(check, Exact):
            return attempt.exact(check, seeds, root, parts, readers, f"{phase}: ")["verdict"]
        values = sides.report(check, tried, tuned, root, seeds, parts, phase)
        environments = sides.environments_of(tried)
        return attempt.judged(check, environments, values, begun["level"], 0.0, readers)["verdict"]

    before, found = verdict("unbroken"), []
    for mutation in check.mutations:
        name = mutation.name
        with mutated(mutation):
            after = verdict(f"mutation {name}")
        seen = after != before
        if seen:
            said = f"The verdict sees '{name}': it turns from '{before}' to '{after}'."
        else:
            said = f"The verdict does not see '{name}': it is '{before}' with it and without."
        found.append({"name": name, "before": before, "after": after, "seen": seen, "said": said})
    return found


@contextlib.contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """While it lasts, what the mutation makes of an attribute stands in its place: a function or
    class in every module that was imported and holds it; what is neither, or an attribute of a
    class or an object, where it is named alone. Nothing that was compiled or built before is used,
    nor afterwards what was built meanwhile.

    Raises `UserError` where there is no such attribute.
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
    """Every module, and its name there, that holds `original`."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            yield from ((module, name) for name, x in list(vars(module).items()) if x is original)


def _put(places: Iterable[tuple[Any, str]], value: Any) -> None:
    for holder, name in places:
        # Of a frozen dataclass too.
        put = type.__setattr__ if isinstance(holder, type) else object.__setattr__
        put(holder, name, value)


def _forget(package: str) -> None:
    """Drops all that was compiled, and what functions of ours built and keep."""
    jax.clear_caches()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in (*OURS, package):
            for value in list(vars(module).values()):
                if isinstance(value, Cached):
                    value.cache_clear()
