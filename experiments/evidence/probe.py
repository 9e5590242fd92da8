"""Print what a checkout computes for a claim, for the comparison of two checkouts (`renaming`).

    python probe.py ROOT ID

Runs with the code of the checkout at ROOT, which may be older than this file: it calls only
`listing.discover`, `digests.digest`, `digests.as_json`, `records.programs`, `sides.trials`,
`sides.keys_of` and `measure.curve`, which must keep their names and arguments. Prints one JSON
object:

digest, declared: of the claim in this checkout.
programs: name -> [hash that a record has, hash of the dataflow (`canonical`)].
whole: name -> hash of the dataflow of a measuring function, or of an exact claim's errors; null if
    it cannot be traced, since it computes in NumPy.
values: name -> numbers of a tiny run, or of an exact claim's errors on all its seeds, if it could
    not be traced at first.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TINY_SEEDS = 2
FOUND: dict[str, str] = {}  # hash of a program that a record would have -> of its dataflow


def main(root: Path, id: str) -> dict[str, Any]:
    sys.path[0] = str(root)  # in place of the folder of this file
    import experiments
    import jaxrl

    for package in (jaxrl, experiments):
        path = (package.__file__ or next(iter(package.__path__))) or ""
        assert Path(path).resolve().is_relative_to(root.resolve()), path
    from experiments.evidence import digests, listing, records

    file = listing.discover(root)[id]
    declaration = file.load()
    name = "short_hash" if hasattr(records, "short_hash") else "hashed"
    hash_of = getattr(records, name)

    def remember(*texts: str) -> str:
        """Hash as before, and keep the hash of the dataflow."""
        found = hash_of(*texts)
        FOUND[found] = canonical(texts[0]) if texts[0].startswith("module ") else found
        return found

    setattr(records, name, remember)
    programs = records.programs(declaration, "full", root)
    whole, values = (_exact if hasattr(declaration, "errors") else _claim)(declaration)
    return {
        "digest": digests.digest(file.path),
        "declared": digests.as_json(declaration),
        "programs": {name: [hash, FOUND[hash]] for name, hash in programs.items()},
        "whole": whole,
        "values": values,
    }


def _claim(claim: Any) -> tuple[dict, dict]:
    """Return the programs of a claim's measuring function in all trials, and values of tiny ones.

    The learning curve has no program here: `records.programs` has all of it.
    """
    import jax

    from experiments.evidence import sides
    from jaxrl.core import random

    whole, values = {}, {}
    keys = jax.eval_shape(lambda: jax.random.split(random.key(0, random.PCG), TINY_SEEDS))
    for (place, side), trial in sides.trials(claim, "full").items() if claim.measure else ():
        name, grid = f"{side} @ {place}", trial.side.grid
        shapes = {name: jax.ShapeDtypeStruct((TINY_SEEDS,), "float32") for name in grid}
        run = lambda keys, hyper, trial=trial: claim.measure(trial, keys, hyper)
        whole[name] = _hash(run, keys, shapes)
        if whole[name] is None:
            tiny, seeds = dataclasses.replace(trial, tiny=True), sides.keys_of(0, place, TINY_SEEDS)
            hyper = {k: jax.numpy.float32([tried[0]] * TINY_SEEDS) for k, tried in grid.items()}
            values[name] = _numbers(claim.measure(tiny, seeds, hyper))
            whole[name] = _hash(run, keys, shapes)  # again, as it may have cached what it needs
    return whole, values


def _exact(exact: Any) -> tuple[dict, dict]:
    """Return the programs of an exact claim's errors and planted mistakes, and their values."""
    import jax

    from experiments.evidence import sides
    from jaxrl.core import random

    whole, values = {}, {}
    with jax.enable_x64(True):
        key = jax.eval_shape(lambda: random.key(0, random.PCG))
        for name, function in {"": exact.errors, **exact.planted}.items():
            whole[name] = _hash(function, key)
            if whole[name] is None:
                seeds = sides.keys_of(0, "", TINY_SEEDS if name else exact.seeds)
                values[name] = [_numbers(function(key)) for key in seeds]
    return whole, values


def _hash(f: Callable, *shapes: Any) -> str | None:
    import jax

    from experiments.evidence import records

    name = "_program_hash" if hasattr(records, "_program_hash") else "_lowered"
    hash_of = getattr(records, name)
    try:
        return FOUND[hash_of(lambda *args: f(*args), *shapes)]
    except jax.errors.JAXTypeError:
        return None


