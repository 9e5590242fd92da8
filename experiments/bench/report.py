"""Tables of what was measured: medians, ratios with intervals, and the targets."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.evaluation import statistics as intervals

# What is measured of a run of any size, by its name in the result.
MEASURES = {"update_s": "seconds per update", "peak_mib": "memory, MiB", "compile_s": "compile, s"}
Record = dict[str, Any]
Number = float | None

OURS, PEER, PLAIN = "jaxrl", "rejax", "jaxrl threefry, exact"

# name in a worker's result -> heading
SPEED_ROWS = {
    "median_steps_per_s": "env-steps/s",
    "median_cpu_us": "CPU us/step",
    "import_s": "import s",
    "compile_s": "trace + compile s",
    "compile_cpu_s": "trace + compile CPU s",
    "trace_part_s": "- build, trace, lower",
    "xla_s": "- XLA",
    "ready_s": "import, trace and compile s",
    "first_result_s": "first result s",
    "peak_mib": "peak memory MiB",
    "device_peak_mib": "device memory MiB",
    "final_return": "final return",
}
NO_RATIO = {"final_return"}

# The same of a worker that writes answers and learns from them.
TOKEN_ROWS = {
    "rollout_tokens_per_s": "rollout, tokens/s",
    "update_tokens_per_s": "update, tokens/s",
    "update_answers_per_s": "update, answers/s",
    "tokens_per_s": "both, tokens/s",
    "first_turn_s": "first turn, s",
    "peak_mib": "peak memory, MiB",
}

SPEED_TARGETS = {4: 1.25, 64: 1.75, 1024: 2.0, 4096: 2.0}
COST_TARGETS = {"compile_s": 0.8, "peak_mib": 1.0}
FIRST_RESULT_ENVS, FIRST_RESULT_TARGET = 64, 1.0
MANY_SEEDS = 128
SWEEP_SEEDS, SWEEP_TARGET = 32, 0.8


def derive(result: Record) -> Record:
    """`result` with the figures that follow from others."""
    found = dict(result)
    if "cpu_us_per_step" in result:
        found["median_cpu_us"] = statistics.median(result["cpu_us_per_step"])
    if "xla_s" in result:
        found["trace_part_s"] = result["compile_s"] - result["xla_s"]
        found["ready_s"] = result["import_s"] + result["compile_s"]
    return found


# ------------------------------------------------------------------------------- statistics


def interval(values: Sequence[float], draws: int = 4000) -> tuple[float, float]:
    """95 % bootstrap interval of the median; the extremes where there are fewer than five."""
    if len(values) < 5:
        return min(values), max(values)
    generator = random.Random(0)
    medians = sorted(
        statistics.median(generator.choices(values, k=len(values))) for _ in range(draws)
    )
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def values(records: Iterable[Record], name: str, **where: Any) -> dict[int, float]:
    """round -> the figure `name`, of the records that have it and fit `where`."""
    return {
        r["round"]: r["result"][name]
        for r in records
        if fits(r, where) and r["result"].get(name) is not None
    }


def fits(record: Record, where: Record) -> bool:
    return all(record.get(k) == v for k, v in where.items())


def ratios(over: dict[int, float], under: dict[int, float]) -> list[float]:
    """Return records of the same round, whose processes ran one after the other."""
    return [over[i] / under[i] for i in sorted(over.keys() & under.keys()) if under[i]]


# ---------------------------------------------------------------------------------- printing


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def number(x: float) -> str:
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if abs(x) >= size:
            return f"{x / (size if letter == 'M' else 1e3):.4g}{letter}"
    return f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"


def spread(figures: Sequence[float]) -> str:
    """Median (min-max)."""
    if not figures:
        return "-"
    middle = number(statistics.median(figures))
    if len(figures) == 1:
        return middle
    return f"{middle} ({number(min(figures))}-{number(max(figures))})"


def ratio(figures: Sequence[float]) -> str:
    """Median [interval]."""
    if not figures:
        return "-"
    low, high = interval(figures)
    return f"{statistics.median(figures):.2f} [{low:.2f}, {high:.2f}]"


def device(records: Sequence[Record]) -> str:
    """Return where each side ran, and a warning where that differs."""
    lines, seen = [], {}
    for r in records:
        if "versions" in r["result"] and r["variant"] not in seen:
            result = r["result"]
            v, about = result["versions"], result["about"]
            seen[r["variant"]] = (v["platform"], result["device"], v["jax"], v["jaxlib"])
            lines.append(
                f"{r['variant']}: {result['device']} ({v['platform']}, {v['cpus']} CPUs), "
                f"jax {v['jax']}, jaxlib {v['jaxlib']}, Python {v['python']}, "
                f"generator {about['generator']}, shuffle {about['shuffle']}"
                + (f", XLA_FLAGS {v['xla_flags']}" if v["xla_flags"] else "")
            )
    if len(set(seen.values())) > 1:
        lines.append("WARNING: the sides differ in device or jax version; ratios mean little.")
    return "\n".join(lines)


def speed(records: Sequence[Record]) -> str:
    variants = [v for v in (PEER, OURS, PLAIN) if any(r["variant"] == v for r in records)]
    header = ["envs", "", *variants]
    compared = [v for v in variants if v != PEER] if PEER in variants else []
    header += [f"{v} / {PEER}" for v in compared]
    rows = []
    for envs in sorted({r["envs"] for r in records if r["task"] == "speed"}):
        for name, label in SPEED_ROWS.items():
            found = {v: values(records, name, task="speed", envs=envs, variant=v) for v in variants}
            if not any(found.values()):
                continue
            row = [str(envs), label, *(spread(list(found[v].values())) for v in variants)]
            quotients = [ratios(found[v], found[PEER]) for v in compared]
            rows.append(row + ["" if name in NO_RATIO else ratio(q) for q in quotients])
    return table(header, rows)


def host(records: Sequence[Record]) -> str:
    """Return the steps per second of each side in environments on the host, and ours divided by
    those of the others."""
    sides = list(dict.fromkeys(record["variant"] for record in records))
    others = [side for side in sides if not side.startswith(OURS)]
    rows = []
    for name in dict.fromkeys(record["algorithm"] for record in records):
        rates = {
            side: values(records, "steps_per_s", algorithm=name, variant=side) for side in sides
        }
        for side in sides:
            cells = [name, side, spread(list(rates[side].values()))]
            for other in others:
                found = ratios(rates[side], rates[other]) if side not in others else []
                cells.append(ratio(found))
            rows.append(cells)
    return table(["algorithm", "side", "steps/s", *(f"times {other}" for other in others)], rows)


def offline(records: Sequence[Record], rows: Mapping[str, str]) -> str:
    """Return the figures `rows` of each side that learns from a dataset, and the rate
    of ours divided by those of the others."""
    sides = list(dict.fromkeys(record["variant"] for record in records))
    others = [side for side in sides if side != OURS]
    cells = []
    for name in dict.fromkeys(record["algorithm"] for record in records):
        for figure, label in rows.items():
            found = {x: values(records, figure, algorithm=name, variant=x) for x in sides}
            quotients = [
                ratio(ratios(found[OURS], found[x])) if figure == "gradient_steps_per_s" else ""
                for x in others
            ]
            cells.append([name, label, *(spread(list(found[x].values())) for x in sides)])
            cells[-1] += quotients
    return table(["algorithm", "", *sides, *(f"{OURS} / {other}" for other in others)], cells)


def tokens(records: Sequence[Record]) -> str:
    """Return the rates of each side that writes answers and learns from them, and ours divided by
    those of the others."""
    sides = list(dict.fromkeys(record["variant"] for record in records))
    others = [side for side in sides if side != OURS]
    rows = []
    for case in dict.fromkeys(record["case"] for record in records):
        for name, label in TOKEN_ROWS.items():
            found = {side: values(records, name, case=case, variant=side) for side in sides}
            quotients = [ratio(ratios(found[OURS], found[other])) for other in others]
            rows.append(
                [case, label, *(spread(list(found[side].values())) for side in sides), *quotients]
            )
    return table(["case", "", *sides, *(f"{OURS} / {other}" for other in others)], rows)


def sweep(records: Sequence[Record]) -> str:
    header = ["seeds", "", "s per seed", "env-steps/s", "trace + compile s", "peak memory MiB", ""]
    rows = []
    chosen = [r for r in records if r["task"] == "sweep"]
    for seeds in sorted({r["seeds"] for r in chosen}):
        for variant in dict.fromkeys(r["variant"] for r in chosen):
            where = {"task": "sweep", "seeds": seeds, "variant": variant}
            cells = [
                spread(list(values(chosen, name, **where).values()))
                for name in ("seconds_per_seed", "steps_per_s", "compile_s", "peak_mib")
            ]
            failures = [r["result"]["failure"] for r in chosen if fits(r, where) and has_failed(r)]
            rows.append([str(seeds), variant, *cells, "; ".join(dict.fromkeys(failures))])
    return table(header, rows)


def sizes_and_values(
    records: Sequence[Record], axis: str, name: str
) -> tuple[list[int], list[float]]:
    """Return the sizes along an axis at which `name` was measured, and its values there."""
    found = [
        (record["size"], record["result"][name])
        for record in records
        if record["axis"] == axis and name in record["result"]
    ]
    return [size for size, _ in found], [value for _, value in found]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of log(value) over log(size) in the larger half of the sizes, of which
    there must be two; NaN otherwise."""
    half = max(2, math.ceil(len(sizes) / 2))
    if len(sizes) < 2:
        return math.nan
    return float(np.polyfit(np.log(sizes[-half:]), np.log(values[-half:]), 1)[0])


