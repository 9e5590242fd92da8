"""The command line, with stubs in the places of what trains, judges and writes pages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path

import pytest

import experiments.evidence
from experiments.evidence import children, listing, records, run
from jaxrl.core.errors import UserError
from jaxrl.runtime import command_line
from tests.evidence.planted import TRACK, change, commit, repository

ROOT = Path(__file__).resolve().parents[2]
NAME = TRACK.replace("_", "-")

# What a repository of a test has in the places of modules that train and judge. An attempt waits
# until as many have begun as the file `together` says, and where there is a file `wait`, for ever.
STUBS = {
    "attempt": """
        import time
        from pathlib import Path

        Readers = lambda *readers: readers

        def plan(check, digest, ended, budget, cores):
            return 60 * check.minutes

        def run(check, begun, tuning_root, store, readers, tell):
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
                            "looks": [look], "seconds": 1.0}
        """,
    "measure": "",
    "sides": "trials = lambda check, budget: {}",
    "looks": "look = None",
    "judge": "judge = judge_exact = None",
    "history": """
        import types

        confidence = lambda number: 1 - 0.05 / number
        tries = lambda known, attempt: attempt
        history = lambda ended: types.SimpleNamespace(verdict=ended[-1]["verdict"])
        """,
    "mutate": """
        def mutate(check, best, **arguments):
            return [{"said": f"It sees '{m.name}'.", "seen": m.name != "unseen"}
                    for m in check.mutations]
        """,
    "pages": """
        def write(root, checks, records, judged, stale):
            said = [f"{id} {stale.get(id, '')}".strip() for id, _, _ in checks]
            (root / "CLAIMS.md").write_text("; ".join(said))
        """,
}


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """The folder of the checks `ppo` and `two-words`, with `run` looking there."""
    folder = repository(tmp_path, "ppo", "two-words")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in STUBS.items():
        module = types.ModuleType(name)
        exec(textwrap.dedent(text), module.__dict__)
        monkeypatch.setattr(experiments.evidence, name, module, raising=False)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "RESULTS", tmp_path / records.RESULTS)
    monkeypatch.setattr(run, "STALE", tmp_path / records.STALE)
    monkeypatch.setattr(run, "STORE", tmp_path / "runs" / "evidence")

    def at_once(ids, script, options, jobs, seconds):
        flags = {name.lstrip("-"): "" for name in options}
        flags["cores"] = ",".join(map(str, records.cores()))
        budget = next((name for name in ("tiny", "large") if name in flags), "full")
        checks = listing.discover(tmp_path)
        return {id: run.child(checks[id], budget, flags) for id in ids}

    monkeypatch.setattr(children, "run_all", at_once)
    yield folder
    for name in [name for name in sys.modules if f".{TRACK}" in name]:
        del sys.modules[name]


def called(capsys, *argv) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    code = command_line.call(run.main, argv)
    out, error = capsys.readouterr()
    return code, out, error


def recorded(folder):
    return [
        (r["id"], r["event"], r["attempt"]) for r in records.read(folder.parent / "results.jsonl")
    ]


def again(folder, stem="ppo"):
    """Commits what is there, and makes that it is imported anew."""
    commit(folder.parents[2])
    sys.modules.pop(f"experiments.claims.{TRACK}.{stem}", None)


# ------------------------------------------------------------------------------- what there is


def test_listing_imports_no_check(planted, tmp_path):
    change(planted / "ppo.py", '"""A check."""', 'raise AssertionError("imported")')
    (planted / "one_value.py").write_text("import x\nCHECK: x.Exact = x.Exact(claim='It is.')\n")
    found = listing.discover(tmp_path)
    assert [(c.id, c.track, c.kind, c.claim) for c in found.values()] == [
        ("ancient", NAME, "", "It was better."),
        ("one-value", NAME, "exact", "It is."),
        ("ppo", NAME, "claim", "New is better than old."),
        ("two-words", NAME, "claim", "New is better than old."),
    ]
    other = planted.with_name("other")
    other.mkdir()
    shutil.copy(planted / "ppo.py", other)
    with pytest.raises(UserError, match=r"ppo.py is there twice, in other and planted-track"):
        listing.discover(tmp_path)
    (other / "ppo.py").write_text("CHECK = (")
    with pytest.raises(UserError, match=r"other/ppo.py is no Python"):
        listing.discover(tmp_path)


def test_the_checks_of_this_repository_are_found():
    found = listing.discover(ROOT)
    assert {"ppo", "a2c-is-ppo"} <= set(found)
    assert all(check.claim for check in found.values())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["pqo"], "Unknown check 'pqo'; did you mean 'ppo'?"),
        (["--track", "plantd-track"], "Unknown track 'plantd-track'; did you mean"),
        (["--lst"], "Unknown option '--lst'; did you mean '--list'?"),
        (["--track"], "--track needs a value."),
        (["--jobs", "none"], "--jobs is a whole number from 1 on, not 'none'."),
        (["--tiny", "--large"], "--tiny and --large are two budgets; give one."),
        (["ancient"], "'ancient' is from before the harness: it declares no CHECK."),
    ],
)
def test_bad_input_is_one_sentence(planted, capsys, argv, said):
    code, out, error = called(capsys, *argv)
    assert (code, out) == (2, "") and error.startswith(f"error: {said}") and error.count("\n") == 1


def test_help(capsys):
    code, out, _ = called(capsys, "--help")
    assert code == 0 and all(f"--{name}" in out for name in (*run.FLAGS[:-1], *run.VALUES[:-1]))


# ------------------------------------------------------------------------------- attempts


def test_a_run_is_recorded_and_shown(planted, capsys, tmp_path):
    code, out, _ = called(capsys)
    assert code == 0 and "tuned from True" in out and "holds: Level 0.95." in out
    assert recorded(planted) == [("ppo", "begun", 1), ("ppo", "ended", 1),
                                 ("two-words", "begun", 1), ("two-words", "ended", 1)]  # fmt: skip
    begun, ended = records.read(run.RESULTS)[:2]
    wanted = "format event id track kind attempt digest declared changed level seeds seed_root "
    wanted += "commit date jax jaxrl generator cores device seconds budget programs"
    assert set(begun) == set(wanted.split())
    assert ended["declared"] == begun["declared"] and ended["seed_root"] == begun["seed_root"]
    assert (tmp_path / "CLAIMS.md").read_text() == "ppo; two-words"

    code, out, _ = called(capsys)  # all have what they declare now
    assert code == 0 and "nothing to run" in out and len(recorded(planted)) == 4
    called(capsys, "ppo")  # what is named is tried once more
    assert recorded(planted)[4:] == [("ppo", "begun", 2), ("ppo", "ended", 2)]
    assert records.read(run.RESULTS)[4]["changed"] == []

    code, out, _ = called(capsys, "--list")
    rows = [line.split() for line in out.splitlines()]
    assert rows == [
        [NAME, "ancient", "before", "the", "harness"],
        [NAME, "ppo", "holds", "2", "attempts,", "edge"],
        [NAME, "two-words", "holds", "edge"],
    ]


def test_a_revision_after_a_run_is_run_and_marked(planted, capsys):
    called(capsys)
    change(planted / "ppo.py", "New is better than old.", "The new one is better.")
    again(planted)
    assert "nothing to run" in called(capsys)[1]
    change(planted / "ppo.py", "0.1", "0.2")
    page = run.ROOT / "CLAIMS.md"
    assert called(capsys, "--pages")[0] == 0
    assert page.read_text() == "ppo Its declaration was revised since.; two-words"
    assert "revised since" in called(capsys, "ppo", "--list")[1]
    code, _, error = called(capsys)
    assert code == 2 and "is not what was committed" in error and len(recorded(planted)) == 4
    again(planted)
    assert called(capsys, "two-words")[0] == 0
    assert page.read_text() == "ppo Its declaration was revised since.; two-words"
    assert called(capsys)[0] == 0 and page.read_text() == "ppo; two-words"
    assert recorded(planted)[6:] == [("ppo", "begun", 2), ("ppo", "ended", 2)]
    changed = ["clauses, new better than old, margin was 0.1 and is 0.2."]
    assert records.read(run.RESULTS)[-1]["changed"] == changed
    assert "2 attempts, revised, edge" in called(capsys, "ppo", "--list")[1]


def test_nothing_is_spent_where_one_cannot_be_recorded(planted, capsys, monkeypatch):
    change(planted.parents[2] / "jaxrl" / "part.py", "1", "2")
    with monkeypatch.context() as patch:
        patch.setattr(children, "run_all", None)  # no process is begun
        code, _, error = called(capsys)
    assert code == 2 and "jaxrl/part.py differs from the last commit" in error
    assert recorded(planted) == []
    assert called(capsys, "ppo", "--tiny")[0] == 0  # which needs no commit and is no record
    assert recorded(planted) == [] and not (planted.parents[2] / "CLAIMS.md").exists()


def test_an_interrupted_attempt_goes_on(planted, capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(experiments.evidence.attempt, "run", interrupt)
        assert called(capsys, "ppo")[0] == 130
    assert "not run            interrupted" in called(capsys, "ppo", "--list")[1]
    (planted.parents[2] / "note.md").write_text("Something else.")
    commit(planted.parents[2])
    assert called(capsys, "ppo")[0] == 0
    assert recorded(planted) == [("ppo", "begun", 1), ("ppo", "ended", 1)]
    begun, ended = records.read(run.RESULTS)
    assert begun["commit"] == ended["commit"]  # whose programs it ended with


def test_one_check_is_one_process_at_a_time(planted, capsys):
    check = listing.discover(run.ROOT)["ppo"]
    with run.prepared(check, "full", recorded=False):
        code, _, error = called(capsys, "ppo")
    assert code == 2 and "Another process is writing to" in error and recorded(planted) == []


# ------------------------------------------------------------------------------- plan and more


def test_a_plan_spends_nothing(planted, capsys):
    change(planted / "two_words.py", "minutes=2.0", "minutes=3.5")
    code, out, _ = called(capsys, "--plan", "--jobs", "2")
    assert code == 0 and recorded(planted) == []
    assert [line.split()[1:] for line in out.splitlines()[:2]] == [
        ["ppo", "2", "min"],
        ["two-words", "4", "min"],
    ]
    assert out.splitlines()[2] == "6 min in all, 3 min with 2 side by side."


def test_stale_ones_are_named_and_run(planted, capsys, monkeypatch):
    hashes = {"new @ cartpole": "a", "old @ cartpole": "a"}
    monkeypatch.setattr(records, "programs", lambda check, budget, root: dict(hashes))
    called(capsys)
    assert called(capsys, "--stale", "--list")[1] == ""
    hashes["old @ cartpole"] = "b"
    code, out, _ = called(capsys, "ppo", "--stale")
    assert code == 0 and "ppo: The program of old @ cartpole is another one since." in out
    assert recorded(planted)[4:] == [("ppo", "begun", 2), ("ppo", "ended", 2)]
    assert records.read(run.RESULTS)[-1]["programs"] == hashes
    out = called(capsys, "--stale", "--plan")[1]
    assert out.startswith("two-words: The program of old") and "2 min in all" in out
    called(capsys, "--pages")  # they remember it, of the result that is still the latest alone
    said = "two-words The program of old @ cartpole is another one since."
    assert (planted.parents[2] / "CLAIMS.md").read_text() == f"ppo; {said}"
    hashes["old @ cartpole"] = "a"
    called(capsys, "two-words", "--stale", "--list")
    called(capsys, "--pages")
    assert (planted.parents[2] / "CLAIMS.md").read_text() == "ppo; two-words"

    def broken(check, budget, root):
        raise ImportError("no such part")

    monkeypatch.setattr(records, "programs", broken)
    out = called(capsys, "ppo", "--stale", "--list")[1]
    assert out.startswith("ppo: It cannot be built any more (ImportError: no such part).")


def test_mutations_are_told_and_unseen_ones_are_an_error(planted, capsys):
    assert called(capsys, "ppo", "--mutate")[:2] == (0, "It names no mutation.\n")
    mutations = 'mutations=(Mutation("seen", "a:b", unused), Mutation("unseen", "a:b", unused)),'
    change(planted / "ppo.py", "    notes=NOTES,", "    " + mutations)
    again(planted)
    code, out, _ = called(capsys, "ppo", "--mutate")
    assert (code, out) == (1, "It sees 'seen'.\nIt sees 'unseen'.\n") and recorded(planted) == []
    assert "6 min in all" in called(capsys, "ppo", "--mutate", "--plan")[1]


# ------------------------------------------------------------------------------- side by side

SCRIPT = """
import sys, time
from pathlib import Path
id, flags = sys.argv[1], Path(sys.argv[0]).parent
assert sys.argv[2:4] == ["--child", "--tiny"] and sys.argv[4] == "--cores", sys.argv
(flags / f"began-{id}").touch()
while len(list(flags.glob("began-*"))) < 2:  # for ever, unless the other one runs beside it
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
    assert children.side_by_side(said, large) == expected


@pytest.mark.slow  # it imports JAX five times
def test_an_interruption_ends_all_and_leaves_them_resumable(tmp_path):
    """The whole, in processes: two at once, of which one is interrupted and goes on."""
    folder = repository(tmp_path, "ppo", "two-words")
    evidence = tmp_path / "experiments" / "evidence"
    evidence.mkdir()
    for name in ("children", "declare", "digests", "listing", "records", "run", "words"):
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
        while ("two-words", "ended", 1) not in recorded(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)  # SIGINT is ignored where tests run in the background
        out = process.communicate()[0]
    assert process.returncode == 130, out
    assert "The same command goes on from here." in out and "two-words: holds: Level 0.95." in out
    assert ("ppo", "begun", 1) in recorded(folder) and ("ppo", "ended", 1) not in recorded(folder)
    (flags / "wait-ppo").unlink()
    with start() as process:
        out = process.communicate()[0]
    assert process.returncode == 0, out
    assert "ppo: holds: Level 0.95." in out and "two-words" not in out
    assert len(recorded(folder)) == 4 and recorded(folder)[-1] == ("ppo", "ended", 1)
    assert (tmp_path / "CLAIMS.md").read_text() == "ppo; two-words"