def _numbers(found: Any) -> dict[str, Any]:
    """Return metrics as numbers that print all their bits."""
    import numpy as np

    return {name: np.asarray(x, np.float64).tolist() for name, x in dict(found).items()}


# ------------------------------------------------------------------------------- dataflow

VALUE = re.compile(r"(%\w+)(#\d+)?")
SYMBOL = re.compile(r"@[\w.]+")
CONTINUES = ("cond {", "reducer(", "}", "^bb")  # an operation that began on an earlier line


def canonical(program: str) -> str:
    """Return a hash of what a lowered program computes, whatever its names and order of lines.

    An operation is hashed with the hashes of its operands, regions and callees in place of their
    names, and a function by what it returns. So two programs have one hash if they apply the same
    operations to the same values. Names of results do not count.
    """
    program = re.sub(r"\{jax\.result_info = .*?\}", "", program)
    functions: dict[str, list[str]] = {}
    public, lines = "", []
    for line in program.splitlines():
        if found := re.match(r"\s*func\.func (\w+) (@[\w.]+)\(", line):
            lines = functions[found[2]] = []
            public = found[2] if found[1] == "public" else public
        lines.append(line.strip())
    known: dict[str, str] = {}

    def of_function(name: str) -> str:
        """Return the hash of a function; other symbols stand for themselves."""
        if name in functions and name not in known:
            header, *body = functions[name]
            arguments = dict.fromkeys(own for own, _ in VALUE.findall(header))
            names = {own: f"argument {i}" for i, own in enumerate(arguments)}
            types = VALUE.sub("", SYMBOL.sub("", header))
            known[name] = _digest(types, _block(_body(body), names, 0, of_function))
        return known.get(name, name)

    return of_function(public)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _body(lines: Sequence[str]) -> list[str]:
    """Return the lines before the brace that closes an open region."""
    depth = 0
    for i, line in enumerate(lines):
        depth -= line.startswith("}")
        if depth < 0:
            return list(lines[:i])
        depth += line.endswith("{")
    raise AssertionError("a region is not closed")


def _operation(lines: Sequence[str]) -> tuple[list[str], list[list[str]], int]:
    """Return the first operation: its own lines, its regions, and how many lines it has."""
    own, regions, i = [lines[0]], [], 0
    while True:
        opens = lines[i].endswith("{")
        i += 1
        if opens:
            regions.append(_body(lines[i:]))
            i += len(regions[-1])
        elif i == len(lines) or not lines[i].startswith(CONTINUES):
            return own, regions, i
        own.append(lines[i])


def _block(
    lines: Sequence[str], names: Mapping[str, str], depth: int, of_function: Callable[[str], str]
) -> str:
    """Return the hash of what a block computes: of its last operation, and of those for effect.

    names: hashes of the values that are known before it.
    """
    names, effects, last = dict(names), [], ""
    while lines:
        own, regions, count = _operation(lines)
        lines = lines[count:]
        defined, own[0] = _definition(own[0])
        carried = re.findall(r"(%\w+) = ", own[0])  # by a loop
        reduced = [name for text in own if text.startswith("reducer(")
                   for name, _ in VALUE.findall(text)]  # fmt: skip
        parts = []
        for body in regions:
            arguments = carried or reduced
            if body and body[0].startswith("^bb"):
                arguments, body = [name for name, _ in VALUE.findall(body[0])], body[1:]
            inner = names | {name: f"{depth} {i}" for i, name in enumerate(arguments)}
            parts.append(_block(body, inner, depth + 1, of_function))
        bound = names | dict.fromkeys((*carried, *reduced), "")
        texts = [VALUE.sub(lambda x, bound=bound: bound[x[1]] + (x[2] or ""), text) for text in own]
        texts = [SYMBOL.sub(lambda x: of_function(x[0]), text) for text in texts]
        last = _digest(*texts, *parts)
        names |= {name: f"{last} {i}" for i, name in enumerate(defined)}
        if not defined:
            effects.append(last)
    return _digest(*sorted(effects[:-1]), last)


def _definition(line: str) -> tuple[list[str], str]:
    """Split the names of an operation's results from the rest: `%0:2 = f(%1)`, `%a, %b = f(%1)`."""
    found = re.match(r"(%\w+(?::\d+)?(?:, %\w+)*) = ", line)
    return (re.findall(r"%\w+", found[1]), line[found.end() :]) if found else ([], line)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
