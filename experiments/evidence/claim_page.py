"""The page of one claim on the site: what was claimed, what was tested, and all that came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.evidence import findings, history
from experiments.evidence.findings import Findings, Record
from experiments.evidence.words import NOTE, capital, duration, escape, number, table, todays
from jaxrl.algorithms.families import heading

UP = "../.."  # the root, from a page


def claim_page(claim: Findings) -> str:
    """Return the whole page: what a reader asks first, then everything else."""
    sections = (_head, _picture, _words, _looks, _settings, _attempts, _again, _old)
    return "\n".join(line for section in sections for line in section(claim)) + "\n"


# ------------------------------------------------------------------------------- sections


def _head(claim: Findings) -> Iterator[str]:
    """Paper, claim, means, clauses, design and command: what there is to know within ten lines."""
    declared, paper, standing = claim.declared, claim.declared["paper"], claim.standing
    yield from (NOTE, f"# {capital(str(standing))}: {claim.id}", "")
    cite = f"{escape(paper['title'])} ({escape(paper['authors'])}, {paper['year']})"
    if paper.get("arxiv"):
        cite += f", [arXiv {paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']})"
    yield from (
        f"**The paper** says: {escape(paper.get('says') or '(not written down)')} — {cite}.",
        "",
    )
    yield from (f"**Tested here:** {escape(declared['claim'])}", "")
    yield from _means(claim)
    yield from _clauses(claim)
    if begun := findings.open_attempt(claim):
        yield from (f"**Unfinished.** Attempt {begun['attempt']} began on {_day(begun)}.", "")
    if not claim.latest:
        return
    if not claim.latest["values"]:
        yield from (_design(claim), "")
        return
    yield from (f"{_design(claim)} Replay one seed of each side:", "")
    yield from ("```bash", f"python experiments/evidence/run.py {claim.id} --replay", "```", "")
    if claim.stale:
        yield from (f"**Stale.** {escape(claim.stale)}", "")
    for warning in claim.warnings:
        yield from (f"**Beware:** {escape(warning)}", "")


def _means(claim: Findings) -> Iterator[str]:
    """A table of the sides' means on the reported seeds."""
    columns = findings.means(claim)
    sides = dict.fromkeys(side for _, _, row in columns for side in row)
    if not sides:
        return
    head = ["side", *(f"{metric}, {label}" for metric, label, _ in columns)]
    yield from table(head, [[side, *(row.get(side, "") for *_, row in columns)] for side in sides])
    yield ""
    metric = claim.latest["declared"]["metric"] if claim.latest else {}
    meaning = {**MEANINGS, metric["name"]: metric.get("meaning") or MEANINGS.get(metric["name"])}
    known = dict.fromkeys(m for m, _, _ in columns if meaning.get(m))
    said = [f"*{m}* is {meaning[m]}" for m in known]
    said += [f"{'more' if metric['more_is_better'] else 'less'} is better"]
    scales = [
        f"in {label} {number(s.random)} and {number(s.best)} ({escape(s.who)})"
        for label, s in claim.scales.items()
    ]
    if scales:
        scales[0] = f"0 % is random play and 100 % the best known after as many steps: {scales[0]}"
    text = "; ".join([*said, ", ".join(scales)]).rstrip("; ")
    yield from (f"Means of {claim.latest['seeds']} reported seeds with 95 % intervals; {text}.", "")  # type: ignore[index]


MEANINGS = {
    "score": "the mean return of greedy evaluations over training",
    "final": "the mean return of a greedy evaluation at the end of training",
}


def _clauses(claim: Findings) -> Iterator[str]:
    """Every clause with its result, or the errors of an equality."""
    latest = claim.latest
    if not latest:
        return
    if claim.is_exact and latest["values"]:
        limits = claim.declared
        rows = [[k, _worst(v, max), f"at most {number(limits['tolerance'])}"]
                for k, v in latest["values"][""][""].items()]  # fmt: skip
        rows += [[f"planted: {k}", _worst(v, min), f"above {number(limits['effect'])}"]
                 for k, v in latest["planted"].items()]  # fmt: skip
        yield from table(["error", "worst seed", "needed"], rows)
    for c in claim.clauses:
        text = escape(todays(findings.result_text(claim, c)))
        yield f"- **{c['verdict']}**: {text}{_to_decide(c)}"
    if claim.standing.verdict != "holds" or not (claim.clauses or claim.is_exact):
        yield from ("", f"**Why:** {escape(todays(claim.standing.why))}")
    yield ""


