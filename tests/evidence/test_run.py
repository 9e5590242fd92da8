"""The command line, with stubs that stand for training, judging and pages, and without them.

Planted are a pilot whose record was removed, code that changed since an attempt, a claim that is
more than renamed, and a verdict by older rules.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path

import jax
import pytest

import experiments.evidence
import jaxrl
from experiments.evidence import bank, children, history, listing, pages, records, run, sides
from experiments.evidence.claim_page import claim_page
from jaxrl.algorithms import families
from jaxrl.commands import command_line
from jaxrl.core.errors import UserError
from tests.evidence.planted import FAMILY, WORKING, change, commit, repository

ROOT = Path(__file__).resolve().parents[2]

# Modules of a test's repository that stand for training and judging. An attempt waits until as many
# have begun as the file `together` says, and forever if there is a file `wait`.
STUBS = {
    "attempt": """
        import time
        from pathlib import Path

        Readers = lambda *readers: readers

        def plan(declaration, digest, ended, budget, cores):
            return 60 * declaration.minutes

        def run(declaration, begun, tuning_root, store, tell, **more):
            flags = Path(store)
            (flags / f"began-{begun['id']}").touch()
            together = flags / "together"
            wanted = int(together.read_text()) if together.exists() else 0
            while len(list(flags.glob("began-*"))) < wanted:
                time.sleep(0.01)
            tell(f"tuned from {tuning_root > 0}")
            while (flags / f"wait-{begun['id']}").exists():
                time.sleep(0.01)
            look = {"name": "edge", "ok": False, "said": "At the edge."}
            return begun | {"event": "ended", "verdict": "holds", "why": f"Level {begun['level']}.",
                            "looks": [look], "seconds": 1.0, "values": {}, "tuned": {}}
        """,
    "bank": """
        Bank = lambda path, facts: path
        check = lambda claim: None
        results = lambda path: []
        is_shared = lambda declaration: False
        """,
    "looks": "look = None",
    "judge": "judge = judge_exact = None",
    "mutate": """
        def mutate(declaration, ended, readers, tell):
            return [{"name": m.name, "said": f"It notices '{m.name}'.", "seen": m.name != "unseen"}
                    for m in declaration.mutations]
        """,
    "scale": """
        read = lambda path: []
        check_margins = lambda claim, rows: None
        table = lambda claims, suites, baselines, known: [len(claims)]

        def write(path, rows):
            path.write_text(f"{rows}\\n")
        """,
    "findings": """
        def gather(claims, records, stale, standing, best):
            return [f"{id} {stale.get(id, '')}".strip() for id, _, _ in claims]
        """,
    "pages": """
        def repository(found):
            return "; ".join(found)

        def write(root, text):
            (root / "CLAIMS.md").write_text(text)
        """,
}


def look_into(monkeypatch, root: Path) -> None:
    """Have `run` look into the repository `root`, and run claims in this process."""
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setattr(run, "ROOT", root)
    monkeypatch.setattr(run, "BEST", root / records.BEST)
    monkeypatch.setattr(run, "BASELINES", root / records.BASELINES)
    monkeypatch.setattr(run, "SUITES", root / "docs" / "suites")
    monkeypatch.setattr(run, "STORE", root / "runs" / "evidence")

    def at_once(ids, script, options, jobs, seconds):
        flags = {name.lstrip("-"): "" for name in options}
        flags["cores"] = ",".join(map(str, records.cores()))
        budget = next((name for name in run.BUDGETS if name in flags), "full")
        claims = listing.discover(root)
        return {id: run.child(claims[id], budget, flags) for id in ids}

    monkeypatch.setattr(children, "run_all", at_once)


def forget() -> None:
    """Have planted modules imported anew."""
    for name in [name for name in sys.modules if f".{FAMILY}" in name or name == "planted_part"]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the claims `ppo` and `two-words`, where `run` looks."""
    folder = repository(tmp_path, "ppo", "two-words")
    for name, text in STUBS.items():
        module = types.ModuleType(name)
        exec(textwrap.dedent(text), module.__dict__)
        monkeypatch.setattr(experiments.evidence, name, module, raising=False)
    look_into(monkeypatch, tmp_path)
    yield folder
    forget()


