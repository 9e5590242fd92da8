"""Put the claims of the systems to the test, and write down what came out:

python experiments/systems/run.py [id ...] [--track T] [--seeds N] [--budget tiny|full|large]
                                  [--list] [--again]

A check is a file `experiments/systems/<track>/<id>.py` (with _ for -) with the constants PAPER
(title, authors, year, arxiv), CLAIM and PARTS, and a function `check(key, budget) -> Check`. Each
result is one line of results.jsonl, from which SYSTEMS.md is written; a tiny budget is not
recorded. What was recorded with this commit, budget and seeds is skipped unless --again is given.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import importlib
import json
import math
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a script, only this file's folder is there
    sys.path.insert(0, str(ROOT))

from jaxrl.core.errors import UserError, unknown  # noqa: E402
from jaxrl.runtime import command_line  # noqa: E402

SYSTEMS = ROOT / "experiments" / "systems"
RESULTS = SYSTEMS / "results.jsonl"
TABLE = ROOT / "SYSTEMS.md"
CONSTANTS = ("PAPER", "CLAIM", "PARTS")
FLAGS = ("list", "again")
VALUES = ("track", "seeds", "budget")


@dataclasses.dataclass(frozen=True)
class System:
    """A check that exists, as its file describes it."""

    id: str
    track: str
    path: Path
    paper: dict[str, Any]
    claim: str
    parts: tuple[str, ...]


# ------------------------------------------------------------------------------- what there is


def discover(folder: Path = SYSTEMS) -> dict[str, System]:
    """Every system with a check below `folder`, by id, ordered by track and id. Reads the files and
    runs none. Raises `UserError` where a constant is missing and where two have one id."""
    found: dict[str, System] = {}
    for path in sorted(folder.glob("*/*.py")):
        if path.name.startswith("_"):
            continue
        system = describe(path)
        if system.id in found:
            raise UserError(f"{path.name} is there twice, in {found[system.id].track} and "
                            f"{system.track}; an id names one check.")  # fmt: skip
        found[system.id] = system
    return found


def describe(path: Path) -> System:
    """What the constants of a check's file say; each must be a literal."""
    constants = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in CONSTANTS:
                constants[name] = ast.literal_eval(node.value)
    for name in CONSTANTS:
        if name not in constants:
            raise UserError(f"{path.parent.name}/{path.name} has no {name}; a check states "
                            f"{', '.join(CONSTANTS)} as literals.")  # fmt: skip
    return System(
        path.stem.replace("_", "-"),
        path.parent.name.replace("_", "-"),
        path,
        constants["PAPER"],
        constants["CLAIM"],
        tuple(constants["PARTS"]),
    )


def choose(systems: dict[str, System], ids: Sequence[str], track: str | None) -> list[System]:
    """The systems of these ids (all if there are none) that are in `track` (any if None). Raises
    `UserError` for an id or track that does not exist."""
    for name in ids:
        if name not in systems:
            raise unknown("system", name, systems)
    tracks = {s.track for s in systems.values()}
    if track is not None and track not in tracks:
        raise unknown("track", track, tracks)
    chosen = [systems[name] for name in dict.fromkeys(ids)] or list(systems.values())
    return [s for s in chosen if track in (None, s.track)]


# ------------------------------------------------------------------------------- what came out


def read_results(path: Path = RESULTS) -> list[dict[str, Any]]:
    """All recorded attempts, oldest first."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def append(path: Path, record: dict[str, Any]) -> None:
    """Add one result as one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")


def is_recorded(results: Iterable[dict[str, Any]], system: System, commit: str, budget) -> bool:
    """Whether a result of this system, commit and budget (and seeds, if asked for) is there. A tree
    with uncommitted changes has no commit of its own, so nothing counts as its result."""
    return commit.isalnum() and any(
        (r["id"], r["commit"], r["budget"]) == (system.id, commit, budget.name)
        and budget.seeds in (None, r["seeds"])
        for r in results
    )


