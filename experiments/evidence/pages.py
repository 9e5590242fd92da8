"""What a reader sees of the evidence: CLAIMS.md, a page a track and a system, one of failures.

All of it is text made from the declarations and the records alone; nothing is run or computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evidence import known, pictures
from experiments.evidence.known import VERDICTS, Record, Standing, System
from experiments.evidence.records import CLAIMS
from experiments.evidence.system_page import system_page
from experiments.evidence.words import NOTE, clip, escape, name_of, number, table

FOLDER = "docs/claims"
CLAIM = 90  # characters of a claim in a list
READING = (
    "A clause compares two sides, seed by seed: *better* by more than a margin, *not worse* by a "
    "margin, or *equal* within one. The figures of a line are those of the clause that came "
    "nearest to failing: its effect, its confidence interval, and where all of the interval must "
    "lie."
)
PICTURE = (
    "The picture has every clause of every system: the mark is the effect, the line its confidence "
    "interval, both in units of the margin (of half the interval where the margin is 0). A clause "
    "holds if its whole line lies in the shaded band. A square is a clause that does not hold, an "
    "empty circle one that is undecided, an arrow something farther away than the picture is wide."
)
MEANING = """
| verdict | what it means |
|---|---|
| holds | every clause of the claim held on seeds that nothing was tuned on |
| does not hold | at least one clause is refuted |
| inconclusive | these seeds do not decide it, or the effect is there without the mechanism |
| untestable | at this budget the claim could come out only one way: seen before seeds were spent |

