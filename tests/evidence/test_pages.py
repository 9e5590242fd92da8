"""The pages say what the records say, are linked with one another, and can be read on a phone."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from experiments.evidence import digests, findings, history, pages, records, words
from experiments.evidence.claim_page import claim_page
from jaxrl.algorithms.families import NAMES, heading
from jaxrl.core.errors import UserError
from tests.evidence import made_up

ROOT = Path(__file__).resolve().parents[2]
CLAIMS, RECORDS, STALE = made_up.everything()
FOUND = findings.gather(
    CLAIMS, records.with_judgements(RECORDS), STALE, history.standing, made_up.BEST
)
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


def visible_lines(text: str) -> list[str]:
    """Return the lines of a page that a reader sees."""
    seen = [line for line in text.splitlines() if line and not line.startswith("<!--")]
    return [line for line in seen if not re.fullmatch(r"[| -]+", line)]


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
    committed = {(folder / path).resolve() for path in pages.repository(FOUND)}
    only = {path.resolve() for path in folder.rglob("*.*")} - committed
    assert len(only) > len(FOUND)
    for path in committed:
        targets = {(path.parent / link.partition("#")[0]).resolve() for link in links(path)}
        assert not targets & only, path


def test_the_verdict_comes_first_and_the_claim_is_cut(folder):
    for name, line in (lines(folder) | lines(folder, "policy_gradient")).items():
        verdict = str(BY_ID[name].standing)
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
        ("revised", "· *edge, unfinished*"),
        ("redesigned", "10 seeds · *redesigned, weak baseline, below random play*"),
        ("judged", "0.02 [-0.01, 0.05], needed above 0 (nearest of 4 clauses) · 10 seeds"),
        ("piloted", "so that…"),
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
    """Claims that held on a third design are counted apart."""
    text = (folder / "CLAIMS.md").read_text()
    head = "| family | holds | holds, redesigned | does not hold | inconclusive | untestable |"
    assert head in text
    assert "| [Policy gradient](#policy-gradient) | 1 | 0 | 0 | 0 | 0 |" in text
    assert "| [Value](#value) | 3 | 1 | 1 | 4 | 1 |" in text
    assert "| all | 4 | 1 | 1 | 4 | 1 |" in text
    assert "13 claims of 2 papers" in text and "\n1 is stale.\n" in text


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
    designed = "| [redesigned](experiments/claims/value/redesigned.py) | holds, on design 3 of 3 |"
    assert designed in text


def test_the_lines_of_the_command(folder):
    lines = (folder / "jaxrl" / "algorithms" / "claims.tsv").read_text().splitlines()
    assert f"holds\theld\t{made_up.LONG}" in lines and len(lines) == len(FOUND)
    assert f"holds\tredesigned\t{made_up.LONG}" in lines  # the verdict alone


def test_failures_come_with_their_diagnosis(folder):
    text = page(folder, "failures")
    listed = re.findall(r"^### \[([\w-]+)\]", text, re.MULTILINE)
    assert listed == ["far-off", "few", "judged", "open", "two-modes", "no-room"]
    assert "[Value](../../CLAIMS.md#value). A claim of one hundred" in text
    part = text.partition("### [two-modes]")[2].partition("### ")[0]
    assert (
        "**Why:** Seeds end at 0 or at 1." in part and "**Diagnosis:** Too few | episodes." in part
    )
    assert "- Seeds of DQN end near 0 or near 1." in part
    part = text.partition("### [judged]")[2].partition("### ")[0]
    assert part.count("switching it off costs 10 % of the effect") == 1


# ------------------------------------------------------------------------------- a claim


@pytest.mark.parametrize("claim", [c for c in FOUND if c.latest and c.latest["values"]])
def test_ten_lines_say_what_there_is_to_know(folder, claim):
    seen = visible_lines(page(folder, claim.id))[:10]
    order = [
        f"# {words.capital(str(claim.standing))}: {claim.id}",
        "**The paper** says: It is better &lt;everywhere>. — On ",
        f"**Tested here:** {claim.declared['claim']}",
    ]
    assert all(line.startswith(start) for line, start in zip(seen, order, strict=False))
    if claim.is_exact:
        assert "| error | 1e-11 | at most 1e-9 |" in seen
        return
    table = [line.split(" | ")[0][2:] for line in seen[3:7]]
    assert table[0] == "side" and set(table[1:]) == set(claim.latest["declared"]["sides"])
    assert "reported seeds with 95 % intervals" in seen[7]
    assert all(line.startswith("- **") and ", needed " in line for line in seen[8:])


def test_means_lie_on_the_scale_from_random_play_to_the_best_known(folder):
    text = page(folder, "held")
    scores = BY_ID["held"].latest["values"]["catch"]["DQN"]["score"]
    mean = np.mean(scores)
    half = 2.262 * np.std(scores, ddof=1) / math.sqrt(10)  # of Student's t, 9 degrees of freedom
    said = f"{mean:.3g} [{mean - half:.3g}, {mean + half:.3g}] ({100 * (mean - 0.2) / 0.5:.0f} %)"
    (row,) = [line for line in text.splitlines() if line.startswith("| DQN |")]
    assert row.startswith(f"| DQN | {said} | ")
    assert row.count("%") == 1  # in the corridor, nothing is known at so small a budget
    assert "| side | score, catch | score, corridor of three keys |" in text
    assert "*score* is the mean return of greedy evaluations over training; more is better; 0 % " \
        "is random play and 100 % the best known after as many steps: in catch 0.2 and 0.7 (IQN " \
        "in the claim held).\n" in text  # fmt: skip
    assert "PPO in the suite keys" not in text


def test_a_metric_of_its_own_has_its_meaning_and_no_scale():
    own = made_up.claim()
    metric = {"name": "score", "more_is_better": False, "meaning": "how often it falls"}
    declared = digests.as_json(own) | {"measure": "a:b"}
    declared["metric"] |= metric
    known = made_up.end("held", own, "holds", "It held.", made_up.clauses())
    known["declared"] = declared
    claims = [("held", "value", own)]
    (claim,) = findings.gather(claims, [known], {}, history.standing, made_up.BEST)
    text = claim_page(claim)
    assert "intervals; *score* is how often it falls; less is better.\n" in text
    assert "%)" not in text and not claim.scales and not claim.warnings


def test_a_seed_that_is_not_finite_is_no_part_of_a_mean(folder):
    assert "| DQN | 0.5 [" in page(folder, "two-modes")  # of four, as the fifth is none


def test_a_clause_says_what_its_margin_passes_over(folder):
    text = page(folder, "judged")
    clause = "IQN not worse than DQN by 0.1 over all environments: -0.06 [-0.09, -0.03] "
    assert f"- **holds**: {clause}(interquartile mean), needed above -0.1, though it is worse by " \
        "0.06\n" in text  # fmt: skip
    assert text.count("though") == 1
    assert "needed above 0; switching it off costs 10 % of the effect\n" in text
    assert "**Why:** It may not be the mechanism.\n" in text
    assert "switching it off" not in page(folder, "held")  # no share was recorded


@pytest.mark.parametrize(
    ("kind", "low", "high", "verdict", "said"),
    [
        ("equal", 0.02, 0.06, "holds", ", though it is better by 0.04"),
        ("equal", -0.06, -0.02, "holds", ", though it is worse by 0.04"),
        ("equal", -0.01, 0.09, "holds", ""),
        ("not worse", -0.06, -0.02, "holds", ", though it is worse by 0.04"),
        ("not worse", -0.06, -0.02, "inconclusive", ""),
        ("better", 0.02, 0.06, "holds", ""),
        ("equal", None, None, "holds", ""),
    ],
)
def test_though(kind, low, high, verdict, said):
    value = 0.04 if low is None or low + high > 0 else -0.04
    clause = made_up.clause("X to Y", kind, "", 0.1, value, 0.0, verdict, low=low, high=high)
    assert findings.result_text(BY_ID["held"], clause).endswith(f"±0.1{said}" if kind == "equal"
                                                                else f"0.1{said}")  # fmt: skip


def test_a_page_warns_of_weak_baselines_and_of_less_than_random_play(folder):
    text = page(folder, "redesigned")
    assert re.findall(r"^\*\*Beware:\*\* (.*)$", text, re.MULTILINE) == [
        "The baseline DQN ends at 0.4 in catch, below two thirds of the best known there: 0.7 (IQN "
        "in the claim held), where random play has 0.2.",
        "one quantile ends at 0.1 in catch, below random play (0.2).",
    ]
    assert text.index("**Beware:**") < text.index("## ")
    assert [c.id for c in FOUND if "**Beware" in page(folder, c.id)] == ["redesigned"]


def test_a_page_says_on_which_design_its_verdict_stands(folder):
    text = page(folder, "redesigned")
    assert "# Holds, on design 3 of 3: redesigned\n" in text
    design = "Design 3 of 3, attempt 3; the intervals of the clauses have a confidence of 97.5 % "
    more = "together. It took more than two designs: read the earlier ones below. Replay one seed"
    assert design + more in text
    assert "```bash\npython experiments/evidence/run.py redesigned --replay\n```" in text
    assert "more than two designs" not in page(folder, "revised")
    again = "together. Replicated: it held a second time, on fresh seeds. Replay one seed"
    assert again in page(folder, "held")
    assert "Design 1 of 1, attempt 1. Replay" in page(folder, "equal-by-algebra")


def test_earlier_designs_have_their_figures(folder):
    """A pilot and what was untestable spent no reported seed, and yet were seen."""
    text = page(folder, "redesigned").partition("## All attempts\n")[2]
    attempts = re.findall(r"^- \*\*(\d: .+?)\*\*, (design \d)", text, re.MULTILINE)
    assert attempts == [("1: pilot", "design 1"), ("2: does not hold", "design 2"),
                        ("3: holds", "design 3")]  # fmt: skip
    assert "pilot budget" in text and "A pilot spends no reported seed." in text
    seen = BY_ID["redesigned"].records[0]["pilot"]
    said = [f"{side} {words.number(np.mean(of['score']))} (score, {label})"
            for label, sides in seen.items() for side, of in sides.items()]  # fmt: skip
    assert f"  - On tuning seeds: {', '.join(said)}.\n" in text
    assert text.count("On tuning seeds") == 1  # clauses have the figures of the others
    assert page(folder, "no-room").count(f"  - On tuning seeds: {', '.join(said)}.\n") == 2
    assert "On tuning seeds" in page(folder, "piloted")
    assert "# Not run: piloted\n" in page(folder, "piloted")


def test_later_judgements_count_and_are_told(folder):
    text = page(folder, "judged")
    assert "# Inconclusive: judged\n" in text
    again = "- Attempt 1 judged again, 2026-12-08, by later rules at 97.5 %: inconclusive (was "
    assert again in text


def test_mutations_are_told_and_which_went_unnoticed(folder):
    text = page(folder, "judged")
    assert "- Mutation, 2026-12-09. The verdict does not notice.\n" in text
    assert "With `--mutate` it must notice: the sign is flipped.\n" in text
    assert "**Not noticed:** the sign is flipped.\n" in text
    assert "must notice (not tried so far): the sign is flipped.\n" in page(folder, "held")
    assert "Not noticed" not in page(folder, "held")


def test_a_claim_shows_all_its_attempts(folder):
    text = page(folder, "revised")
    attempts = re.findall(r"^- \*\*(\d: .+?)\*\*", text, re.MULTILINE)
    assert attempts == ["1: does not hold", "2: holds", "3: has not ended"]
    assert "  - Revised: seeds was 10 and is 20." in text
    assert "**Unfinished.** Attempt 3 began on 2026-12-03." in text
    assert "Tiny." not in page(folder, "held")  # a tiny run is no attempt
    renamed = "- Renamed, 2026-12-08, commit fedcba9. The first seed has the recorded values.\n"
    assert renamed in page(folder, "held")
    replayed = "- Replayed, 2026-12-09, version 0.2.0. The first seed has the recorded values on "
    assert replayed in page(folder, "held")
    assert "**Stale.** Replayed seeds left the recorded range." in page(folder, "over")
    assert "**Stale.**" not in page(folder, "held")
    assert "230 seeds in 3.5 h would probably decide it" in page(folder, "open")


def test_a_claim_shows_what_was_tested_and_how(folder):
    text = page(folder, "held")
    for said in ("**Left out:** Atari.", "**Differs from its paper, IQN:** No LSTM.",
                 "**Diagnosis:** Too few | episodes.", "**Notes:** A | in a note.",
                 "[jaxrl/losses/](../../jaxrl/losses/)"):  # fmt: skip
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
        findings.gather(claims, [], {}, history.standing)


def test_a_revision_is_said_in_the_names_of_today():
    """A renaming, whenever it was, is no revision of what it renamed."""
    first, second = (r for r in RECORDS if r["id"] == "revised" and r["event"] == "ended")
    metric = lambda name, low: {"declared": {"metric": {"name": name, "low": low}}}
    rename = made_up.rename("revised", "score", "points")
    claim = BY_ID["revised"]
    old, new = first | metric("score", 0), second | metric("points", 1)
    between = claim._replace(records=[old, new], events=[old, rename, new])
    assert findings.changes(between, new) == ["metric, low was 0 and is 1."]
    old, new = first | metric("other", 0), second | metric("score", 0)
    later = claim._replace(records=[old, new], events=[old, new, rename])
    assert findings.changes(later, new) == ['metric, name was "other" and is "points".']


def test_no_table_is_wider_than_a_phone(folder):
    for path in folder.rglob("*.md"):
        rows = re.findall(r"^\|(.*)\|$", path.read_text(), re.MULTILINE)
        most = 6 if path.name == "CLAIMS.md" else 5  # its first has a column for each verdict
        assert all(len(re.split(r"(?<!\\)\|", row)) <= most for row in rows), path


def test_without_records_there_is_nothing_to_draw():
    found = findings.gather(CLAIMS[:1], [], {}, history.standing)
    assert set(pages.repository(found)) == {
        *("CLAIMS.md", "docs/claims/failures.md", "jaxrl/algorithms/claims.tsv")
    }
    assert set(pages.site(found)) == {*("docs/claims/value.md", f"docs/claims/{CLAIMS[0][0]}.md")}
    assert "There are none so far." in pages.failures(found)


# ------------------------------------------------------------------------------- pictures


def test_a_picture_has_every_seed_of_what_clauses_are_about():
    latest = BY_ID["held"].latest
    strips = findings.strips(BY_ID["held"])
    assert list(strips.panels) == ["score in catch", "score in corridor of three keys"]
    for label, sides in latest["values"].items():
        rows = {side: metrics["score"] for side, metrics in sides.items()}
        assert strips.panels[f"score in {label}"] == rows
    assert strips.references == {"score in catch": {"random": 0.2, "best known": 0.7}}
    assert not strips.logarithmic
    lost = findings.strips(BY_ID["two-modes"]).panels["score in catch"]["DQN"]
    np.testing.assert_equal(lost, [0.0, 1.0, 1.0, np.nan, 0.0])


def test_each_metric_of_a_clause_is_drawn_where_it_is_asked_for():
    latest = made_up.end("held", made_up.claim(), "holds", "", made_up.clauses())
    latest["clauses"][1] |= {"metric": "untrained"}  # a clause about the corridor
    strips = findings.strips(BY_ID["held"]._replace(latest=latest))
    corridor = "in corridor of three keys"
    assert list(strips.panels) == ["score in catch", f"score {corridor}", f"untrained {corridor}"]


def test_the_picture_of_an_equality_has_its_limits():
    strips = findings.strips(BY_ID["equal-by-algebra"])
    assert strips.logarithmic and strips.references == {
        "error": {"tolerance": 1e-9, "effect": 1e-3}
    }
    assert list(strips.panels["error"]) == ["error: error", "error: another error",
                                            "planted: a sign"]  # fmt: skip


def test_pictures_are_written_and_named(folder):
    """The text of a figure is drawn as shapes, and stands beside them in comments."""
    drawn = {path.stem: path for path in folder.glob("docs/claims/pictures/*.svg")}
    assert set(drawn) == {c.id for c in FOUND if c.latest and c.latest["values"]}
    for id, path in drawn.items():
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        strips, text = findings.strips(BY_ID[id]), path.read_text()
        for panel, rows in strips.panels.items():
            assert all(f"<!-- {name} -->" in text for name in (panel, *rows))
        assert ("<!-- best known -->" in text) == ("score in catch" in strips.references)
        assert f"](pictures/{id}.svg)" in page(folder, id)


# ------------------------------------------------------------------------------- words


def test_numbers_have_three_digits_and_texts_are_cut_between_words():
    found = [words.number(x) for x in (0.12345, 1600.0, -1e-9, 1.23456e7, 0, None, math.inf)]
    assert found == ["0.123", "1600", "-1e-9", "1.23e7", "0", "?", "?"]
    assert words.capital("does not hold") == "Does not hold" and words.capital("") == ""
    old = "A mean over worlds, in one World, of a world model."
    assert words.todays(old) == "A mean over environments, in one Environment, of a world model."
    assert words.clip("one two three", 9) == "one two…" and words.clip("one", 3) == "one"


def test_a_renaming_of_an_older_harness_names_no_attempt():
    claim = next(c for c in FOUND if c.latest and c.clauses)
    old = {"event": "renamed", "date": "2026-11-24", "commit": "0123456789ab", "why": "Names."}
    text = claim_page(claim._replace(events=[*claim.events, old]))
    assert "- Renamed, 2026-11-24, commit 0123456. Names.\n" in text
