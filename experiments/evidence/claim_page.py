"""The page of one claim on the site: what was claimed, what was tested, and all that came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.evidence import findings, pictures
from experiments.evidence.findings import Findings, Record
from experiments.evidence.words import NOTE, capital, duration, escape, number, table, todays
from jaxrl.algorithms.families import heading

UP = "../.."  # the root, from a page


def claim_page(claim: Findings) -> str:
    """Return the whole page, the verdict first."""
    sections = (_head, _claim, _outcome, _looks, _settings, _attempts, _again, _old)
    return "\n".join(line for section in sections for line in section(claim)) + "\n"


# ------------------------------------------------------------------------------- sections


def _head(claim: Findings) -> Iterator[str]:
    standing = claim.standing
    yield from (NOTE, f"# {capital(standing.verdict)}: {claim.id}", "")
    if standing.why:
        again = " Replicated: it held a second time, on fresh seeds." if standing.replicated else ""
        yield from (f"{escape(todays(standing.why))}{again}", "")
    begun = findings.open_attempt(claim)
    if claim.stale:
        yield f"**Stale.** {escape(claim.stale)}\n"
    if begun:
        yield f"**Unfinished.** Attempt {begun['attempt']} began on {_day(begun)}.\n"
    family = f"[{heading(claim.family)}]({claim.family}.md)"
    attempts = f"{UP}/{claim.file.removesuffix('.py')}.jsonl"
    records = f" · [Its records]({attempts})" if claim.events or claim.old else ""
    yield f"{family} · [All claims]({UP}/CLAIMS.md){records}"
    yield ""


def _claim(claim: Findings) -> Iterator[str]:
    declared, paper = claim.declared, claim.declared["paper"]
    cite = f"{escape(paper['title'])} ({escape(paper['authors'])}, {paper['year']})"
    if paper.get("arxiv"):
        cite += f", [arXiv {paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']})"
    yield from (cite + ".", "")
    says = paper.get("says") or "(not written down)"
    yield from table(["the paper says", "tested here"], [[says, declared["claim"]]])
    yield ""
    if declared.get("left_out"):
        yield from (f"**Left out:** {escape(declared['left_out'])}", "")
    for name, side in declared.get("sides", {}).items():
        if side.get("deviates"):
            yield from (
                f"**Differs from its paper,** {escape(name)}: {escape(side['deviates'])}",
                "",
            )
    if declared.get("shared"):
        yield from (f"**Shared by all seeds:** {escape(declared['shared'])}", "")
    if declared.get("notes"):
        yield from (f"**Notes:** {escape(declared['notes'])}", "")
    parts = ", ".join(f"[{part}]({UP}/{part})" for part in declared["parts"])
    yield from (f"**Parts:** {parts}", "")


def _outcome(claim: Findings) -> Iterator[str]:
    latest = claim.latest
    if not latest:
        return
    yield from ("## Results", "")
    if claim.is_exact:
        limits = claim.declared
        rows = [[k, _worst(v, max), f"at most {number(limits['tolerance'])}"]
                for k, v in latest["values"][""][""].items()]  # fmt: skip
        rows += [[f"planted: {k}", _worst(v, min), f"above {number(limits['effect'])}"]
                 for k, v in latest["planted"].items()]  # fmt: skip
        yield from table(["error", "worst seed", "needed"], rows)
    elif claim.clauses:
        for c in claim.clauses:
            text = escape(todays(findings.result_text(claim, c)))
            yield f"- **{c['verdict']}**: {text}{_to_decide(c)}"
        yield ""
        if claim.declared.get("diagnosis"):
            yield from (f"**Diagnosis:** {escape(claim.declared['diagnosis'])}", "")
        yield (f"Effects are taken seed by seed, over {latest['seeds']} seeds. Together the "
               f"intervals have a confidence of {100 * latest['level']:.4g} %.")  # fmt: skip
    if findings.panels(claim):
        alt = "Every seed of every side as a dot"
        yield from (
            "",
            f'<img width="{pictures.WIDTH}" alt="{alt}" src="pictures/{claim.id}.svg">',
        )
        if not claim.is_exact:
            yield from ("", "A dot is a seed, a bar the mean, an empty mark the untrained policy.")
    yield ""


def _looks(claim: Findings) -> Iterator[str]:
    if claim.latest and claim.latest["looks"]:
        yield from ("## Looks before and after", "")
        for look in sorted(claim.latest["looks"], key=lambda k: k["ok"]):
            name = look["name"] if look["ok"] else f"**{findings.mark(look)}**"
            yield f"- {name}: {escape(todays(look['said']))}"
        yield ""


def _settings(claim: Findings) -> Iterator[str]:
    latest = claim.latest
    declared = latest["declared"] if latest else claim.declared
    if claim.is_exact:
        return
    environments = findings.environments(latest) if latest else declared.get("environments")
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
            best = _best(latest["tuned"], side, hyper, tried)
            yield f"- {escape(side)}, `{hyper}`: {escape(best)}; tried {_values(tried)}"
    yield ""


def _attempts(claim: Findings) -> Iterator[str]:
    if not claim.records:
        return
    yield from ("## All attempts", "")
    ended = {r["attempt"] for r in claim.records if r["event"] == "ended"}
    for r in claim.events:
        if r["event"] == "renamed":
            compared = f"compared with commit {r['commit'][:7]}"
            yield f"- Renamed, {_day(r)}, {compared}. {escape(r['why'])}"
            continue
        if r["event"] == "begun" and r["attempt"] in ended:
            continue
        what = r["verdict"] if r["event"] == "ended" else "has not ended"
        spent = f", {duration(r['seconds'])}" if r["event"] == "ended" else ""
        yield (f"- **{r['attempt']}: {what}**, {_day(r)}, {r['seeds']} seeds, {r['budget']} budget"
               f"{spent}, {_machine(r)}, jax {r['jax']}, commit {r['commit'][:7]}. "
               f"{escape(todays(r.get('why', '')))}".rstrip())  # fmt: skip
        if r["changed"]:
            yield f"  - Revised: {escape(todays(' '.join(findings.changes(claim, r))))}"
    yield ""


def _again(claim: Findings) -> Iterator[str]:
    minutes = claim.declared.get("minutes")
    if minutes is None:
        return
    latest = claim.latest
    took = (
        f"; the latest took {duration(latest['seconds'])} on {_machine(latest)}" if latest else ""
    )
    command = f"python experiments/evidence/run.py {claim.id}"
    yield from ("## Run it again", "", "```bash", command, "```")
    yield from ("", f"At most {minutes:g} minutes on two CPU cores, tuning included{took}.")
    broken = [m["name"] for m in claim.declared.get("mutations", ())]
    if broken:
        yield from ("", f"With `--mutate` it must notice: {escape(', '.join(broken))}.")
    yield ""


def _old(claim: Findings) -> Iterator[str]:
    if not claim.old:
        return
    count = f"{len(claim.old)} attempt{'s' * (len(claim.old) > 1)}"
    yield from ("<details>", f"<summary>Before the harness: {count}</summary>", "")
    yield from ("Seeds did not change with the settings then: read these with care.", "")
    for r in claim.old:
        metric, notes = (escape(todays(r[name])) for name in ("metric", "notes"))
        yield (f"- **{r['verdict']}**, {r['date'][:10]}, {r['seeds']} seeds, "
               f"{duration(r['seconds'])}, commit {r['commit'][:7]}. {metric}: "
               f"{'; '.join(_old_figures(r))}. {notes}")  # fmt: skip
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


def _to_decide(clause: Record) -> str:
    if clause["seeds_needed"] is None:
        return ""
    hours = clause["hours_needed"]
    time = f" in {duration(3600 * hours)}" if hours else ""
    return f"; {clause['seeds_needed']} seeds{time} would probably decide it"


def _values(tried: Sequence[Any]) -> str:
    return ", ".join(number(x) if isinstance(x, int | float) else str(x) for x in tried)


def _best(tuned: Mapping[str, Any], side: str, hyper: str, tried: Sequence[Any]) -> str:
    """Return the best value, in which environment if they differ, and whether it ends the grid."""
    found: dict[Any, list[str]] = {}
    for environment, sides in tuned.items():
        if hyper in sides.get(side, {}):
            found.setdefault(sides[side][hyper], []).append(environment)
    listed = []
    for value, environments in found.items():
        end = len(tried) > 1 and value in (min(tried), max(tried))
        where = f" ({', '.join(environments)})" if len(found) > 1 else ""
        listed.append(f"{_values([value])}{', at the edge' if end else ''}{where}")
    return "; ".join(listed)


def _machine(record: Record) -> str:
    cpu = record["device"].startswith("cpu")
    return f"{record['cores']} CPU cores" if cpu else escape(record["device"])


def _day(record: Record) -> str:
    return record["date"][:10]
