"""Pages about claims: CLAIMS.md and failures in the repository, families and claims on the site.

All of it is text made from declarations and records alone; nothing is run or computed anew. A link
to a claim is a link to its file in `experiments/claims`, which on the site leads to its page.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.evidence import findings
from experiments.evidence.claim_page import claim_page
from experiments.evidence.findings import VERDICTS, Findings
from experiments.evidence.records import CLAIMS
from experiments.evidence.words import NOTE, capital, clip, escape, number, table, todays
from jaxrl.algorithms.families import NAMES, heading

FOLDER = "docs/claims"  # of the pages, those of the site among them
FAILURES = "Claims that did not hold here, and why"
CLAIM = 90  # characters of a claim in a list
READING = (
    "A clause compares two sides, seed by seed: *better* by more than a margin, *not worse* by a "
    "margin, or *equal* within one. The effect given is that of the clause that came nearest to "
    "failing, with its confidence interval and where all of the interval must lie."
)
MEANING = """
## Verdicts and marks

| verdict | meaning |
|---|---|
| holds | every clause of the claim held on seeds that nothing was tuned on |
| does not hold | at least one clause is refuted |
| inconclusive | these seeds do not decide it, or the effect is there without the mechanism |
| untestable | at this budget the claim could come out only one way; seen before seeds were spent |

| mark | meaning |
|---|---|
| design 2 of 3 | it was changed after figures were seen; error is spread over all designs |
| redesigned | it holds, but took more than two designs |
| weak baseline | a baseline has less than two thirds of the best known after as many steps |
| below random play | a side ends below random play |
| replicated | held twice on fresh seeds, unrevised |
| stale | revised since, or a seed replayed with later code left the recorded range |
| unfinished | a later attempt began and has not ended |
| edge | a tuned value lies at the end of its grid |
| ceiling, floor | a side has nothing left to gain, or is no better than untrained |
| one outcome | the margin and the range of the metric leave room for no other |
| too few seeds | an effect as large as the margin, or as was seen in tuning, may go unseen |
| two modes | seeds end in one of two ways, so that a mean misleads |
| over its minutes | it took longer than declared |
| large | run on an accelerator, with larger environments |

Each claim's declaration has its attempts beside it, one a line (`<id>.jsonl`), and a page on the
site (`make docs`) with every clause, side and seed. To try one again, run
`python experiments/evidence/run.py ID`.
"""


def write(root: Path, texts: Mapping[str, str]) -> None:
    """Write texts by their paths below `root`."""
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


def repository(claims: Sequence[Findings]) -> dict[str, str]:
    """Return the text of every page that lies in the repository, by its path from the root."""
    return {
        "CLAIMS.md": summary(claims),
        f"{FOLDER}/failures.md": failures(claims),
        CLAIMS: listing(claims),
    }


def site(claims: Sequence[Findings]) -> dict[str, str]:
    """Return the text of every page and picture that only the site has.

    By its path from the root, as if it lay beside the page of failures.
    """
    made = {}
    for family, group in by_family(claims).items():
        made[f"{FOLDER}/{family}.md"] = family_page(family, group)
    for claim in claims:
        made[f"{FOLDER}/{claim.id}.md"] = claim_page(claim)
        if strips := findings.strips(claim):
            made[f"{FOLDER}/pictures/{claim.id}.svg"] = picture(strips)
    return made


def picture(strips: findings.Strips) -> str:
    """Return the seeds of a claim as SVG."""
    from jaxrl.evaluation.seed_plots import seed_strips

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seeds.svg"
        seed_strips(
            strips.panels,
            path,
            references=strips.references,
            logarithmic=strips.logarithmic,
        )
        return path.read_text(encoding="utf-8")


def by_family(claims: Iterable[Findings]) -> dict[str, list[Findings]]:
    """Return the claims of each family that has some, by verdict and id."""
    found: dict[str, list[Findings]] = {}
    order = lambda c: (NAMES.index(c.family), VERDICTS.index(c.standing.verdict), c.id)
    for claim in sorted(claims, key=order):
        found.setdefault(claim.family, []).append(claim)
    return found


def summary(claims: Sequence[Findings]) -> str:
    """Return CLAIMS.md: verdicts counted by family, and one line for each claim."""

    kinds = (VERDICTS[0], f"{VERDICTS[0]}, redesigned", *VERDICTS[1:4])

    def kind(claim: Findings) -> str:
        return kinds[1] if claim.standing.is_redesigned else claim.standing.verdict

    def count(group: Sequence[Findings]) -> list[int]:
        return [sum(kind(c) == k for c in group) for k in kinds]

    families = by_family(claims)
    rows = [[f"[{heading(f)}](#{anchor(f)})", *count(group)] for f, group in families.items()]
    papers = len({c.declared["paper"]["title"] for c in claims})
    lines = [
        NOTE,
        "# Claims",
        "",
        f"{len(claims)} claims of {papers} papers, tested here at a small scale. Each is declared, "
        "with its margins, before it is run; every attempt is kept, and the verdict is that of all "
        f"attempts together. [{FAILURES}]({FOLDER}/failures.md) is the most useful page for a "
        "researcher.",
        "",
        *table(["family", *kinds], [*rows, ["all", *count(claims)]]),
        "",
    ]
    if old := sum(bool(c.stale) for c in claims):
        lines += [f"{old} {'is' if old == 1 else 'are'} stale.", ""]
    lines += [READING, ""]
    for family, group in families.items():
        lines += [f"## {heading(family)}", ""]
        lines += table(["claim", "verdict", "in words", "effect"], map(row, group))
        lines += [""]
    return "\n".join([*lines, MEANING.strip(), ""])


def anchor(family: str) -> str:
    """Return the end of a link to a family's section."""
    return heading(family).lower().replace(" ", "-")


