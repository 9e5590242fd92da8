"""The page of one system: what was claimed, what was tested, and all that came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.evidence import known, pictures
from experiments.evidence.known import Record, System
from experiments.evidence.words import NOTE, duration, escape, name_of, number, table

UP = "../.."  # the root, from a page


def system_page(system: System) -> str:
    """The whole page, the verdict first."""
    sections = (_head, _claims, _outcome, _looks, _setting, _attempts, _again, _old)
    return "\n".join(line for section in sections for line in section(system)) + "\n"


# ------------------------------------------------------------------------------- sections


def _head(system: System) -> Iterator[str]:
    standing = system.standing
    yield from (NOTE, f"# {name_of(standing.verdict)}: {system.id}", "")
    if standing.why:
        again = " Replicated: it held a second time, on fresh seeds." if standing.replicated else ""
        yield from (f"{escape(standing.why)}{again}", "")
    begun = known.unfinished(system)
    if system.stale:
        yield f"**Stale.** {escape(system.stale)}\n"
    if begun:
        yield f"**Unfinished.** Attempt {begun['attempt']} began on {_day(begun)}.\n"
    tracks = f"[{name_of(system.track)}]({system.track}.md) · [All tracks]({UP}/CLAIMS.md)"
    yield f"{tracks} · [The check]({UP}/{system.file})"
    yield ""


def _claims(system: System) -> Iterator[str]:
    check, paper = system.check, system.check["paper"]
    cite = f"{escape(paper['title'])} ({escape(paper['authors'])}, {paper['year']})"
    if paper.get("arxiv"):
        cite += f", [arXiv {paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']})"
    yield from (cite + ".", "")
    says = paper.get("says") or "(not written down)"
    yield from table(["the paper says", "tested here"], [[says, check["claim"]]])
    yield ""
    if check.get("left_out"):
        yield from (f"**Left out:** {escape(check['left_out'])}", "")
    for name, side in check.get("sides", {}).items():
        if side.get("deviates"):
            yield from (
                f"**Differs from its paper,** {escape(name)}: {escape(side['deviates'])}",
                "",
            )
    if check.get("shared"):
        yield from (f"**Shared by all seeds:** {escape(check['shared'])}", "")
    if check.get("notes"):
        yield from (f"**Notes:** {escape(check['notes'])}", "")
    parts = ", ".join(f"[{part}]({UP}/{part})" for part in check["parts"])
    yield from (f"**Parts:** {parts}", "")


def _outcome(system: System) -> Iterator[str]:
    latest = system.latest
    if not latest:
        return
    yield from ("## What came out", "")
    if system.exact:
        limits = system.check
        rows = [[k, _worst(v, max), f"at most {number(limits['tolerance'])}"]
                for k, v in latest["values"][""][""].items()]  # fmt: skip
        rows += [[f"planted: {k}", _worst(v, min), f"above {number(limits['effect'])}"]
                 for k, v in latest["planted"].items()]  # fmt: skip
        yield from table(["error", "worst seed", "needed"], rows)
    elif system.clauses:
        for c in system.clauses:
            yield f"- **{c['verdict']}**: {escape(known.said(system, c))}{_to_settle(c)}"
        yield ""
        if system.check.get("diagnosis"):
            yield from (f"**Diagnosis:** {escape(system.check['diagnosis'])}", "")
        yield (f"Effects are taken seed by seed, over {latest['seeds']} seeds. Together the "
               f"intervals have a confidence of {100 * latest['level']:.4g} %.")  # fmt: skip
    if known.panels(system):
        alt = "Every seed of every side as a dot"
        yield from (
            "",
            f'<img width="{pictures.WIDTH}" alt="{alt}" src="pictures/{system.id}.svg">',
        )
        if not system.exact:
            yield from ("", "A dot is a seed, a bar the mean, an empty mark the untrained policy.")
    yield ""


def _looks(system: System) -> Iterator[str]:
    if system.latest and system.latest["looks"]:
        yield from ("## Looks before and after", "")
        for look in sorted(system.latest["looks"], key=lambda k: k["ok"]):
            name = look["name"] if look["ok"] else f"**{known.mark(look)}**"
            yield f"- {name}: {escape(look['said'])}"
        yield ""


def _setting(system: System) -> Iterator[str]:
    latest = system.latest
    declared = latest["declared"] if latest else system.check
    if system.exact:
        return
    environments = known.environments(latest) if latest else declared.get("environments")
    if environments:
        yield from ("## Environments and settings", "")
        metric = declared["metric"]
        yield f"Measured: {escape(metric['name'])}, {_sense(metric)} is better."
        yield ""
        rows = [[w["name"] or w["env"], f"{w['env_steps']:,}",
                 f"{number(w['low'])} to {number(w['high'])}"] for w in environments]  # fmt: skip
        yield from table(["environment", "environment steps", "range"], rows)
        yield ""
    if not latest:
        return
    for side, grid in latest["grids"].items():
        for hyper, tried in grid.items():
            chosen = _chosen(latest["tuned"], side, hyper, tried)
            yield f"- {escape(side)}, `{hyper}`: {escape(chosen)}; tried {_values(tried)}"
    yield ""


def _attempts(system: System) -> Iterator[str]:
    if not system.records:
        return
    yield from ("## All attempts", "")
    ended = {r["attempt"] for r in system.records if r["event"] == "ended"}
    for r in system.records:
        if r["event"] == "begun" and r["attempt"] in ended:
            continue
        what = r["verdict"] if r["event"] == "ended" else "has not ended"
        spent = f", {duration(r['seconds'])}" if r["event"] == "ended" else ""
        yield (f"- **{r['attempt']}: {what}**, {_day(r)}, {r['seeds']} seeds, {r['budget']} budget"
               f"{spent}, {_machine(r)}, jax {r['jax']}, commit {r['commit'][:7]}. "
               f"{escape(r.get('why', ''))}".rstrip())  # fmt: skip
        if r["changed"]:
            yield f"  - Revised: {escape(' '.join(known.revisions(system, r)))}"
    yield ""


def _again(system: System) -> Iterator[str]:
    minutes = system.check.get("minutes")
    if minutes is None:
        return
    latest = system.latest
    took = (
        f"; the latest took {duration(latest['seconds'])} on {_machine(latest)}" if latest else ""
    )
    command = f"python experiments/evidence/run.py {system.id}"
    yield from ("## Run it again", "", "```bash", command, "```")
    yield from ("", f"At most {minutes:g} minutes on two CPU cores, tuning included{took}.")
    broken = [m["name"] for m in system.check.get("mutations", ())]
    if broken:
        yield from ("", f"With `--mutate` it must notice: {escape(', '.join(broken))}.")
    yield ""


def _old(system: System) -> Iterator[str]:
    if not system.old:
        return
    count = f"{len(system.old)} attempt{'s' * (len(system.old) > 1)}"
    yield from ("<details>", f"<summary>Before the harness: {count}</summary>", "")
    yield from ("Seeds did not change with the settings then: read these with care.", "")
    for r in system.old:
        yield (f"- **{r['verdict']}**, {r['date'][:10]}, {r['seeds']} seeds, "
               f"{duration(r['seconds'])}, commit {r['commit'][:7]}. {escape(r['metric'])}: "
               f"{'; '.join(_old_figures(r))}. {escape(r['notes'])}")  # fmt: skip
    yield from ("", "</details>", "")


# ------------------------------------------------------------------------------- words


def _old_figures(record: Record) -> Iterator[str]:
    for key in ("measured", "baseline", "difference", "ablation"):
        if record[key]:
            f = record[key]
            three = [number(f[k]) for k in ("value", "low", "high")]
            yield f"{escape(f['name'])} {three[0]} [{three[1]}, {three[2]}]"
    if record["margin"] is not None:
        yield f"margin {number(record['margin'])}"


def _sense(metric: Mapping[str, Any]) -> str:
    return "more" if metric["more_is_better"] else "less"


def _worst(errors: Sequence[float | None], of: Any) -> str:
    return "?" if None in errors else number(of(errors))


def _to_settle(clause: Record) -> str:
    if clause["seeds_needed"] is None:
        return ""
    hours = clause["hours_needed"]
    time = f" in {duration(3600 * hours)}" if hours else ""
    return f"; {clause['seeds_needed']} seeds{time} would probably settle it"


def _values(tried: Sequence[Any]) -> str:
    return ", ".join(number(x) if isinstance(x, int | float) else str(x) for x in tried)


def _chosen(tuned: Mapping[str, Any], side: str, hyper: str, tried: Sequence[Any]) -> str:
    """What was chosen, in which environment where they differ, and whether it is at the grid's
    end."""
    found: dict[Any, list[str]] = {}
    for environment, sides in tuned.items():
        if hyper in sides.get(side, {}):
            found.setdefault(sides[side][hyper], []).append(environment)
    said = []
    for value, environments in found.items():
        end = len(tried) > 1 and value in (min(tried), max(tried))
        where = f" ({', '.join(environments)})" if len(found) > 1 else ""
        said.append(f"{_values([value])}{', at the edge' if end else ''}{where}")
    return "; ".join(said)


def _machine(record: Record) -> str:
    cpu = record["device"].startswith("cpu")
    return f"{record['cores']} CPU cores" if cpu else escape(record["device"])


def _day(record: Record) -> str:
    return record["date"][:10]