| mark | what it means |
|---|---|
| replicated | held twice on fresh seeds, unrevised |
| revised | the declaration was changed after an attempt; error is spread over all attempts |
| stale | the code that it runs is no longer the code that was recorded |
| unfinished | a later attempt began and has not ended |
| edge | a tuned value lies at the end of its grid |
| ceiling, floor | a side has nothing left to gain, or is no better than untrained |
| one outcome | the margin and the range of the metric leave room for no other |
| too few seeds | an effect as large as the margin, or as was seen in tuning, may go unseen |
| two modes | seeds end in one of two ways, so that a mean misleads |
| over its minutes | it took longer than declared |
| large | run on an accelerator, with larger environments |
"""


def write(
    root: Path,
    checks: Iterable[tuple[str, str, Any]],
    records: Iterable[Record],
    *,
    judged: Callable[[Sequence[Record]], Standing],
    stale: Mapping[str, str] = {},
) -> list[Path]:
    """Write all pages and pictures below `root`, and remove those of checks that are gone.

    checks: (id, track, declaration or its dict) each. records: as recorded, oldest first.
    judged: what the ended records of one check say together (has verdict, why, replicated).
    stale: of ids whose latest record is stale, what differs, in a sentence.
    Raises `UserError` where two pages would have one name.
    """
    systems = known.gather(checks, records, stale, judged)
    made = {root / path: text for path, text in pages(systems).items()}
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    folder = root / FOLDER
    for path in {*folder.glob("*.md"), *folder.glob("pictures/*.svg")} - set(made):
        path.unlink()
    return sorted(made)


def pages(systems: Sequence[System]) -> dict[str, str]:
    """The text of every page and picture, by its path from the root."""
    made = {
        "CLAIMS.md": summary(systems),
        f"{FOLDER}/failures.md": failures(systems),
        CLAIMS: claims(systems),
    }
    for track, group in by_track(systems).items():
        made[f"{FOLDER}/{track}.md"] = track_page(track, group)
        drawn = {s.id: known.effects(s) for s in group if known.effects(s)}
        if drawn:
            title = f"{name_of(track)}: all effects in units of their margins"
            made[f"{FOLDER}/pictures/{track}.svg"] = pictures.effects(title, drawn)
    for system in systems:
        made[f"{FOLDER}/{system.id}.md"] = system_page(system)
        if panels := known.panels(system):
            title = f"{system.id}: every seed of every side"
            made[f"{FOLDER}/pictures/{system.id}.svg"] = pictures.dots(title, panels)
    return made


def by_track(systems: Sequence[System]) -> dict[str, list[System]]:
    """The systems of each track, the verdicts in their order."""
    found: dict[str, list[System]] = {}
    for system in sorted(
        systems, key=lambda s: (s.track, VERDICTS.index(s.standing.verdict), s.id)
    ):
        found.setdefault(system.track, []).append(system)
    return found


def summary(systems: Sequence[System]) -> str:
    """CLAIMS.md: tracks x verdicts."""

    def count(group: Sequence[System]) -> list[int]:
        return [sum(s.standing.verdict == v for s in group) for v in VERDICTS]

    tracks = by_track(systems)
    rows = [[f"[{name_of(t)}]({FOLDER}/{t}.md)", *count(group)] for t, group in tracks.items()]
    rows.append(["all", *count(systems)])
    waiting = [f"[{s.id}]({FOLDER}/{s.id}.md)" for s in systems if s.standing.verdict == "not run"]
    lines = [
        NOTE,
        "# Systems",
        "",
        f"{len(systems)} claims of {len({s.check['paper']['title'] for s in systems})} papers, put "
        "to the test at a small scale. Each is declared, with "
        "its margins, before it is run; every attempt is kept, and the verdict is that of all "
        f"attempts together. [What did not hold, and why]({FOLDER}/failures.md) is the most "
        "useful page for a researcher.",
        "",
        *table(
            ["track", "holds", "does not hold", "incon&shy;clusive", "untest&shy;able"],
            [row[:5] for row in rows],
        ),
        "",
    ]
    if old := sum(bool(s.stale) for s in systems):
        lines += [f"Of these {old} are results of code that has changed since (stale).", ""]
    if waiting:
        lines += [f"Not run yet: {', '.join(waiting)}.", ""]
    return "\n".join(
        [
            *lines,
            MEANING.strip(),
            "",
            "Every attempt, one a line: [results.jsonl](experiments/claims/results.jsonl). Run "
            "one again with `python experiments/evidence/run.py ID`.",
            "",
        ]
    )


def track_page(track: str, systems: Sequence[System]) -> str:
    """One line a system beside a picture of all effects of the track."""
    lines = [NOTE, f"# {name_of(track)}", ""]
    lines += ["[All tracks](../../CLAIMS.md) · [What did not hold](failures.md)", "", READING]
    if any(map(known.effects, systems)):
        alt = "All effects of this track in units of their margins"
        lines += ["", f'<img align="right" width="{pictures.WIDTH}" alt="{alt}" '
                  f'src="pictures/{track}.svg">', "", PICTURE]  # fmt: skip
    lines += ["", *map(line, systems), "", '<br clear="both">', ""]
    return "\n".join(lines)


def line(system: System) -> str:
    """The verdict, the name, the claim, the effect with what was needed, n and marks."""
    parts = [f"- **{system.standing.verdict}** [{system.id}]({system.id}.md): "
             f"{escape(clip(system.check['claim'], CLAIM))}"]  # fmt: skip
    clause, error = known.deciding(system), known.largest(system)
    if clause:
        said = f"{known.interval(clause)}, needed {known.needed(clause)}"
        if len(system.clauses) > 1:
            said += f" (nearest of {len(system.clauses)} clauses)"
        parts.append(said)
    elif error is not None:
        parts.append(f"largest error {number(error)}, at most {number(system.check['tolerance'])}")
    if system.latest and system.latest["values"]:
        parts.append(f"{system.latest['seeds']} seeds")
    found = known.marks(system)
    parts += [f"*{', '.join(found)}*"] if found else []
    return " · ".join(parts)


def claims(systems: Sequence[System]) -> str:
    """Verdict, name and claim, a line each."""
    ordered = (system for group in by_track(systems).values() for system in group)
    return "".join(f"{s.standing.verdict}\t{s.id}\t{s.check['claim']}\n" for s in ordered)


def failures(systems: Sequence[System]) -> str:
    """Those that do not hold, are inconclusive or untestable, with the diagnosis."""
    lines = [NOTE, "# What did not hold", "", "[All tracks](../../CLAIMS.md)", ""]
    lines += ["What came out otherwise than its paper would have it, or did not come out, and why. "
              "It was tested at a small scale: no paper is refuted by it."]  # fmt: skip
    for verdict in VERDICTS[1:4]:
        group = [s for s in systems if s.standing.verdict == verdict]
        if group:
            lines += ["", f"## {name_of(verdict)}"]
        for s in group:
            assert s.latest
            lines += ["", f"### [{s.id}]({s.id}.md)", "", f"[{name_of(s.track)}]({s.track}.md). "
                      f"{escape(s.check['claim'])}", "",
                      f"**Why:** {escape(s.standing.why)}", ""]  # fmt: skip
            if text := s.check.get("diagnosis"):
                lines += [f"**Diagnosis:** {escape(text)}", ""]
            lines += [f"- {c['verdict'].capitalize()}: {escape(known.said(s, c))}"
                      for c in s.clauses if c["verdict"] != "holds"]  # fmt: skip
            lines += [f"- {escape(k['said'])}" for k in s.latest["looks"] if not k["ok"]]
            lines += [f"- Revised: {escape(' '.join(known.revisions(s, r)))}" for r in s.records
                      if r["changed"] and r["event"] == "ended"]  # fmt: skip
    if len(lines) == 6:
        lines += ["", "Nothing so far."]
    return "\n".join([*lines, ""])
