"""The pages say what the records say, are linked with one another, and can be read on a phone."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from experiments.evidence import digests, findings, pages, pictures, words
from jaxrl.algorithms.families import NAMES, heading
from jaxrl.core.errors import UserError
from tests.evidence import made_up

ROOT = Path(__file__).resolve().parents[2]
CLAIMS, RECORDS, STALE = made_up.everything()
FOUND = findings.gather(CLAIMS, RECORDS, STALE, made_up.standing)
BY_ID = {claim.id: claim for claim in FOUND}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The root below which all pages are written, those of the site too."""
    root = tmp_path_factory.mktemp("site")
    pages.write(root, pages.repository(FOUND) | pages.site(FOUND))
    return root


def page(folder: Path, name: str) -> str:
    return (folder / "docs" / "claims" / f"{name}.md").read_text()


def lines(folder: Path, family: str = "value") -> dict[str, str]:
    """Return the line of each claim on a family's page."""
    found = re.findall(r"^- \*\*[^*]+\*\* \[([\w-]+)\].*$", page(folder, family), re.MULTILINE)
    text = page(folder, family).splitlines()
    return {id: next(x for x in text if x.startswith("- **") and f"[{id}]" in x) for id in found}


def svgs(folder: Path) -> list[tuple[str, ElementTree.Element]]:
    paths = sorted(folder.glob("docs/claims/pictures/*.svg"))
    return [(path.stem, ElementTree.parse(path).getroot()) for path in paths]


# ------------------------------------------------------------------------------- pages


def links(path: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", path.read_text())
    return [link for pair in found if "://" not in (link := "".join(pair))]


def test_every_link_leads_somewhere(folder):
    files = {claim.file for claim in FOUND}
    files |= {claim.file.replace(".py", ".jsonl") for claim in FOUND if claim.events or claim.old}
    linked = set()
    for path in folder.rglob("*.md"):
        for target in links(path):
            there = (path.parent / target.partition("#")[0]).resolve() if target[0] != "#" else path
            linked.add(there)
            inside = str(there.relative_to(folder.resolve()))
            assert there.exists() or inside in files or (ROOT / inside).exists(), (path, target)
            if "#" in target:
                headings = re.findall(r"^## (.*)", there.read_text(), re.MULTILINE)
                assert target.partition("#")[2] in [pages.anchor(f) for f in NAMES
                                                    if heading(f) in headings]  # fmt: skip
    written = {p.resolve() for p in folder.rglob("*.*") if p.suffix in (".md", ".svg")}
    of_claims = {(folder / "docs" / "claims" / f"{claim.id}.md").resolve() for claim in FOUND}
    families = {(folder / "docs" / "claims" / f"{claim.family}.md").resolve() for claim in FOUND}
    assert written - linked == set() and of_claims | families <= linked  # none is left alone


def test_committed_pages_link_to_nothing_that_only_the_site_has(folder):
    committed = {folder / path for path in pages.repository(FOUND)}
    only = {(folder / path).resolve() for path in pages.site(FOUND)}
    for path in committed:
        targets = {(path.parent / link.partition("#")[0]).resolve() for link in links(path)}
        assert not targets & only, path


def test_the_verdict_comes_first_and_the_claim_is_cut(folder):
    for name, line in (lines(folder) | lines(folder, "policy_gradient")).items():
        verdict = BY_ID[name].standing.verdict
        said = re.fullmatch(r"- \*\*(.+?)\*\* \[(.+?)\]\(.+?\): (.+?)(?: · .*)?", line)
        assert said and said[1] == verdict and said[2] == name
        assert len(said[3]) <= 90
        assert page(folder, name).split("\n# ")[1].startswith(f"{words.capital(verdict)}: {name}\n")
    assert set(lines(folder)) | set(lines(folder, "policy_gradient")) == set(BY_ID)
    order = [findings.VERDICTS.index(BY_ID[name].standing.verdict) for name in lines(folder)]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("held", "0.25 [0.21, 0.29], needed above 0.05 (nearest of 4 clauses) · 10 seeds "
                 "· *replicated*"),
        ("revised", "*revised, edge, unfinished*"),
        ("far-off", "· -3 [-3.03, -2.97], needed above 0.05 (nearest of 4 clauses) · 10 seeds "
                    "· *edge*"),
        ("few", "0.3 (no interval), needed above 0.05 (nearest of 4 clauses) · 10 seeds · *large*"),
        ("open", "*too few seeds*"),
        ("two-modes", "*two modes*"),
        ("no-room", "so that… · *ceiling, floor, one outcome*"),
        ("over", "*stale, over its minutes*"),
        ("waiting", "*run before the harness only*"),
    ],
)  # fmt: skip
def test_effects_and_marks_of_a_line(folder, id, said):
    assert lines(folder)[id].endswith(said)