def row(claim: Findings) -> list[str]:
    """Return id, verdict, claim, and effect with marks."""
    link = f"[{claim.id}]({claim.file})"
    return [link, str(claim.standing), claim.declared["claim"], " · ".join(effect(claim))]


def effect(claim: Findings) -> list[str]:
    """Return the effect nearest to failing and what was needed, the seeds, and marks."""
    parts = []
    clause, error = findings.deciding(claim), findings.largest_error(claim)
    if clause:
        text = f"{findings.interval(clause)}, needed {findings.requirement(clause)}"
        if len(claim.clauses) > 1:
            text += f" (nearest of {len(claim.clauses)} clauses)"
        parts.append(text)
    elif error is not None:
        tolerance = number(claim.declared["tolerance"])
        parts.append(f"largest error {number(error)}, at most {tolerance}")
    if claim.latest and claim.latest["values"]:
        parts.append(f"{claim.latest['seeds']} seeds")
    found = findings.marks(claim)
    return parts + ([f"*{', '.join(found)}*"] if found else [])


def family_page(family: str, claims: Sequence[Findings]) -> str:
    """Return the page of a family: one line for each claim."""
    lines = [NOTE, f"# {heading(family)}", ""]
    lines += [f"[All claims](../../CLAIMS.md) · [{FAILURES}](failures.md)", "", READING]
    lines += ["", *map(line, claims), ""]
    return "\n".join(lines)


def line(claim: Findings) -> str:
    """Return verdict, id, claim, and effect with marks."""
    head = (
        f"- **{claim.standing}** [{claim.id}]({claim.id}.md): "
        f"{escape(clip(claim.declared['claim'], CLAIM))}"
    )
    return " · ".join([head, *effect(claim)])


def listing(claims: Sequence[Findings]) -> str:
    """Return the lines of `jaxrl list claims`: verdict, id and claim."""
    ordered = (claim for group in by_family(claims).values() for claim in group)
    return "".join(f"{c.standing.verdict}\t{c.id}\t{c.declared['claim']}\n" for c in ordered)


def failures(claims: Sequence[Findings]) -> str:
    """Return the page of claims that do not hold, are inconclusive or untestable, with reasons."""
    lines = [NOTE, f"# {FAILURES}", "", "[All claims](../../CLAIMS.md)", ""]
    lines += ["They were tested at a small scale: no paper is refuted by it."]
    for verdict in VERDICTS[1:4]:
        group = [c for c in claims if c.standing.verdict == verdict]
        if group:
            lines += ["", f"## {capital(verdict)}"]
        for claim in group:
            lines += _failure(claim)
    if len(lines) == 6:
        lines += ["", "There are none so far."]
    return "\n".join([*lines, ""])


def _failure(claim: Findings) -> list[str]:
    assert claim.latest
    family = f"[{heading(claim.family)}](../../CLAIMS.md#{anchor(claim.family)})"
    lines = ["", f"### [{claim.id}](../../{claim.file})", "",
             f"{family}. {escape(claim.declared['claim'])}", "",
             f"**Why:** {escape(todays(claim.standing.why))}", ""]  # fmt: skip
    if text := claim.declared.get("diagnosis"):
        lines += [f"**Diagnosis:** {escape(text)}", ""]
    lines += [f"- {capital(c['verdict'])}: {escape(todays(findings.result_text(claim, c)))}"
              for c in claim.clauses if c["verdict"] != "holds"]  # fmt: skip
    lines += [f"- {escape(todays(look['said']))}" for look in claim.latest["looks"]
              if not look["ok"]]  # fmt: skip
    lines += [f"- Revised: {escape(todays(' '.join(findings.changes(claim, r))))}"
              for r in claim.records if r["changed"] and r["event"] == "ended"]  # fmt: skip
    return lines
