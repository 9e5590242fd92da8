"""The command line, with stubs that stand for training, judging and pages."""

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
from jaxrl.algorithms import families
from jaxrl.commands import command_line
from jaxrl.core.errors import UserError
from tests.evidence.planted import FAMILY, change, commit, repository

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

        def run(declaration, begun, tuning_root, store, readers, tell):
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
    "sides": "trials = lambda declaration, budget: {}",
    "looks": "look = None",
    "judge": "judge = judge_exact = None",
    "history": """
        import types

        confidence = lambda number: 1 - 0.05 / number
        tries = lambda known, attempt: attempt
        standing = lambda ended: types.SimpleNamespace(verdict=ended[-1]["verdict"])
        """,
    "mutate": """
        def mutate(declaration, best, **arguments):
            return [{"said": f"It notices '{m.name}'.", "seen": m.name != "unseen"}
                    for m in declaration.mutations]
        """,
    "findings": """
        def gather(claims, records, stale, standing):
            return [f"{id} {stale.get(id, '')}".strip() for id, _, _ in claims]
        """,
    "pages": """
        def repository(found):
            return "; ".join(found)

        def write(root, text):
            (root / "CLAIMS.md").write_text(text)
        """,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the claims `ppo` and `two-words`, where `run` looks."""
    folder = repository(tmp_path, "ppo", "two-words")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in STUBS.items():
        module = types.ModuleType(name)
        exec(textwrap.dedent(text), module.__dict__)
        monkeypatch.setattr(experiments.evidence, name, module, raising=False)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "STALE", tmp_path / records.STALE)
    monkeypatch.setattr(run, "STORE", tmp_path / "runs" / "evidence")

    def at_once(ids, script, options, jobs, seconds):
        flags = {name.lstrip("-"): "" for name in options}
        flags["cores"] = ",".join(map(str, records.cores()))
        budget = next((name for name in ("tiny", "large") if name in flags), "full")
        claims = listing.discover(tmp_path)
        return {id: run.child(claims[id], budget, flags) for id in ids}

    monkeypatch.setattr(children, "run_all", at_once)
    yield folder
    for name in [name for name in sys.modules if f".{FAMILY}" in name]:
        del sys.modules[name]


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


def again(folder, stem="ppo"):
    """Commit the working tree, and have the claim imported anew."""
    commit(folder.parents[2])
    sys.modules.pop(f"experiments.claims.{FAMILY}.{stem}", None)


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


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["pqo"], "Unknown claim 'pqo'; did you mean 'ppo'?"),
        (["--family", "plantd_family"], "Unknown family 'plantd_family'; did you mean"),
        (["--lst"], "Unknown option '--lst'; did you mean '--list'?"),
        (["--family"], "--family needs a value."),
        (["--jobs", "none"], "--jobs is a whole number from 1 on, not 'none'."),
        (["--tiny", "--large"], "--tiny and --large are two budgets; give one."),
        (["--renamed", "0123456"], "There is no commit '0123456'."),
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
    wanted = "format event id family kind attempt digest declared changed level seeds seed_root "
    wanted += "commit date jax jaxrl generator cores device seconds budget programs"
    assert set(begun) == set(wanted.split())
    assert ended["declared"] == begun["declared"] and ended["seed_root"] == begun["seed_root"]
    assert (tmp_path / "CLAIMS.md").read_text() == "ppo; two-words"

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
    change(folder / "ppo.py", "New is better than old.", "The new one is better.")
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
    assert "not run            interrupted" in call(capsys, "ppo", "--list")[1]
    (folder.parents[2] / "note.md").write_text("Something else.")
    commit(folder.parents[2])
    assert call(capsys, "ppo")[0] == 0
    assert attempts(folder) == [("ppo", "begun", 1), ("ppo", "ended", 1)]
    begun, ended = read(folder)
    assert begun["commit"] == ended["commit"]  # with the same programs


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


OLDER = "Recorded with older code: old @ cartpole compiles to a different program today."


def test_stale_ones_are_named_and_run(folder, capsys, monkeypatch):
    hashes = {"new @ cartpole": "a", "old @ cartpole": "a"}
    monkeypatch.setattr(records, "programs", lambda declared, budget, root: dict(hashes))
    call(capsys)
    assert call(capsys, "--stale", "--list")[1] == ""
    hashes["old @ cartpole"] = "b"
    code, out, _ = call(capsys, "ppo", "--stale")
    assert code == 0 and f"ppo: {OLDER}" in out
    assert attempts(folder, "ppo")[2:] == [("ppo", "begun", 2), ("ppo", "ended", 2)]
    assert read(folder)[-1]["programs"] == hashes
    out = call(capsys, "--stale", "--plan")[1]
    assert out.startswith(f"two-words: {OLDER}") and "2 min in all" in out
    call(capsys, "--pages")  # which show it for results that are still the latest
    assert (folder.parents[2] / "CLAIMS.md").read_text() == f"ppo; two-words {OLDER}"
    hashes["old @ cartpole"] = "a"
    call(capsys, "two-words", "--stale", "--list")
    call(capsys, "--pages")
    assert (folder.parents[2] / "CLAIMS.md").read_text() == "ppo; two-words"

    def broken(declared, budget, root):
        raise ImportError("no such part")

    monkeypatch.setattr(records, "programs", broken)
    out = call(capsys, "ppo", "--stale", "--list")[1]
    assert out.startswith("ppo: It cannot be built any more (ImportError: no such part).")


def test_mutations_are_told_and_unseen_ones_are_an_error(folder, capsys):
    assert call(capsys, "ppo", "--mutate")[:2] == (0, "It names no mutation.\n")
    mutations = 'mutations=(Mutation("seen", "a:b", unused), Mutation("unseen", "a:b", unused)),'
    change(folder / "ppo.py", "    notes=NOTES,", "    " + mutations)
    again(folder)
    code, out, _ = call(capsys, "ppo", "--mutate")
    assert (code, out) == (1, "It notices 'seen'.\nIt notices 'unseen'.\n") and attempts(
        folder
    ) == []
    assert "6 min in all" in call(capsys, "ppo", "--mutate", "--plan")[1]


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
        "listing",
        "records",
        "renaming",
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