def _design(claim: Findings) -> str:
    """Return on which design and attempt the verdict stands, in sentences."""
    standing, latest = claim.standing, claim.latest
    assert latest
    text = f"Design {standing.design} of {standing.designs}, attempt {latest['attempt']}"
    if claim.clauses:
        text += f"; the intervals of the clauses have a confidence of {100 * latest['level']:.4g} %"
        text += " together"
        if (groups := latest.get("groups", 1)) > 1:
            text += f", spread over {groups} looks at growing numbers of seeds"
    text += "."
    if standing.is_redesigned:
        text += " It took more than two designs: read the earlier ones below."
    if standing.replicated:
        text += " Replicated: it held a second time, on fresh seeds."
    return text


def _picture(claim: Findings) -> Iterator[str]:
    if findings.strips(claim):
        alt = "Every seed of every side as a dot"
        yield from (f"![{alt}](pictures/{claim.id}.svg)", "")
        if not claim.is_exact:
            yield from ("A dot is a seed, a diamond the mean with its 95 % interval.", "")


def _words(claim: Findings) -> Iterator[str]:
    declared = claim.declared
    for title, text in (
        ("Diagnosis", declared.get("diagnosis")),
        ("Left out", declared.get("left_out")),
        *((f"Differs from its paper, {name}", side.get("deviates"))
          for name, side in declared.get("sides", {}).items()),
        ("Shared by all seeds", declared.get("shared")),
        ("Notes", declared.get("notes")),
    ):  # fmt: skip
        if text:
            yield from (f"**{title}:** {escape(text)}", "")
    parts = ", ".join(f"[{part}]({UP}/{part})" for part in declared["parts"])
    yield from (f"**Parts:** {parts}", "")
    family = f"[{heading(claim.family)}]({claim.family}.md)"
    attempts = f"{UP}/{claim.file.removesuffix('.py')}.jsonl"
    records = f" · [Its records]({attempts})" if claim.events or claim.old else ""
    yield from (f"{family} · [All claims]({UP}/CLAIMS.md){records}", "")


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
    numbers = history.designs(claim.records)
    for r in claim.events:
        if r["event"] == "renamed":
            yield f"- Renamed, {_day(r)}, commit {r['commit'][:7]}. {escape(r['why'])}"
        elif r["event"] == "replayed":
            yield f"- Replayed, {_day(r)}, version {r['jaxrl']}. {escape(r['said'])}"
        elif r["event"] == "mutated":
            for mutation in r["mutations"]:
                yield f"- Mutation, {_day(r)}. {escape(mutation['said'])}"
        elif r["event"] == "judged":
            before = {x["attempt"]: x.get("was", "") for x in claim.records}[r["attempt"]]
            change = f" (was {before})" if before not in ("", r["verdict"]) else ""
            yield (f"- Attempt {r['attempt']} judged again, {_day(r)}, by later rules at "
                   f"{100 * r['level']:.4g} %: {r['verdict']}{change}")  # fmt: skip
        elif r["event"] == "ended" or r["attempt"] not in ended:
            yield from _attempt(claim, r, numbers[r["attempt"]])
    yield ""


def _attempt(claim: Findings, r: Record, design: int) -> Iterator[str]:
    """An attempt: its design, what it came to, with figures, and what was revised for it."""
    what = r["verdict"] if r["event"] == "ended" else "has not ended"
    spent = f", {duration(r['seconds'])}" if r["event"] == "ended" else ""
    seeds = "tuning seeds alone" if r["budget"] == history.PILOT else f"{r['seeds']} seeds"
    yield (f"- **{r['attempt']}: {what}**, design {design}, {_day(r)}, {seeds}, "
           f"{r['budget']} budget{spent}, {_machine(r)}, jax {r['jax']}, commit {r['commit'][:7]}. "
           f"{escape(todays(r.get('why', '')))}".rstrip())  # fmt: skip
    if r["changed"]:
        yield f"  - Revised: {escape(todays(' '.join(findings.changes(claim, r))))}"
    if figures := findings.figures(r):
        yield f"  - {escape(figures)}"


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
    number = latest["attempt"] if latest else 0
    tried = [r for r in claim.events if (r["event"], r.get("attempt")) == ("mutated", number)]
    unseen = [m["name"] for m in tried[-1]["mutations"] if not m["seen"]] if tried else []
    if broken:
        state = "" if tried else " (not tried so far)"
        yield from ("", f"With `--mutate` it must notice{state}: {escape(', '.join(broken))}.")
    if unseen:
        yield from ("", f"**Not noticed:** {escape(', '.join(unseen))}.")
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
