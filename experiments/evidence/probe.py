"""Print what a checkout computes for a claim, for the comparison of two checkouts (`renaming`).

    python probe.py ROOT ID [--values]

Runs with the code of the checkout at ROOT, which may be older than this file: it calls only
`listing.discover`, `digests.digest`, `digests.as_json`, `records.programs`, `sides.trials`,
`sides.keys_of` and `measure.curve`, which must keep their names and arguments. Prints one JSON
object:

digest, declared: of the claim in this checkout.
programs: name -> [hash that a record has, hash without names of results, hash without their order].
whole: name -> hash of the whole program of a measuring function, or of an exact claim's errors;
    null if it cannot be traced, since it computes in NumPy.
values: name -> numbers of a tiny run, or of an exact claim's errors on all its seeds, if it could
    not be traced at first; everywhere with --values.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TINY_SEEDS = 2


def main(root: Path, id: str, everything: bool) -> dict[str, Any]:
    sys.path[0] = str(root)  # in place of the folder of this file
    import experiments
    import jaxrl

    for package in (jaxrl, experiments):
        path = (package.__file__ or next(iter(package.__path__))) or ""
        assert Path(path).resolve().is_relative_to(root.resolve()), path
    from experiments.evidence import digests, listing, records

    file = listing.discover(root)[id]
    declaration, others = file.load(), {}
    name = "short_hash" if hasattr(records, "short_hash") else "hashed"
    hash_of = getattr(records, name)

    def remember(*texts: str) -> str:
        """Hash as before, and keep hashes that ignore what a renaming of metrics may change."""
        found = hash_of(*texts)
        texts = tuple(re.sub(r"\{jax\.result_info = .*?\}", "", text) for text in texts)
        lines = (re.sub(r"[%@#][\w.]+", "", line) for text in texts for line in text.splitlines())
        unordered = sorted(" ".join(sorted(re.split(r"[\s,()]+", line))) for line in lines)
        others[found] = hash_of(*texts), hash_of(*unordered)
        return found

    setattr(records, name, remember)
    programs = records.programs(declaration, "full", root)
    whole, values = (_exact if hasattr(declaration, "errors") else _claim)(declaration, everything)
    return {
        "digest": digests.digest(file.path),
        "declared": digests.as_json(declaration),
        "programs": {name: [hash, *others[hash]] for name, hash in programs.items()},
        "whole": whole,
        "values": values,
    }


def _claim(claim: Any, everything: bool) -> tuple[dict, dict]:
    """Return the programs of a claim's measuring function in all trials, and values of tiny ones.

    The learning curve has no program here: `records.programs` has all of it.
    """
    import jax

    from experiments.evidence import measure, sides
    from jaxrl.core import random

    whole, values = {}, {}
    keys = jax.eval_shape(lambda: jax.random.split(random.key(0, random.PCG), TINY_SEEDS))
    for (place, side), trial in sides.trials(claim, "full").items():
        name, grid = f"{side} @ {place}", trial.side.grid
        if claim.measure:
            shapes = {name: jax.ShapeDtypeStruct((TINY_SEEDS,), "float32") for name in grid}
            run = lambda keys, hyper, trial=trial: claim.measure(trial, keys, hyper)
            whole[name] = _hash(run, keys, shapes)
        if everything or whole.get(name, "") is None:
            tiny, seeds = dataclasses.replace(trial, tiny=True), sides.keys_of(0, place, TINY_SEEDS)
            hyper = {
                name: jax.numpy.float32([tried[0]] * TINY_SEEDS) for name, tried in grid.items()
            }
            values[name] = _numbers((claim.measure or measure.curve)(tiny, seeds, hyper))
            if claim.measure:  # again, as it may have cached what it cannot trace
                whole[name] = _hash(run, keys, shapes)
    return whole, values


def _exact(exact: Any, everything: bool) -> tuple[dict, dict]:
    """Return the programs of an exact claim's errors and planted mistakes, and their values."""
    import jax

    from experiments.evidence import sides
    from jaxrl.core import random

    whole, values = {}, {}
    with jax.enable_x64(True):
        key = jax.eval_shape(lambda: random.key(0, random.PCG))
        for name, function in {"": exact.errors, **exact.planted}.items():
            whole[name] = _hash(function, key)
            if everything or whole[name] is None:
                seeds = sides.keys_of(0, "", TINY_SEEDS if name else exact.seeds)
                values[name] = [_numbers(function(key)) for key in seeds]
    return whole, values


def _hash(f: Callable, *shapes: Any) -> str | None:
    import jax

    from experiments.evidence import records

    name = "_program_hash" if hasattr(records, "_program_hash") else "_lowered"
    hash_of = getattr(records, name)
    try:
        return hash_of(f, *shapes)
    except jax.errors.JAXTypeError:
        return None


def _numbers(found: Any) -> dict[str, Any]:
    """Return metrics as numbers that print all their bits."""
    import numpy as np

    return {name: np.asarray(x, np.float64).tolist() for name, x in dict(found).items()}


if __name__ == "__main__":
    said = main(Path(sys.argv[1]), sys.argv[2], "--values" in sys.argv[3:])
    print(json.dumps(said))