def test_an_equality_shows_its_largest_error(folder):
    line = lines(folder, "policy_gradient")["equal-by-algebra"]
    assert line.endswith("largest error 1e-11, at most 1e-9 · 10 seeds")
    assert "| planted: a sign | 0.2 | above 0.001 |" in page(folder, "equal-by-algebra")


def test_every_mark_is_explained():
    explained = re.findall(r"^\| (.+?) \|", pages.MEANING, re.MULTILINE)
    explained = {word for cell in explained for word in cell.split(", ")}
    own = {"run before the harness only"}  # explains itself
    assert {m for s in FOUND for m in findings.marks(s)} | {*findings.MARKS.values()} <= (
        explained | own
    )
    assert set(findings.VERDICTS[:4]) <= explained


def test_the_summary_counts_verdicts_by_family(folder):
    text = (folder / "CLAIMS.md").read_text()
    assert "| [Value](#value) | 3 | 1 | 3 | 1 |" in text
    assert "| all | 4 | 1 | 3 | 1 |" in text
    assert "10 claims of 2 papers" in text and "1 is stale: recorded with older code." in text


def test_the_summary_has_a_line_for_each_claim(folder):
    text = (folder / "CLAIMS.md").read_text()
    families = [claim.family for claim in FOUND]
    assert families == sorted(families, key=NAMES.index) and len(set(families)) == 2
    for family in set(families):
        rows = text.partition(f"## {heading(family)}\n")[2].partition("\n## ")[0].splitlines()
        ids = [row.split("[")[1].split("]")[0] for row in rows if row.startswith("| [")]
        assert sorted(ids) == sorted(claim.id for claim in FOUND if claim.family == family)
    held = next(line for line in text.splitlines() if line.startswith("| [held]"))
    assert held == (
        f"| [held](experiments/claims/value/held.py) | holds | {made_up.LONG} | 0.25 [0.21, 0.29], "
        "needed above 0.05 (nearest of 4 clauses) · 10 seeds · *replicated* |"
    )
    assert "| [waiting](experiments/claims/value/waiting.py) | not run |" in text


def test_the_lines_of_the_command(folder):
    lines = (folder / "jaxrl" / "algorithms" / "claims.tsv").read_text().splitlines()
    assert f"holds\theld\t{made_up.LONG}" in lines and len(lines) == len(FOUND)


def test_failures_come_with_their_diagnosis(folder):
    text = page(folder, "failures")
    listed = re.findall(r"^### \[([\w-]+)\]", text, re.MULTILINE)
    assert listed == ["far-off", "few", "open", "two-modes", "no-room"]
    assert "[Value](../../CLAIMS.md#value). A claim of one hundred" in text
    part = text.partition("### [two-modes]")[2].partition("### ")[0]
    assert (
        "**Why:** Seeds end at 0 or at 1." in part and "**Diagnosis:** Too few | episodes." in part
    )
    assert "- Seeds of DQN end near 0 or near 1." in part


def test_a_claim_shows_all_its_attempts(folder):
    text = page(folder, "revised")
    attempts = re.findall(r"^- \*\*(\d: .+?)\*\*", text, re.MULTILINE)
    assert attempts == ["1: does not hold", "2: holds", "3: has not ended"]
    assert "  - Revised: seeds was 10 and is 20." in text
    assert "**Unfinished.** Attempt 3 began on 2026-12-03." in text
    assert "Tiny." not in page(folder, "held")  # a tiny run is no attempt
    renamed = "- Renamed, 2026-12-08, compared with commit fedcba9. Only names changed;"
    assert renamed in page(folder, "held")
    assert "**Stale.** DQN in catch lowers to another program." in page(folder, "over")
    assert "230 seeds in 3.5 h would probably decide it" in page(folder, "open")