@pytest.fixture
def real(tmp_path, monkeypatch):
    """The folder of the claim `ppo`, which `run` measures and judges without stubs."""
    folder = repository(tmp_path, "ppo", text=WORKING)
    look_into(monkeypatch, tmp_path)
    family = families.Family(FAMILY, "Planted")
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, family))
    for module in (families, pages):
        monkeypatch.setattr(module, "NAMES", (*families.NAMES, FAMILY))
    yield folder
    forget()


def call(capsys, *argv) -> tuple[int, str, str]:
    """Return exit code, output and errors."""
    code = command_line.call(run.main, argv)
    out, error = capsys.readouterr()
    return code, out, error


def read(folder, stem="ppo"):
    return records.read(folder / f"{stem}.jsonl")


def attempts(folder, *stems):
    """Return the records of claims, one claim after the other."""
    found = [r for stem in stems or ("ppo", "two_words") for r in read(folder, stem)]
    return [(r["id"], r["event"], r["attempt"]) for r in found]


def again(folder):
    """Commit the working tree, and have the claims imported anew."""
    commit(folder.parents[2])
    forget()


def page() -> str:
    """Return the page of the claim `ppo`."""
    claims = listing.discover(run.ROOT).values()
    return claim_page(next(claim for claim in run.gather(claims) if claim.id == "ppo"))


# ------------------------------------------------------------------------------- what there is


def test_listing_imports_no_claim(folder, tmp_path):
    change(folder / "ppo.py", '"""A claim."""', 'raise AssertionError("imported")')
    (folder / "one_value.py").write_text("import x\nCLAIM: x.Exact = x.Exact(claim='It is.')\n")
    found = listing.discover(tmp_path)
    assert [(c.id, c.family, c.kind, c.claim) for c in found.values()] == [
        ("one-value", FAMILY, "exact", "It is."),
        ("ppo", FAMILY, "claim", "New is better than old."),
        ("two-words", FAMILY, "claim", "New is better than old."),
    ]
    other = folder.with_name("other")
    other.mkdir()
    shutil.copy(folder / "ppo.py", other)
    with pytest.raises(UserError, match=r"ppo.py is there twice, in other and planted_family"):
        listing.discover(tmp_path)
    for text, said in (("CLAIM = (", "is no Python"), ("X = 1\n", "declares no CLAIM")):
        (other / "ppo.py").write_text(text)
        with pytest.raises(UserError, match=f"other/ppo.py {said}"):
            listing.discover(tmp_path)


def test_the_claims_of_this_repository_are_found():
    found = listing.discover(ROOT)
    assert {"ppo", "a2c-is-ppo"} <= set(found)
    assert all(claim.claim for claim in found.values())
    assert {claim.family for claim in found.values()} <= set(families.NAMES)


def test_a_claim_names_the_devices_that_it_needs(tmp_path):
    path = tmp_path / "words.py"
    for text, expected in (("A, B = 1, 2\n", 1), ("A = 1\nDEVICES = 8\n", 8)):
        path.write_text(text)
        assert listing.ClaimFile("words", "family", path, "exact", "It holds.").devices == expected
    assert listing.discover(ROOT)["hybridflow"].devices == 8


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["pqo"], "Unknown claim 'pqo'; did you mean 'ppo'?"),
        (["--family", "plantd_family"], "Unknown family 'plantd_family'; did you mean"),
        (["--lst"], "Unknown option '--lst'; did you mean '--list'?"),
        (["--family"], "--family needs a value."),
        (["--jobs", "none"], "--jobs is a whole number from 1 on, not 'none'."),
        (["--tiny", "--large"], "--tiny and --large are 2 budgets; give one."),
        (["--pilot", "--large"], "--pilot and --large are 2 budgets; give one."),
        (["--stale"], "Unknown option '--stale'"),
    ],
)
def test_bad_input_is_one_sentence(folder, capsys, argv, said):
    code, out, error = call(capsys, *argv)
    assert (code, out) == (2, "") and error.startswith(f"error: {said}") and error.count("\n") == 1


