"""Mutations: does the verdict of a claim notice that its mechanism is broken?

Only what is broken runs: the side of the mechanism, on the first of the reported seeds, against the
recorded values of the other sides on the same seeds.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from experiments.evidence import attempt, measure, sides
from experiments.evidence.declare import Claim, Declaration, Exact, Mutation
from experiments.evidence.estimators import MIN_SEEDS
from experiments.evidence.history import level_of_look
from jaxrl.core.errors import UserError, unknown

OURS = ("jaxrl", "experiments")  # packages that cache what they build
Cached = type(functools.cache(lambda: None))
FEWEST = 8  # seeds; doubled until the recorded values give the recorded verdict


def mutate(
    declaration: Declaration,
    ended: Mapping[str, Any],
    readers: attempt.Readers,
    tell: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Try each mutation: {name, side, seeds, before, after (verdicts), seen, said} each.

    ended: the record of the attempt that the verdict is of, in today's names. before: its verdict
    on as many seeds. Raises `UserError` for a mutation of a side that does not exist.
    """
    if isinstance(declaration, Exact):
        return [
            _of_equality(declaration, ended, mutation, readers)
            for mutation in declaration.mutations
        ]
    found = []
    seeds, before = _fewest(declaration, ended, readers)
    for mutation in declaration.mutations:
        side = mutation.side or declaration.clauses[0].one
        if side not in declaration.sides:
            raise unknown(f"side of the mutation '{mutation.name}'", side, declaration.sides)
        values = sides.first_seeds(ended["values"], seeds)
        with apply(mutation):
            for (environment, name), trial in sides.trials(declaration, ended["budget"]).items():
                if name == side:
                    keys = sides.keys_of(ended["seed_root"], environment, ended["seeds"])[:seeds]
                    best = ended["tuned"][environment][side]
                    run = declaration.measure or measure.curve
                    values[environment][side] = measure.run(run, trial, keys, best)
                    tell(f"{mutation.name}: {side} in {environment} on {seeds} seeds")
        after = _verdict(declaration, ended, values, readers)
        found.append(_describe(mutation.name, side, seeds, before, after))
    return found


def _describe(name: str, side: str, seeds: int, before: str, after: str) -> dict[str, Any]:
    seen = after != before
    change = (
        f"changes from '{before}' to '{after}'" if seen else f"is '{before}' with it and without"
    )
    said = f"The verdict {'notices' if seen else 'does not notice'} '{name}': on {seeds} seeds it "
    return {"name": name, "side": side, "seeds": seeds, "before": before, "after": after,
            "seen": seen, "said": f"{said}{change}."}  # fmt: skip


def _of_equality(exact: Exact, ended, mutation: Mutation, readers) -> dict[str, Any]:
    root, seeds = ended["seed_root"], min(MIN_SEEDS, ended["seeds"])
    planted = {name: row[:seeds] for name, row in ended["planted"].items()}
    with apply(mutation):
        errors = attempt.errors_of(exact.errors, seeds, root)
    after = readers.judge_exact(exact, errors, planted).verdict
    return _describe(mutation.name, "", seeds, ended["verdict"], after)


def _verdict(claim: Claim, ended, values, readers) -> str:
    environments = sides.environments_of(sides.trials(claim, ended["budget"]))
    level = level_of_look(ended["level"], ended.get("groups", 1))
    return attempt.verdict_of(claim, environments, values, level, 0.0, readers)["verdict"]


def _fewest(claim: Claim, ended, readers) -> tuple[int, str]:
    """Return how many seeds suffice for the recorded verdict, and the verdict on these."""
    seeds = min(FEWEST, ended["seeds"])
    while True:
        verdict = _verdict(claim, ended, sides.first_seeds(ended["values"], seeds), readers)
        if verdict == ended["verdict"] or seeds == ended["seeds"]:
            return seeds, verdict
        seeds = min(2 * seeds, ended["seeds"])


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