def test_a_claim_shows_what_was_tested_and_how(folder):
    text = page(folder, "held")
    assert f"| It is better &lt;everywhere>. | {made_up.LONG} |" in text
    for said in ("**Left out:** Atari.", "IQN: No LSTM.", "[jaxrl/losses/](../../jaxrl/losses/)"):
        assert said in text
    chosen = "0.001 (catch); 0.003, at the edge (corridor of three keys)"
    assert f"- IQN, `learning_rate`: {chosen}; tried 0.0001, 0.0003, 0.001, 0.003" in text
    assert "| corridor of three keys | 1,200,000 | 0 to 1 |" in text
    assert "run.py held\n```\n\nAt most 5 minutes" in text and "took 5 min on 2 CPU cores" in text


def test_records_before_the_harness_are_folded_away(folder):
    inside = re.search(r"<details>(.*)</details>", page(folder, "waiting"), re.DOTALL)
    assert inside and "Before the harness: 1 attempt" in inside[1]
    assert "it 0.5 [0.4, 0.6]" in inside[1]
    assert page(folder, "waiting").count("**holds**") == inside[1].count("**holds**") == 1


def test_another_metric_and_an_environment_are_named():
    latest = {"values": {"a": {}, "b": {}}, "declared": digests.as_json(made_up.claim())}
    claim = BY_ID["held"]._replace(latest=latest)
    found = made_up.clause("X better than Y by 0.1 in a, b", "better", "b", 0.1, 0.2, 0.05, "holds")
    assert findings.result_text(claim, found | {"metric": "final"}) == (
        "X better than Y by 0.1 in b, by final: 0.2 [0.15, 0.25], needed above 0.1"
    )
    assert findings.requirement(found | {"kind": "not worse"}) == "above -0.1"
    assert findings.requirement(found | {"kind": "equal"}) == "within ±0.1"


def test_two_pages_cannot_have_one_name():
    claims = [("value", "value", made_up.claim())]
    with pytest.raises(UserError, match="'value' needs another id"):
        findings.gather(claims, [], {}, made_up.standing)


def test_a_revision_is_said_in_the_names_of_its_time():
    """A renaming between two attempts is no revision of what it renamed."""
    first, second = (r for r in RECORDS if r["id"] == "revised" and r["event"] == "ended")
    old = first | {"declared": {"metric": {"name": "score", "low": 0}}}
    new = second | {"declared": {"metric": {"name": "points", "low": 1}}}
    between = made_up.rename("revised", "score", "points")
    claim = BY_ID["revised"]
    change = "metric, low was 0 and is 1."
    renamed = claim._replace(records=[old, new], events=[old, between, new])
    assert findings.changes(renamed, new) == [change]
    later = claim._replace(records=[old, new], events=[old, new, between])
    assert findings.changes(later, new) == ['metric, name was "score" and is "points".', change]


def test_no_table_is_wider_than_five_columns(folder):
    for path in folder.rglob("*.md"):
        rows = re.findall(r"^\|(.*)\|$", path.read_text(), re.MULTILINE)
        assert all(len(re.split(r"(?<!\\)\|", row)) <= 5 for row in rows), path


def test_without_records_there_is_nothing_to_draw():
    found = findings.gather(CLAIMS[:1], [], {}, made_up.standing)
    assert set(pages.repository(found)) == {
        *("CLAIMS.md", "docs/claims/failures.md", "jaxrl/algorithms/claims.tsv")
    }
    assert set(pages.site(found)) == {*("docs/claims/value.md", f"docs/claims/{CLAIMS[0][0]}.md")}
    assert "There are none so far." in pages.failures(found)


# ------------------------------------------------------------------------------- pictures


def boxes(svg: ElementTree.Element) -> list[tuple[str, float, float, float, float]]:
    """Return each text with the box that it covers: left, right, top, bottom."""
    found = []
    for node in svg.iter("{http://www.w3.org/2000/svg}text"):
        wide = words.text_width(node.text or "", node.get("font-weight") == "bold")
        left = float(node.get("x", 0)) - (wide / 2 if node.get("text-anchor") == "middle" else 0)
        y = float(node.get("y", 0))
        found.append((node.text or "", left, left + wide, y - 0.8 * words.LETTER, y + 2))
    return found