def exponents(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return the exponent of each measure along each axis."""
    axes = dict.fromkeys(record["axis"] for record in records)
    return {
        axis: {name: exponent(*sizes_and_values(records, axis, name)) for name in MEASURES}
        for axis in axes
    }


def scale(records: Sequence[Record]) -> str:
    """Return a row for each size, and the exponents along each axis."""
    rows = []
    for axis, found in exponents(records).items():
        for record in records:
            result = record["result"]
            if record["axis"] == axis and "failure" not in result:
                rate = number(result["steps_per_s"])
                memory, compiling = f"{result['peak_mib']:,.0f}", f"{result['compile_s']:.2f}"
                rows.append([axis, f"{record['size']:,}", rate, memory, compiling])
        powers = [f"time^{found['update_s']:.2f}", f"^{found['peak_mib']:.2f}"]
        rows.append([axis, "exponent", *powers, f"^{found['compile_s']:.2f}"])
    return table(["axis", "size", "env-steps/s", "peak MiB", "trace + compile, s"], rows)


def curve(records: Sequence[Record], by: str = "envs") -> str:
    """Returns at shares of the steps, of the runs that differ in the field `by`."""
    rows = []
    chosen = [r for r in records if r["task"] == "curve" and not has_failed(r)]
    if not chosen:
        return "No learning curves."
    shares = (0, 0.25, 0.5, 0.75, 1)
    for r in sorted(chosen, key=lambda r: r[by]):
        steps, returns = r["result"]["steps"], r["result"]["returns"]
        last = len(steps) - 1
        cells = [spread([c[round(s * last)] for c in returns]) for s in shares]
        area = spread([statistics.mean(c) for c in returns])
        rows.append([str(r[by]), r["variant"], str(len(returns)), number(steps[-1]), *cells, area])
    header = [by, "", "seeds", "steps"]
    header += [f"at {100 * s:.0f} %" for s in shares] + ["mean of curve"]
    return table(header, rows)


def learning(records: Sequence[Record], by: str) -> str:
    """Return both sides' mean over seeds, at the end and of the curve, and how probably ours is
    above, of the runs that differ in the field `by` and have several seeds."""
    rows = []
    curves = {
        (r[by], r["variant"]): r["result"]["returns"]
        for r in records
        if r["task"] == "curve" and not has_failed(r) and len(r["result"]["returns"]) > 1
    }
    for name in dict.fromkeys(name for name, _ in curves):
        if not all((name, variant) in curves for variant in (OURS, PEER)):
            continue
        for label, of in (("end", lambda c: c[-1]), ("mean of curve", statistics.mean)):
            ours, theirs = ([of(c) for c in curves[name, v]] for v in (OURS, PEER))
            above = intervals.stratified_bootstrap(
                intervals.probability_of_improvement, ours, theirs
            )
            cells = [
                f"{number(x.estimate)} [{number(x.low)}, {number(x.high)}]"
                for x in (*map(intervals.score_interval, (ours, theirs)), above)
            ]
            rows.append([str(name), label, *cells])
    return table([by, "", OURS, PEER, f"P({OURS} > {PEER})"], rows) if rows else "No pairs."


def beside(
    records: Sequence[Record],
    rows: Mapping[str, str],
    by: Sequence[str],
    no_ratio: Collection[str] = (),
) -> str:
    """Ours and each peer that was measured, where the fields `by` are the same, and their ratio."""
    found = []
    for group in dict.fromkeys(tuple(r[field] for field in by) for r in records):
        where = dict(zip(by, group, strict=True))
        peers = dict.fromkeys(r["variant"] for r in records if fits(r, where))
        for name, label in rows.items():
            for peer in [p for p in peers if p != OURS] or ["-"]:
                both = [values(records, name, variant=v, **where) for v in (OURS, peer)]
                if any(both):
                    cells = [spread(list(x.values())) for x in both]
                    quotient = "" if name in no_ratio else ratio(ratios(*both))
                    found.append([*map(str, group), peer, label, *cells, quotient])
    return table([*by, "peer", "", OURS, "peer", f"{OURS} / peer"], found)


def failures(records: Sequence[Record]) -> str:
    return "\n".join(
        f"{r['variant']}, {r['task']}, {r['envs']} envs, {r['seeds']} seeds: "
        f"{r['result']['failure']}"
        for r in records
        if has_failed(r)
    )


def has_failed(record: Record) -> bool:
    return "failure" in record["result"]


# ------------------------------------------------------------------------------------ targets


def targets(records: Sequence[Record]) -> list[Record]:
    """Return each target, what was measured, and whether it is met (None if not measured)."""
    found = []
    for envs, target in SPEED_TARGETS.items():
        quotients = against_peer(records, "median_steps_per_s", envs)
        found.append(
            verdict(f"env-steps/s at {envs} envs, {OURS} / {PEER}", ">=", target, quotients)
        )
    for name, target in COST_TARGETS.items():
        for envs in SPEED_TARGETS:
            label = f"{SPEED_ROWS[name]} at {envs} envs, {OURS} / {PEER}"
            found.append(verdict(label, "<=", target, against_peer(records, name, envs)))
    quotients = against_peer(records, "first_result_s", FIRST_RESULT_ENVS)
    label = f"first result s at {FIRST_RESULT_ENVS} envs, {OURS} / {PEER}"
    found.append(verdict(label, "<=", FIRST_RESULT_TARGET, quotients))
    found.append(complete(records))
    one, many = (
        values(records, "seconds_per_seed", task="sweep", variant=OURS, seeds=n)
        for n in (1, SWEEP_SEEDS)
    )
    label = f"s per seed, {SWEEP_SEEDS} seeds / 1 seed, {OURS}"
    return [*found, verdict(label, "<=", SWEEP_TARGET, ratios(many, one))]


def against_peer(records: Sequence[Record], name: str, envs: int) -> list[float]:
    return against(records, name, PEER, task="speed", envs=envs)


def against(records: Sequence[Record], name: str, peer: str, **where: Any) -> list[float]:
    """Ours / theirs of the figure `name`, of the same round."""
    ours, theirs = (values(records, name, variant=v, **where) for v in (OURS, peer))
    return ratios(ours, theirs)


def verdict(label: str, sign: str, target: float, quotients: Sequence[float]) -> Record:
    found = {"target": label, "sign": sign, "value": target, "ratios": list(quotients)}
    if not quotients:
        return found | {"met": None, "median": None, "interval": None, "whole_interval": None}
    good: Callable[[float], bool] = lambda x: x >= target if sign == ">=" else x <= target
    median, bounds = statistics.median(quotients), interval(quotients)
    return found | {
        "met": good(median),
        "median": median,
        "interval": bounds,
        "whole_interval": all(map(good, bounds)) if good(median) else not any(map(good, bounds)),
    }


def complete(records: Sequence[Record]) -> Record:
    where = {"task": "sweep", "variant": OURS, "seeds": MANY_SEEDS}
    tried = [not has_failed(r) for r in records if fits(r, where)]
    return {
        "target": f"{MANY_SEEDS} seeds complete, {OURS}",
        "sign": "=",
        "value": 1.0,
        "ratios": [float(x) for x in tried],
        "met": all(tried) if tried else None,
        "median": sum(tried) / len(tried) if tried else None,
        "interval": None,
        "whole_interval": None,
    }


def target_table(found: Sequence[Record]) -> str:
    words = {True: "met", False: "MISSED", None: "not measured"}

    def row(t: Record) -> list[str]:
        beyond = {True: "", False: ", the interval is on both sides", None: ""}
        measured = "-" if t["median"] is None else f"{t['median']:.2f}"
        if t["interval"]:
            measured += f" [{t['interval'][0]:.2f}, {t['interval'][1]:.2f}]"
        said = words[t["met"]] + beyond[t["whole_interval"]]
        return [t["target"], f"{t['sign']} {t['value']:g}", measured, said]

    return table(["target", "", "measured", "verdict"], map(row, found))