def current_commit() -> str:
    """The commit that is checked out, with '-dirty' if code differs from it, '?' without git."""

    def git(*words: str) -> str:
        return subprocess.run(
            ("git", *words), cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        written = f":!{RESULTS.relative_to(ROOT)}"
        changed = git("status", "--porcelain", "--", "jaxrl", "experiments", written)
    except (OSError, subprocess.CalledProcessError):
        return "?"
    return f"{commit}-dirty" if changed else commit


# ------------------------------------------------------------------------------- the table


def table(systems: Iterable[System], results: Sequence[dict[str, Any]]) -> str:
    """The text of SYSTEMS.md: every system under its track, with its latest result."""
    systems = sorted(systems, key=lambda s: (s.track, s.id))
    attempts: dict[str, list[dict[str, Any]]] = {}
    for record in results:
        attempts.setdefault(record["id"], []).append(record)
    counts = dict.fromkeys(("holds", "does not hold", "inconclusive", "not run"), 0)
    for system in systems:
        counts[attempts[system.id][-1]["verdict"] if system.id in attempts else "not run"] += 1
    lines = [
        "# Systems",
        "",
        "Each system's claim, put to the test at a small scale. Written by "
        "`python experiments/systems/run.py`; every attempt is in "
        "[results.jsonl](experiments/systems/results.jsonl), the latest is here.",
        "",
        "Figures are means over seeds with 95 % intervals; the difference is taken seed by seed. "
        "*Off*: the same with the mechanism switched off. Each record names the commit that it was "
        "made by: what changed in its parts since then (`git diff COMMIT -- jaxrl`) may change its "
        "figures.",
        "",
        ", ".join(f"{n} {name}" for name, n in counts.items()) + ".",
    ]
    for track in dict.fromkeys(s.track for s in systems):
        lines += [
            "",
            f"## {track}",
            "",
            "| system | paper | parts | claim | measured against baseline | verdict |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_row(s, attempts.get(s.id, [])) for s in systems if s.track == track]
    return "\n".join(lines) + "\n"


def _row(system: System, attempts: Sequence[dict[str, Any]]) -> str:
    paper = system.paper
    cite = f"{paper['title']} ({paper['authors']}, {paper['year']})"
    if paper.get("arxiv"):
        cite += f", [{paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']})"
    cells = [
        f"[{system.id}](experiments/systems/{system.path.parent.name}/{system.path.name})",
        cite,
        "<br>".join(f"[{p}]({p})" for p in system.parts),
        system.claim,
        _figures(attempts[-1]) if attempts else "",
        _verdict(attempts),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _figures(record: dict[str, Any]) -> str:
    lines = [record["metric"], show(record["measured"]), show(record["baseline"])]
    if record["difference"]:
        lines.append(f"difference {show(record['difference'], '')}, margin {record['margin']:g}")
    elif record["margin"] is not None:
        lines.append(f"tolerance {record['margin']:g}")
    if record["ablation"]:
        lines.append(f"*off:* {show(record['ablation'])}")
    seeds, commit = record["seeds"], record["commit"][:7]
    lines.append(f"{seeds} seeds, {record['budget']} budget, {record['seconds']:.0f} s, {commit}")
    if record["details"]:
        parts = "<br>".join(show(figure) for figure in record["details"])
        lines[-1] += f"<details><summary>in detail</summary>{parts}</details>"
    return "<br>".join(lines)


def _verdict(attempts: Sequence[dict[str, Any]]) -> str:
    if not attempts:
        return "not run"
    count = f" ({len(attempts)} attempts)" if len(attempts) > 1 else ""
    return f"**{attempts[-1]['verdict']}**{count}"


def show(figure: dict[str, Any], name: str | None = None) -> str:
    """A recorded figure as `name value [low, high]`."""
    value, low, high = (
        "?" if x is None or not math.isfinite(x) else f"{x:.3g}"
        for x in (figure["value"], figure["low"], figure["high"])
    )
    return f"{figure['name'] if name is None else name} {value} [{low}, {high}]".strip()


# ------------------------------------------------------------------------------- running


def run_one(system: System, budget, seed: int = 0) -> dict[str, Any]:
    """Run the check of one system: the record of its result."""
    import jax

    from experiments.systems.check import as_data
    from jaxrl.core import random

    module = importlib.import_module(f"experiments.systems.{system.path.parent.name}."
                                     f"{system.path.stem}")  # fmt: skip
    began = time.perf_counter()
    data = as_data(module.check(random.key(seed), budget))
    seconds = time.perf_counter() - began
    device = jax.devices()[0]
    kind = f"{device.device_kind} x {jax.device_count()}"
    return {
        "id": system.id,
        "track": system.track,
        "verdict": data.pop("verdict"),
        "holds": data.pop("holds"),
        **data,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": current_commit(),
        "device": f"{os.cpu_count()} CPU cores" if device.platform == "cpu" else kind,
        "generator": random.default_generator(),
        "seconds": round(seconds, 1),
    }


def run_all(chosen: Sequence[System], budget, again: bool, results: Path = RESULTS) -> int:
    """Run the checks one after the other, recording each as it ends; 1 if any of them raised."""
    known, failed = read_results(results), []
    for number, system in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {system.id} ({system.track})", flush=True)
        if not again and is_recorded(known, system, current_commit(), budget):
            print("    recorded with this commit already; --again runs it once more")
            continue
        try:
            record = run_one(system, budget)
        except Exception:
            traceback.print_exc()
            failed.append(system.id)
            continue
        if budget.name != "tiny":
            append(results, record)
        for key in ("measured", "baseline", "difference", "ablation"):
            if record[key]:
                print(f"    {show(record[key])}")
        print(f"    {record['verdict']}, {record['seconds']:.0f} s", flush=True)
    if failed:
        print(f"error: {len(failed)} of {len(chosen)} raised: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


# ------------------------------------------------------------------------------- command line


def parse(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Ids and options; raises `UserError` for an option that is unknown or lacks its value."""
    ids, words = command_line.split(argv)
    options = {}
    for name, following in words.items():
        if name in FLAGS:
            options[name] = ""
            ids += following
        elif name not in VALUES:
            raise unknown("option", f"--{name}", [f"--{n}" for n in FLAGS + VALUES])
        elif not following:
            raise UserError(f"--{name} needs a value.")
        else:
            options[name] = following[0]
            ids += following[1:]
    return ids, options


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    ids, options = parse(argv)
    systems = discover()
    chosen = choose(systems, ids, options.get("track"))
    if "list" in options:
        verdicts = {r["id"]: r["verdict"] for r in read_results()}
        for s in chosen:
            print(f"{s.track:<24} {s.id:<28} {verdicts.get(s.id, 'not run')}")
        return 0
    from experiments.systems.check import Budget

    seeds = options.get("seeds")
    if seeds is not None and not seeds.isdecimal():
        raise UserError(f"--seeds is a whole number from 1 on, not '{seeds}'.")
    budget = Budget(options.get("budget", "full"), None if seeds is None else int(seeds))
    code = run_all(chosen, budget, "again" in options)
    TABLE.write_text(table(systems.values(), read_results()), encoding="utf-8")
    return code


if __name__ == "__main__":
    command_line.run(main)