def test_no_text_leaves_its_picture_or_covers_another(folder):
    wide_numbers = pictures.dots("A", [pictures.Panel("A", {"a": [0.0, 94400.0]})])
    drawn = [*svgs(folder), ("wide numbers", ElementTree.fromstring(wide_numbers))]
    assert len(drawn) == 11
    for name, svg in drawn:
        wide, tall = map(float, svg.get("viewBox", "").split()[2:])
        texts = boxes(svg)
        assert texts and wide == pictures.WIDTH
        for i, (text, left, right, top, bottom) in enumerate(texts):
            assert left >= 0 <= top and right <= wide and bottom <= tall, (name, text)
            for other, left2, right2, top2, bottom2 in texts[:i]:
                apart = right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top
                assert apart, (name, text, other)


def test_pictures_follow_the_dark_scheme(folder):
    for _, svg in svgs(folder):
        style = svg.find("{http://www.w3.org/2000/svg}style")
        assert style is not None and style.text
        light, dark = style.text.split("@media (prefers-color-scheme:dark)")
        used = {node.get("class") for node in svg.iter() if node.get("class")}
        assert used <= set(re.findall(r"\.(\w+)\{", light))
        assert used <= {*re.findall(r"\.(\w+)\{", dark), "band"}  # half transparent in both


def test_a_clause_holds_where_its_line_lies_in_the_band():
    for claim in FOUND:
        for effect in findings.effects(claim):
            three = effect.in_margins()
            assert three
            low, high = effect.band()
            inside = low < three[1] and three[2] < high
            assert inside or effect.verdict != "holds", (claim.id, effect)
            assert not inside or effect.verdict != "does not hold", (claim.id, effect)


@pytest.mark.parametrize(
    ("kind", "margin", "low", "high", "expected"),
    [
        ("better", 0.5, 1.0, 2.0, ((1, math.inf), (3.0, 2.0, 4.0))),
        ("better", 0.0, 1.0, 2.0, ((0, math.inf), (3.0, 2.0, 4.0))),  # half of the interval is 0.5
        ("not worse", 0.5, None, None, ((-1, math.inf), (3.0, -math.inf, math.inf))),
        ("equal", 0.5, 1.5, 1.5, ((-1, 1), (3.0, 3.0, 3.0))),
    ],
)
def test_effects_are_in_units_of_their_margins(kind, margin, low, high, expected):
    effect = pictures.Effect("", kind, "holds", margin, 1.5, low, high)
    assert (effect.band(), effect.in_margins()) == expected


def test_every_finite_seed_is_a_dot_and_the_others_are_counted():
    row = [0.1, 0.2, None, 0.2, 0.2, 0.2, 0.2, 0.2]
    svg = pictures.dots("A", [pictures.Panel("A panel", {"a side": row}, {"a side": 0.0})])
    assert svg.count('class="seed"') == 7 and ", 1 not<" in svg
    assert svg.count('class="before"') == 1 and svg.count('class="mean"') == 1


def test_a_dot_lies_where_the_axis_says():
    svg = pictures.dots("A", [pictures.Panel("A", {"a": [0.0, 9.0, 10.0]})])
    dot, tick = (
        re.search(r'class="seed" cx="([\d.]+)"', svg),
        re.search(r'x="([\d.]+)"[^>]*>0<', svg),
    )
    assert dot and tick and dot[1] == tick[1]


def test_a_picture_of_one_value_or_of_none_has_an_axis():
    for row in ([0.0], [None], [-3e6, -3e6]):
        assert 'class="grid"' in pictures.dots("A", [pictures.Panel("A", {"a": row})])
    none = pictures.Effect("a", "better", "inconclusive", 0.1, None, None, None)
    assert "no value" in pictures.effects("A", {"a": [none]})


# ------------------------------------------------------------------------------- words


def test_numbers_have_three_digits_and_lines_are_broken():
    found = [words.number(x) for x in (0.12345, 1600.0, -1e-9, 1.23456e7, 0, None, math.inf)]
    assert found == ["0.123", "1600", "-1e-9", "1.23e7", "0", "?", "?"]
    broken = words.wrap("a very_long_word_that_must_be_broken here", 80)
    assert max(map(words.text_width, broken)) <= 80
    assert "".join(broken).replace(" ", "") == "avery_long_word_that_must_be_brokenhere"
    assert words.capital("does not hold") == "Does not hold" and words.capital("") == ""
    old = "A mean over worlds, in one World, of a world model."
    assert words.todays(old) == "A mean over environments, in one Environment, of a world model."
    assert words.clip("one two three", 9) == "one two…" and words.clip("one", 3) == "one"