def test_help(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0 and all(f"--{name}" in out for name in (*run.FLAGS[:-1], *run.VALUES[:-1]))


# ------------------------------------------------------------------------------- attempts


def test_a_run_is_recorded_and_shown(folder, capsys, tmp_path):
    code, out, _ = call(capsys)
    assert code == 0 and "tuned from True" in out and "holds: Level 0.95." in out
    assert attempts(folder) == [("ppo", "begun", 1), ("ppo", "ended", 1),
                                 ("two-words", "begun", 1), ("two-words", "ended", 1)]  # fmt: skip
    begun, ended = read(folder)
    wanted = "format rules event id family kind attempt digest declared changed level seeds code "
    wanted += "seed_root commit date jax jaxrl generator cores device seconds budget"
    assert set(begun) == set(wanted.split())
    assert ended["declared"] == begun["declared"] and ended["seed_root"] == begun["seed_root"]
    assert (tmp_path / "CLAIMS.md").read_text() == "ppo; two-words"
    assert (tmp_path / records.BEST).read_text() == "[4]\n"  # of all records
    assert begun["rules"] == records.RULES

    code, out, _ = call(capsys)  # all have what they declare now
    assert code == 0 and "nothing to run" in out and len(attempts(folder)) == 4
    call(capsys, "ppo")  # what is named is tried once more
    assert attempts(folder, "ppo")[2:] == [("ppo", "begun", 2), ("ppo", "ended", 2)]
    assert read(folder)[2]["changed"] == []

    code, out, _ = call(capsys, "--list")
    rows = [line.split() for line in out.splitlines()]
    assert rows == [
        [FAMILY, "ppo", "holds", "2", "attempts,", "edge"],
        [FAMILY, "two-words", "holds", "edge"],
    ]


def test_a_revision_after_a_run_is_run_and_marked(folder, capsys):
    call(capsys)
    change(folder / "ppo.py", "All else.", "The rest.")
    again(folder)
    assert "nothing to run" in call(capsys)[1]
    change(folder / "ppo.py", "0.1", "0.2")
    page = run.ROOT / "CLAIMS.md"
    assert call(capsys, "--pages")[0] == 0
    assert page.read_text() == "ppo Its declaration was revised since.; two-words"
    assert "revised since" in call(capsys, "ppo", "--list")[1]
    code, _, error = call(capsys)
    assert code == 2 and "is not what was committed" in error and len(attempts(folder)) == 4
    again(folder)
    assert call(capsys, "two-words")[0] == 0
    assert page.read_text() == "ppo Its declaration was revised since.; two-words"
    assert call(capsys)[0] == 0 and page.read_text() == "ppo; two-words"
    assert attempts(folder, "ppo")[2:] == [("ppo", "begun", 2), ("ppo", "ended", 2)]
    changed = ["clauses, new better than old, margin was 0.1 and is 0.2."]
    assert read(folder)[-1]["changed"] == changed
    assert "2 attempts, revised, edge" in call(capsys, "ppo", "--list")[1]


def test_nothing_is_spent_where_one_cannot_be_recorded(folder, capsys, monkeypatch):
    change(folder.parents[2] / "jaxrl" / "part.py", "1", "2")
    with monkeypatch.context() as patch:
        patch.setattr(children, "run_all", None)  # no process is begun
        code, _, error = call(capsys)
    assert code == 2 and "jaxrl/part.py differs from the last commit" in error
    assert attempts(folder) == []
    assert call(capsys, "ppo", "--tiny")[0] == 0  # which needs no commit and is no record
    assert attempts(folder) == [] and not (folder.parents[2] / "CLAIMS.md").exists()


def test_an_interrupted_attempt_goes_on(folder, capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(experiments.evidence.attempt, "run", interrupt)
        assert call(capsys, "ppo")[0] == 130
    assert call(capsys, "ppo", "--list")[1].split()[2:] == ["not", "run", "interrupted"]
    (folder.parents[2] / "note.md").write_text("Something else.")
    commit(folder.parents[2])
    assert call(capsys, "ppo")[0] == 0
    assert attempts(folder) == [("ppo", "begun", 1), ("ppo", "ended", 1)]
    begun, ended = read(folder)
    assert begun["commit"] != ended["commit"]  # each its own, and the code of both is one
    assert begun["code"] == ended["code"] and begun["seed_root"] == ended["seed_root"]


def test_one_claim_is_one_process_at_a_time(folder, capsys):
    claim = listing.discover(run.ROOT)["ppo"]
    with run.prepare(claim, "full", recorded=False):
        code, _, error = call(capsys, "ppo")
    assert code == 2 and "Another process is writing to" in error and attempts(folder) == []


# ------------------------------------------------------------------------------- plan and more


def test_a_plan_spends_nothing(folder, capsys):
    change(folder / "two_words.py", "minutes=2.0", "minutes=3.5")
    code, out, _ = call(capsys, "--plan", "--jobs", "2")
    assert code == 0 and attempts(folder) == []
    assert [line.split()[1:] for line in out.splitlines()[:2]] == [
        ["ppo", "2", "min"],
        ["two-words", "4", "min"],
    ]
    assert out.splitlines()[2] == "6 min in all, 3 min with 2 side by side."


def test_mutations_are_recorded_and_unseen_ones_are_an_error(folder, capsys):
    code, out, _ = call(capsys, "ppo", "--mutate")
    assert (code, out) == (1, "It has no result with reported seeds.\n") and attempts(folder) == []
    call(capsys)
    assert call(capsys, "ppo", "--mutate")[:2] == (
        1,
        "It has no result with reported seeds.\n",
    )  # of no values
    for path in folder.glob("*.jsonl"):
        change(path, '"values": {}', '"values": {"cartpole": {}}')
    assert call(capsys, "ppo", "--mutate")[:2] == (0, "It names no mutation.\n")
    assert len(read(folder)) == 2
    mutations = 'mutations=(Mutation("seen", "a:b", unused), Mutation("unseen", "a:b", unused)),'
    change(folder / "ppo.py", "    notes=NOTES,", "    " + mutations)
    again(folder)
    code, out, _ = call(capsys, "ppo", "--mutate")
    assert (code, out) == (1, "It notices 'seen'.\nIt notices 'unseen'.\n")
    mutated = read(folder)[-1]
    assert attempts(folder, "ppo")[-1] == ("ppo", "mutated", 1) and len(read(folder)) == 3
    assert [(m["name"], m["seen"]) for m in mutated["mutations"]] == [("seen", True),
                                                                     ("unseen", False)]  # fmt: skip
    change(folder / "ppo.py", ' Mutation("unseen", "a:b", unused)', "")
    again(folder)
    assert call(capsys, "ppo", "--mutate")[0] == 0
    assert "12 s in all" in call(capsys, "ppo", "--mutate", "--plan")[1]  # a tenth for each


# ------------------------------------------------------------------------------- pilots


def reported_keys(record) -> set[tuple[int, ...]]:
    """Return the keys of the seeds that an attempt reports."""
    keys = sides.keys_of(record["seed_root"], "cartpole", record["seeds"])
    return set(map(tuple, jax.random.key_data(keys).tolist()))


def test_a_pilot_is_recorded_and_spends_no_reported_seed(real, capsys):
    assert call(capsys, "ppo", "--pilot")[0] == 0
    begun, ended = read(real)
    assert attempts(real, "ppo") == [("ppo", "begun", 1), ("ppo", "ended", 1)]
    assert begun["budget"] == ended["budget"] == ended["verdict"] == "pilot"
    assert ended["values"] == {} and ended["clauses"] == []
    assert len(ended["pilot"]["cartpole"]["new"]["score"]) == 3  # tuning seeds
    seen = set(sys.modules["planted_part"].SEEN)
    assert len(seen) == 3 and not seen & reported_keys(ended)
    assert "not run" in call(capsys, "--list")[1]
    assert "# Not run: ppo\n" in page()
    figures = re.search(r"On tuning seeds: new ([\d.]+) \(score, cartpole\), old ", page())
    assert figures and 90 <= float(figures[1]) <= 95

    assert call(capsys)[0] == 0  # what has a pilot alone is still to be run
    assert attempts(real, "ppo")[2:] == [("ppo", "begun", 2), ("ppo", "ended", 2)]
    last = read(real)[-1]
    assert last["verdict"] == "holds" and last["level"] == history.confidence(1)  # of one design
    assert reported_keys(last) <= set(sys.modules["planted_part"].SEEN)
    assert "# Holds: ppo\n" in page()


def test_another_design_after_a_pilot_is_a_revision_and_another_try(real, capsys):
    call(capsys, "ppo", "--pilot")
    change(real / "ppo.py", "0.1", "0.2")
    again(real)
    assert call(capsys, "ppo")[0] == 0
    begun, ended = read(real)[2:]
    assert begun["changed"] == ["clauses, new better than old, margin was 0.1 and is 0.2."]
    assert begun["attempt"] == 2 and begun["level"] == ended["level"] == history.confidence(2)
    assert "holds, on design 2 of 2" in call(capsys, "--list")[1]
    text = page()
    assert "# Holds, on design 2 of 2: ppo\n" in text
    assert "have a confidence of 98.33 % together" in text
    assert "- **1: pilot**, design 1, " in text and "- **2: holds**, design 2, " in text
    assert "  - Revised: clauses, new better than old, margin was 0.1 and is 0.2.\n" in text
    assert "| holds, on design 2 of 2 |" in (run.ROOT / "CLAIMS.md").read_text()

    change(real / "ppo.py", "0.2", "0.3")
    again(real)
    call(capsys, "ppo", "--pilot")
    call(capsys, "ppo")
    assert read(real)[-1]["level"] == history.confidence(3)  # its own pilot is no try
    counts = (run.ROOT / "CLAIMS.md").read_text()
    assert "| all | 0 | 1 | 0 | 0 | 0 |" in counts and "*redesigned" in counts

    change(real / "ppo.py", "0.3", "0.4")
    again(real)
    call(capsys, "ppo")
    assert read(real)[-1]["level"] == history.confidence(4)  # with its pilot, design 3 is one try


@pytest.mark.parametrize("removed", ["before it is committed", "with a commit", "by a commit"])
def test_a_pilot_whose_lines_were_removed_is_refused(real, capsys, removed):
    """Removed are its lines alone, or what this machine kept of it as well."""
    call(capsys, "ppo", "--pilot")
    lines = real / "ppo.jsonl"
    if removed != "before it is committed":
        again(real)
        shutil.rmtree(run.STORE)
    lines.unlink()
    if removed == "by a commit":
        again(real)
    said = (
        r"Attempt 1 at ppo \(pilot\) ran here and has no record"
        if removed == "before it is committed"
        else r"Line 1 \(commit \w+\) of .*ppo.jsonl was recorded and is gone"
    )
    for budget in ((), ("--pilot",)):
        code, _, error = call(capsys, "ppo", *budget)
        assert code == 2 and re.search(said, error)
        assert not lines.exists()  # nothing is spent


def test_a_margin_that_is_too_wide_is_refused(real, capsys):
    better = 'better("new", "old", 0.1)'
    wide = 'not_worse("new", "old", 51.0)'
    change(real / "ppo.py", "Side, better", "Side, not_worse")
    change(real / "ppo.py", better, wide)
    again(real)
    code, _, error = call(capsys, "ppo")
    assert code == 2 and "is 51 in cartpole, more than a tenth of the range" in error
    assert read(real) == []
    change(real / "ppo.py", wide, wide.replace("51.0", '51.0, margin_reason="Seeds vary."'))
    again(real)
    assert call(capsys, "ppo")[0] == 0 and read(real)[-1]["verdict"] == "holds"


def test_the_table_of_best_results_is_written(real, capsys):
    """Random play is that of the table so far, so that none is measured here."""
    rows = [{"env": "cartpole", "params": {}, "env_steps": 1000, "best": 100.0, "untrained": None,
             "who": "A side that is gone", "seeds": 5, "random": 20.0}]  # fmt: skip
    run.BEST.write_text(json.dumps(rows[0]) + "\n")
    cell = {"algorithm": "PPO", "config": {"env": "cartpole", "env_params": {}}, "steps": [2000],
            "returns": [[300.0], [400.0], [400.0], [400.0], [500.0]]}  # fmt: skip
    run.SUITES.mkdir(parents=True)
    (run.SUITES / "bodies.json").write_text(json.dumps([cell]))
    assert call(capsys, "--pages")[0] == 0
    best = rows[0] | {"env_steps": 2000, "best": 400.0, "who": "PPO in the suite bodies"}
    assert [json.loads(line) for line in run.BEST.read_text().splitlines()] == [best]


# ------------------------------------------------------------------------------- replays


def stale() -> str:
    return listing.stale(listing.discover(run.ROOT)["ppo"], records.read_all(run.ROOT))


def test_a_replay_of_what_did_not_change_is_recorded(real, capsys):
    assert call(capsys, "ppo", "--replay")[0] == 0 and read(real) == []  # there is no result
    call(capsys)
    ended = read(real)[-1]
    assert "Replayed" not in page()
    code, out, _ = call(capsys, "ppo", "--replay")
    assert code == 0 and "The first seed has the recorded values on all of 2 sides." in out
    replayed = read(real)[-1]
    assert (replayed["event"], replayed["attempt"]) == ("replayed", 1)
    assert replayed["ok"] is True and replayed["equal"] is True
    assert replayed["commit"] == ended["commit"] and replayed["jaxrl"] == jaxrl.__version__
    assert sys.modules["planted_part"].SEEN[-1] in reported_keys(ended)  # and no new one
    assert stale() == "" and "- Replayed, " in page() and "**Stale.**" not in page()


def test_a_replayed_seed_that_leaves_the_range_makes_a_result_stale(real, capsys):
    part = real.parents[2] / "planted_part.py"
    call(capsys)
    change(part, "return height", "return 0.1 + height")  # a hundredth of the range may differ
    again(real)
    assert call(capsys, "ppo", "--replay")[0] == 0
    assert read(real)[-1]["ok"] is True and read(real)[-1]["equal"] is False and stale() == ""

    change(part, "return 0.1 + height", "return 20.0 + height")
    again(real)
    assert stale() == ""  # nobody knows yet
    code, out, _ = call(capsys, "ppo", "--replay")
    assert code == 1 and "Replayed seeds left the recorded range: 'new' in cartpole: score" in out
    assert read(real)[-1]["ok"] is False and read(real)[-1]["equal"] is False
    assert stale() == read(real)[-1]["said"] and "; 'old' in cartpole: score is" in stale()
    assert f"**Stale.** {stale()}\n" in page() and "# Holds: ppo\n" in page()
    counts = (run.ROOT / "CLAIMS.md").read_text()
    assert "\n1 is stale.\n" in counts and "*stale*" in counts

    change(part, "return 20.0 + height", "return height")
    again(real)
    call(capsys, "ppo", "--replay")
    assert stale() == "" and "**Stale.**" not in page()
    assert "is stale." not in (run.ROOT / "CLAIMS.md").read_text()


def test_what_runs_anew_is_stale_no_more(real, capsys):
    call(capsys)
    change(real.parents[2] / "planted_part.py", "return height", "return 20.0 + height")
    again(real)
    call(capsys, "ppo", "--replay")
    assert stale()
    call(capsys, "ppo")
    assert stale() == "" and read(real)[-1]["attempt"] == 2


def test_each_result_is_replayed_once_for_each_minor_version(real, capsys, monkeypatch):
    call(capsys)
    events = lambda: [r["event"] for r in read(real)]
    assert "nothing to run" in call(capsys, "--replay")[1]
    monkeypatch.setattr(jaxrl, "__version__", "97.3.1")
    assert call(capsys, "--replay")[0] == 0 and events() == ["begun", "ended", "replayed"]
    monkeypatch.setattr(jaxrl, "__version__", "97.3.2")
    assert "nothing to run" in call(capsys, "--replay")[1] and len(events()) == 3
    monkeypatch.setattr(jaxrl, "__version__", "97.4.0")
    assert call(capsys, "--replay")[0] == 0 and len(events()) == 4


# ------------------------------------------------------------------------------- renamings


def rename(folder) -> None:
    """Give a constant of the claim another name, and commit it."""
    change(folder / "_values.py", "DISCOUNT", "HORIZON")
    (folder / "ppo.py").write_text((folder / "ppo.py").read_text().replace("DISCOUNT", "HORIZON"))
    again(folder)


def test_a_renaming_keeps_a_result(real, capsys):
    call(capsys)
    ended = read(real)[-1]
    code, out, _ = call(capsys, "ppo", "--renamed")
    assert "Its names are the recorded ones." in out and len(read(real)) == 2
    rename(real)
    assert stale() == "Its declaration was revised since."
    code, out, _ = call(capsys, "ppo", "--replay")
    assert code == 1 and "run it anew, or record with --renamed" in out and len(read(real)) == 2

    code, out, _ = call(capsys, "ppo", "--renamed")
    assert code == 0 and "The first seed has the recorded values" in out
    renamed = read(real)[-1]
    assert (renamed["event"], renamed["attempt"]) == ("renamed", 1) and len(read(real)) == 3
    claim = listing.discover(run.ROOT)["ppo"]
    assert renamed["from"] == ended["digest"] == listing.current_digest(claim, read(real))
    assert renamed["to"] == records.digest(claim.path) != renamed["from"]
    assert stale() == "" and "- Renamed, " in page()
    assert "nothing to run" in call(capsys)[1]
    assert call(capsys, "ppo", "--replay")[0] == 0
    call(capsys, "ppo")  # the same design, so the level stays
    assert read(real)[-1]["changed"] == [] and read(real)[-1]["level"] == ended["level"]
    assert read(real)[-1]["digest"] == ended["digest"]


@pytest.mark.parametrize("value", ["0.9000001", "0.7"])
def test_a_claim_with_other_values_is_more_than_renamed(real, capsys, value):
    """Even if its seed lies in the range of the recorded ones."""
    call(capsys)
    change(real / "_values.py", "0.9", value)
    rename(real)
    code, out, _ = call(capsys, "ppo", "--renamed")
    assert code == 1
    assert f"more than renamed: sides, new, settings, discount was 0.9 and is {value}." in out
    assert len(read(real)) == 2 and stale() == "Its declaration was revised since."


# ------------------------------------------------------------------------------- later rules


def test_attempts_are_judged_again_by_later_rules(real, capsys):
    call(capsys)
    assert call(capsys, "--judge")[:2] == (0, "") and len(read(real)) == 2  # by today's already
    begun, ended = read(real)
    older = {"rules": 1, "verdict": "does not hold", "why": "Older rules.", "level": 0.5}
    wrong = [clause | {"verdict": "does not hold"} for clause in ended["clauses"]]
    rows = [begun | {"rules": 1}, ended | older | {"clauses": wrong}]
    (real / "ppo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    call(capsys, "--pages")
    assert "# Does not hold: ppo\n" in page()
    assert "### [ppo]" in (run.ROOT / "docs" / "claims" / "failures.md").read_text()

    code, out, _ = call(capsys, "--judge")
    assert (code, out) == (0, "ppo, attempt 1: was does not hold, holds\n")
    assert read(real)[:2] == rows and len(read(real)) == 3  # what was recorded stays
    judged = read(real)[-1]
    assert (judged["event"], judged["attempt"], judged["rules"]) == ("judged", 1, records.RULES)
    assert judged["verdict"] == "holds" and judged["level"] == history.confidence(1)
    assert judged["clauses"] == ended["clauses"] and judged["why"] == ended["why"]
    text = page()
    assert "# Holds: ppo\n" in text and "- **holds**: new better than old by 0.1" in text
    assert "- Attempt 1 judged again, " in text
    assert "holds" in call(capsys, "--list")[1].split()
    assert "### [ppo]" not in (run.ROOT / "docs" / "claims" / "failures.md").read_text()

    assert call(capsys, "--judge")[:2] == (0, "") and len(read(real)) == 3  # once is enough
    call(capsys, "ppo")  # it holds by today's rules, so another run is no other try
    assert read(real)[-1]["level"] == history.confidence(1)


# ------------------------------------------------------------------------------- side by side

SCRIPT = """
import sys, time
from pathlib import Path
id, flags = sys.argv[1], Path(sys.argv[0]).parent
assert sys.argv[2:4] == ["--child", "--tiny"] and sys.argv[4] == "--cores", sys.argv
(flags / f"began-{id}").touch()
while len(list(flags.glob("began-*"))) < 2:  # forever, unless the other one runs beside it
    time.sleep(0.01)
print("cores", sys.argv[5])
sys.exit({"two": 2, "three": 1}.get(id, 0))
"""


def test_two_run_side_by_side_and_a_failure_stops_no_other(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ids = ["one", "two", "three"]
    codes = children.run_all(ids, str(script), ["--tiny"], 2, dict.fromkeys(ids, 100.0))
    assert codes == {"one": 0, "two": 2, "three": 1}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[0/3] after 0 s, about 2 min left"
    assert [line for line in lines if line.startswith("[3/3]")][-1].endswith("about 0 s left")
    shares = [set(line.split()[-1].split(",")) for line in lines if ": cores" in line]
    assert len(shares) == 3 and all(lines.count(x) == 1 for x in lines if ": cores" in x)
    if len(records.cores()) > 1:
        assert any(not a & b for a in shares for b in shares)  # each its own


@pytest.mark.parametrize(
    ("said", "cores", "memory", "large", "expected"),
    [
        (None, 2, 100, False, 1),
        (None, 16, 100, False, 8),
        (None, 16, 9, False, 2),
        (None, 1, 1, False, 1),
        (None, 16, 100, True, 1),
        ("5", 2, 1, False, 5),
    ],
)
def test_how_many_side_by_side(monkeypatch, said, cores, memory, large, expected):
    monkeypatch.setattr(records, "cores", lambda: list(range(cores)))
    monkeypatch.setattr(children, "memory", lambda: memory * 2**30)
    assert children.jobs(said, large) == expected


@pytest.mark.slow  # it imports JAX five times
def test_an_interruption_ends_all_and_leaves_them_resumable(tmp_path):
    """Two processes at once, of which one is interrupted and resumes."""
    folder = repository(tmp_path, "ppo", "two-words")
    evidence = tmp_path / "experiments" / "evidence"
    evidence.mkdir()
    for name in (
        "children",
        "declare",
        "digests",
        "history",
        "listing",
        "records",
        "run",
        "words",
    ):
        shutil.copy(ROOT / "experiments" / "evidence" / f"{name}.py", evidence)
    for name, text in STUBS.items():
        (evidence / f"{name}.py").write_text(textwrap.dedent(text))
    commit(tmp_path)
    flags = tmp_path / "runs" / "evidence"
    flags.mkdir(parents=True)
    (flags / "together").write_text("2")
    (flags / "wait-ppo").touch()
    command = [sys.executable, str(evidence / "run.py"), "--jobs", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}

    def start():
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    with start() as process:
        deadline = time.monotonic() + 120
        while ("two-words", "ended", 1) not in attempts(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)  # SIGINT is ignored where tests run in the background
        out = process.communicate()[0]
    assert process.returncode == 130, out
    assert "The same command resumes here." in out and "two-words: holds: Level 0.95." in out
    assert ("ppo", "begun", 1) in attempts(folder) and ("ppo", "ended", 1) not in attempts(folder)
    (flags / "wait-ppo").unlink()
    with start() as process:
        out = process.communicate()[0]
    assert process.returncode == 0, out
    assert "ppo: holds: Level 0.95." in out and "two-words" not in out
    assert len(attempts(folder)) == 4 and attempts(folder, "ppo")[-1] == ("ppo", "ended", 1)
    assert (tmp_path / "CLAIMS.md").read_text() == "ppo; two-words"


# ------------------------------------------------------------------------------- baselines


@pytest.mark.parametrize("shared", [True, False])
def test_a_claim_with_a_shared_baseline_has_the_seeds_of_a_block(real, monkeypatch, shared):
    """Otherwise the baseline would run anew for each claim."""
    monkeypatch.setattr(bank, "is_shared", lambda declared: shared)
    monkeypatch.setattr(bank, "check", lambda declared: None)
    claim = listing.discover(run.ROOT)["ppo"]
    for attempt in (1, 2):
        with run.prepare(claim, "full", recorded=True) as arguments:
            begun = arguments["begun"]
        assert begun["attempt"] == attempt
        assert (begun["seed_root"] == bank.block_root(attempt)) == shared
        records.append(claim.records, begun | {"event": "ended", "verdict": "inconclusive"})
