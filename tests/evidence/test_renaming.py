"""Renamings: names alone may change, and everything else that is planted is refused."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.evidence import digests, listing, probe, records, renaming, run
from jaxrl.core.errors import UserError
from tests.evidence.planted import change, commit, git

ROOT = Path(__file__).resolve().parents[2]

# ------------------------------------------------------------------------------- code

OLD = {
    "claim": """
from jaxrl.systems import dqn
from experiments.systems.value._helper import room

RATES = (1e-3, 3e-3)

def train(trial, keys):
    room = build(trial.room, settings={"neighbours": 4})
    steps = trial.env_steps // room.frames
    return {"score": run(room, steps, lambda key: key + steps)}

CHECK = Claim(rooms=(Room("a.systems:maze", 100),), sides={"x": dqn}, measure=train)
""",
    "_helper": "def room(name):\n    return name * 2 - 1\n",
}
NEW = {
    "claim": """
from experiments.claims.value._shared import environment
from jaxrl.algorithms.value.dqn import dqn

RATES = (1e-3, 3e-3)

def measure(trial, keys):
    env = build(trial.environment, settings={"neighbors": 4})
    steps = trial.env_steps // env.env_steps
    return {"score": run(env, steps, lambda key: key + steps)}

CLAIM = Claim(environments=(Arena("a.claims:maze", 100),), sides={"x": dqn}, measure=measure)
""",
    "_shared": "def environment(name):\n    return name * 2 - 1\n",
}


def statements(texts):
    return {name: ast.parse(text).body for name, text in texts.items()}


def differences(changed):
    return renaming.compare(statements(OLD), statements(changed))


def test_names_may_change():
    assert differences(NEW) == []


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("claim", "3e-3", "4e-3"),
        ("claim", "100", "100.0"),
        ("claim", "// env.env_steps", "/ env.env_steps"),
        ("claim", "key + steps", "steps + key"),
        ("claim", "run(env, steps", "run(env, keys"),
        ("claim", "trial.env_steps // env", "trial.environment // env"),  # two attributes, one name
        ("claim", "def measure(trial, keys)", "def measure(keys, trial)"),
        ("claim", "lambda key: key + steps", "lambda key: key + key"),
        ("claim", "    env = build", "    env = 2\n    env = build"),
        ("claim", "measure=measure", "measure=build"),
        ("claim", "RATES = (1e-3, 3e-3)\n", ""),
        ("_shared", "- 1", "+ 1"),
        ("_shared", "name * 2", "name * name"),
    ],
)
def test_code_that_changed_is_seen(module, old, new):
    assert old in NEW[module]
    found = differences(NEW | {module: NEW[module].replace(old, new)})
    assert found and all(x.module == ("" if module == "claim" else module) for x in found)


def test_a_measuring_function_needs_what_it_uses():
    own = statements(NEW)["claim"]
    is_needed = lambda module, binds, measure="measure": renaming.is_needed(
        renaming.Difference(module, binds, ""), own, measure
    )
    assert is_needed("", "measure") and not is_needed("", "RATES") and is_needed("", "")
    assert is_needed("_shared", "RATES") and is_needed("", "RATES", measure="")


TINY = """
def measure(trial, keys):
    state = build(trial)
    steps = 1 if trial.tiny else trial.env_steps // state.steps
    return run(state.best, steps)
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("state.best", "state.own.best", True),
        ("state.best, steps", "state.best, steps + 1", True),  # which a tiny trial shows
        ("trial.env_steps //", "2 * trial.env_steps //", False),
        ("trial.env_steps // state.steps", "trial.budget // state.size", True),  # names alone
        ("1 if trial.tiny else", "1 if trial.tiny else 2 *", False),
        ("    return", "    if trial.tiny:\n        return 0\n    return", False),
        ("    steps = 1 if trial.tiny else", "    steps =", False),
    ],
)
def test_code_that_differs_may_run_in_tiny_trials_too(old, new, expected):
    assert old in TINY
    texts = ({"claim": TINY}, {"claim": TINY.replace(old, new)})
    found = renaming.compare(*map(statements, texts))
    assert [x.runs_tiny for x in found] == ([] if "size" in new else [expected])


def test_the_constant_of_older_files_is_found():
    texts = ("CHECK = 1\nCLAIM = 2", "CLAIM: int = 1", "X = 1")
    assert [renaming.constant(text) for text in texts] == ["CHECK", "CLAIM", ""]


# ------------------------------------------------------------------------------- data


def old_data(**more):
    arena = {"env": "a.systems:maze", "name": "", "env_steps": 100, "settings": {"neighbours": 4}}
    side = {"system": "a.systems:build", "grid": {"rate": [0.1, 1]}, "deviates": "Much."}
    return {
        "claim": "Old.", "worlds": [arena | {"name": "maze"}], "large": [],
        "sides": {"one": side, "other": side}, "seeds": 5, "measure": "a.systems:train",
    } | more  # fmt: skip


def new_data(**more):
    arena = {"env": "a.claims:maze", "name": "maze", "env_steps": 100, "settings": {"neighbors": 4}}
    side = {"algorithm": "a.claims:build", "grid": {"rate": [0.1, 1]}, "deviates": "Little."}
    return {
        "claim": "New.", "environments": [arena], "large": [],
        "sides": {"one": side, "other": side}, "seeds": 5, "measure": "a.claims:measure",
    } | more  # fmt: skip


def test_names_of_a_declaration():
    assert renaming.data_names(old_data(), new_data()) == {
        "worlds": "environments",
        "a.systems:maze": "a.claims:maze",
        "neighbours": "neighbors",
        "system": "algorithm",
        "a.systems:build": "a.claims:build",
        "a.systems:train": "a.claims:measure",
    }


ARENA, SIDE = new_data()["environments"][0], new_data()["sides"]["one"]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"seeds": 6}, "seeds was 5 and is 6"),
        ({"seeds": 5.0}, "seeds was 5 and is 5.0"),
        ({"environments": [ARENA | {"env_steps": 200}]}, "env_steps was 100 and is 200"),
        ({"environments": [ARENA, ARENA]}, "environments was"),
        ({"environments": [ARENA | {"name": "labyrinth"}]}, "'maze' became 'labyrinth'"),
        ({"sides": {"first": SIDE, "other": SIDE}}, "'one' became 'first'"),
        ({"sides": {"one": SIDE, "other": SIDE | {"grid": {"rate": [0.1]}}}}, "rate was"),
        ({"sides": {"one": SIDE, "other": SIDE | {"algorithm": "b:c"}}}, "became both"),
        ({"measure": "a.claims:build"}, "Two names became 'a.claims:build'"),
    ],
)
def test_a_declaration_that_changed_is_refused(now, said):
    with pytest.raises(UserError, match=said):
        renaming.data_names(old_data(), new_data(**now))


# ------------------------------------------------------------------------------- programs


def answer(**more):
    return {"programs": {"x @ y": ["a", "1"]}, "whole": {}, "values": {}} | more


WHOLE = {"whole": {"x @ y": "w"}}
VALUES = {"whole": {"x @ y": None}, "values": {"x @ y": [0.1, 0.2]}}
CODE = renaming.Difference("", "measure", "'1' is now '2'")


@pytest.mark.parametrize(
    ("before", "now", "differ", "said"),
    [
        ({}, {}, (), "equal: 1 program"),
        ({}, {"programs": {"x @ y": ["b", "1"]}}, (), "equal: 1 program"),
        (WHOLE, WHOLE, (), "equal: 1 program of all"),
        # One program of all that is measured is enough, whatever a step or the code look like.
        (
            WHOLE,
            WHOLE | {"programs": {"x @ y": ["b", "2"]}},
            (CODE,),
            "equal: 1 program of all",
        ),
        (VALUES, VALUES, (), "equal: 1 program, values of 1 run"),
        (
            VALUES,
            VALUES | {"programs": {"x @ y": ["b", "1"]}},
            (),
            "equal: 1 program, values of 1 run",
        ),
        (
            {"programs": {}, "whole": {"": None}, "values": {"": [1e-12]}},
            {"programs": {}, "whole": {"": None}, "values": {"": [1e-12]}},
            (),
            "equal: values of 1 run",
        ),
    ],
)
def test_equal_programs_are_evidence(before, now, differ, said):
    assert renaming.evidence(answer(**before), answer(**now), differ).startswith(said)


@pytest.mark.parametrize(
    ("before", "now", "differ", "said"),
    [
        ({}, {"programs": {"x @ y": ["b", "2"]}}, (), "program of 'x @ y' is another"),
        (WHOLE, {"whole": {"x @ y": "v"}}, (), "program of 'x @ y' is another"),
        (WHOLE, VALUES, (), "1 values, and there were 0"),
        (VALUES, VALUES | {"values": {"x @ y": [0.1, 0.3]}}, (), "values of 'x @ y' are others"),
        (
            VALUES,
            VALUES | {"programs": {"x @ y": ["b", "2"]}},
            (),
            "program of 'x @ y' is another",
        ),
        (VALUES, VALUES, (CODE,), "'measure' differs by more than names"),
        ({"programs": {}}, {"programs": {}}, (), "nothing could be compared"),
    ],
)
def test_without_equal_programs_it_is_refused(before, now, differ, said):
    with pytest.raises(UserError, match=said):
        renaming.evidence(answer(**before), answer(**now), differ)


def lower(function, *shapes):
    import jax

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    return jax.jit(function).trace(*shapes).lower(lowering_platforms=("cpu",)).as_text()


LOOP = """
import jax
import jax.numpy as jnp

@jax.jit
def norm(x):
    return jnp.sqrt(jnp.square(x).sum())

def program(x, y):
    def step(carry, row):
        a, b = carry
        return (a + row @ y, b * 2.0), jnp.cumsum(row)

    total, low = norm(x), jnp.argsort(y)
    best, place = jax.lax.top_k(y, 2)
    carry, rows = jax.lax.scan(step, (total, y), x)
    branch = jax.lax.cond(total > 1.0, jnp.sin, lambda x: x + 1.0, total)
    low = x.at[low[0]].set(0.0)
    return {"best": best * place, "carry": carry, "rows": rows, "branch": branch, "low": low}
"""


def dataflow(*changes):
    text = LOOP
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    space = {}
    exec(text, space)
    return probe.canonical(lower(space["program"], (4, 3), (3,)))


@pytest.mark.parametrize(
    "changes",
    [
        [("norm", "length"), ("step", "move"), ("low", "rank"), ("total", "size")],
        [("total, low = norm(x), jnp.argsort(y)", "low, total = jnp.argsort(y), norm(x)")],
        [('"branch"', '"brunch"'), ('"carry"', '"curry"')],
        [
            ("return (a + row @ y, b * 2.0), jnp.cumsum(row)", "return (a + row @ y, d), c"),
            ("a, b = carry", "a, b = carry; c = jnp.cumsum(row); d = b * 2.0"),
        ],
    ],
)
def test_programs_have_one_dataflow_whatever_their_names_and_order(changes):
    assert dataflow(*changes) == dataflow()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b * 2.0", "b * 3.0"),
        ("a + row @ y", "row @ y - a"),
        ("(total, y), x)", "(total, 0 * y), x)"),
        ("jnp.cumsum(row)", "jnp.cumsum(row[::-1])"),
        ("jnp.square(x).sum()", "jnp.square(x).mean()"),
        ("jnp.sin, lambda x: x + 1.0", "lambda x: x + 1.0, jnp.sin"),
        ("total > 1.0", "total >= 1.0"),
        ("low[0]", "low[1]"),
        ("best * place", "best * best"),
        ("jnp.argsort(y)", "jnp.argsort(-y)"),
        ("a + row @ y, b * 2.0", "a + row @ b, b * 2.0"),
        ('"carry": carry', '"zzz": carry'),  # which is another order of the results
    ],
)
def test_another_dataflow_is_seen(old, new):
    assert dataflow((old, new)) != dataflow()


# ------------------------------------------------------------------------------- what follows


def event(kind, **more):
    return {"format": 2, "id": "ppo", "event": kind, "budget": "full"} | more


def renaming_of(old, new, commit, names, programs):
    found = {"from": old, "to": new, "names": names, "programs": programs, "why": "Names."}
    return records.rename("ppo", "value", commit, found)


DECLARED = {"sides": {"x": {"settings": {"neighbours": 4}}}, "seeds": 5}
KNOWN = [
    event("begun", attempt=1, digest="d1", declared=DECLARED, programs={"x @ y": "p1"}),
    event("ended", attempt=1, digest="d1", declared=DECLARED, programs={"x @ y": "p1"}),
    renaming_of("d1", "d2", "c1", {"neighbours": "neighbors"}, {"x @ y": ["p1", "p2"]}),
    renaming_of("d1", "d3", "c1", {"neighbours": "nearest"}, {"x @ y": ["p1", "p3"]}),
    renaming_of("d1", "d4", "c2", {"nearest": "closest"}, {"x @ y": ["p3", "p4"]}),
]


def test_the_original_stands_for_all():
    assert [renaming.original(KNOWN, d) for d in ("d1", "d2", "d4", "other")] == [
        *("d1", "d1", "d1"),
        "other",
    ]
    found = [renaming.original_programs(KNOWN, {"x @ y": p, "z": p})["x @ y"] for p in
             ("p1", "p2", "p3", "p4", "p5")]  # fmt: skip
    assert found == ["p1", "p1", "p1", "p1", "p5"]
    assert renaming.original_programs(KNOWN, {"z": "p4"}) == {"z": "p4"}


def test_old_data_in_the_names_of_today():
    names = lambda known, until=None: next(
        iter(renaming.translate(DECLARED, known, known[0], until)["sides"]["x"]["settings"])
    )
    assert names(KNOWN[:2]) == "neighbours"
    assert names(KNOWN[:3]) == "neighbors"
    assert names(KNOWN[:4]) == "nearest"  # compared with the same commit as the one before it
    assert names(KNOWN) == "closest"
    assert names(KNOWN, KNOWN[3]) == "neighbors"


def begin(known, declared, digest, programs):
    now = renaming.original(known, digest), "full", renaming.original_programs(known, programs)
    from tests.evidence.test_records import claim

    return records.begin(known, "ppo", "value", claim(**declared), *now, lambda attempt: {})[0]


def test_seeds_and_freshness_follow_a_renaming():
    first = begin([], {}, "d1", {"x @ y": "p1"})
    ended = first | {"event": "ended", "verdict": "holds"}
    known = [first, ended, *KNOWN[2:]]
    again = begin(known, {}, "d4", {"x @ y": "p4"})
    assert (again["attempt"], again["changed"]) == (2, [])
    assert again["digest"] == "d1" and again["programs"] == {"x @ y": "p1"}
    assert again["seed_root"] == digests.seed_roots("ppo", "d1", 2)[1]
    programs = renaming.original_programs(known, {"x @ y": "p4"})
    assert records.staleness(ended, renaming.original(known, "d4"), programs) == ""
    other = renaming.original_programs(known, {"x @ y": "p5"})
    assert "x @ y compiles to a different" in records.staleness(ended, "d1", other)
    revised = begin(known, {"seeds": 6}, "d5", {"x @ y": "p4"})
    assert revised["changed"] == ["seeds was 5 and is 6."]
    assert revised["seed_root"] == digests.seed_roots("ppo", "d5", 2)[1]


# ------------------------------------------------------------------------------- this repository


@pytest.mark.parametrize("id", listing.discover(run.ROOT))
def test_the_records_of_each_claim_are_whole(id):
    """Attempts are numbered, end as they began, and have the seeds that follow from digests."""
    claim = listing.discover(run.ROOT)[id]
    known = records.read(claim.records)
    assert {(r["id"], r["family"]) for r in known} == {(id, claim.family)}
    begun, ended = (records.of(known, id, event) for event in ("begun", "ended"))
    assert [r["attempt"] for r in begun] == list(range(1, len(begun) + 1))
    for record in begun:
        root = digests.seed_roots(id, record["digest"], record["attempt"])[1]
        assert record["seed_root"] == root, record["attempt"]
    for record in ended:
        first = begun[record["attempt"] - 1]
        alike = set(first) - {"event", "seconds", "date"}
        assert all(record[name] == first[name] for name in alike), record["attempt"]
    for record in records.of(known, id, "renamed"):
        assert record["from"] in {r["digest"] for r in begun}
        assert set(record) >= {"from", "to", "commit", "date", "names", "programs", "why"}


# ------------------------------------------------------------------------------- the whole

LIBRARY = "def double(x):\n    return 2 * x\n"
SHARED = '"""Shared."""\n\nSCALE = 1.0\n'
TRACED = '''"""A claim."""

import jax

from experiments.claims.value._scales import SCALE
from experiments.evidence.declare import Exact, Paper
from jaxrl.part import double


def errors(key):
    x = jax.random.normal(key, dtype="float64")
    return {"error": abs(SCALE * double(x) - x - x)}


CLAIM = Exact(
    paper=Paper("On planting", "A. Author", 2020, "", "It grows."),
    claim="Twice is x + x.",
    left_out="",
    parts=("jaxrl/part.py",),
    errors=errors,
    planted={"a sign": lambda key: {"error": 1.0 + errors(key)["error"]}},
    seeds=5,
)
'''
BY_NUMPY = TRACED.replace("abs(SCALE", "abs(float(SCALE)").replace(
    'x = jax.random.normal(key, dtype="float64")',
    'x = float(jax.random.normal(key, dtype="float64"))',
)


def command(root, *argv):
    script = str(root / "experiments" / "evidence" / "run.py")
    return subprocess.run(
        [sys.executable, script, *argv],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow  # it imports JAX a dozen times
def test_only_a_renaming_is_recorded(tmp_path):
    """A repository whose library is renamed, and then computes something else."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "jaxrl", tmp_path / "jaxrl", ignore=ignore)
    shutil.copytree(
        ROOT / "experiments" / "evidence", tmp_path / "experiments" / "evidence", ignore=ignore
    )
    folder = tmp_path / "experiments" / "claims" / "value"
    folder.mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("__pycache__/\nruns/\n")
    (tmp_path / "jaxrl" / "part.py").write_text(LIBRARY)
    (folder / "_scales.py").write_text(SHARED)
    (folder / "traced.py").write_text(TRACED)
    (folder / "by_numpy.py").write_text(BY_NUMPY)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    begun = [
        {
            "format": 2, "event": "begun", "id": id, "family": "value", "attempt": 1,
            "budget": "full", "digest": digests.digest(folder / f"{id.replace('-', '_')}.py"),
            "declared": {}, "changed": [], "programs": {},
        }
        for id in ("traced", "by-numpy")
    ]  # fmt: skip
    for record in begun:
        records.append(folder / f"{record['id'].replace('-', '_')}.jsonl", record)
    first = git(tmp_path, "rev-parse", "HEAD").strip()

    def digests_written():
        paths = [folder / f"{name}.jsonl" for name in ("traced", "by_numpy")]
        return [[r["to"] for r in records.read(p) if r["event"] == "renamed"] for p in paths]

    def rename(old, new):
        for path in (tmp_path / "jaxrl" / "part.py", folder / "traced.py", folder / "by_numpy.py"):
            change(path, old, new)

    done = command(tmp_path, "--renamed", first)
    assert (done.returncode, done.stdout) == (0, "") and digests_written() == [[], []]

    rename("double", "twice")
    (folder / "_scales.py").rename(folder / "_factors.py")
    for name in ("traced", "by_numpy"):
        change(folder / f"{name}.py", "_scales", "_factors")
    done = command(tmp_path, "--renamed", first)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "traced: " in done.stdout and "equal: 2 programs of all that is measured" in done.stdout
    assert "equal: values of 2 runs" in done.stdout
    now = [[digests.digest(folder / f"{name}.py")] for name in ("traced", "by_numpy")]
    assert digests_written() == now
    assert "revised since" not in command(tmp_path, "--list").stdout

    rename("twice", "triple")  # and the library computes something else
    change(tmp_path / "jaxrl" / "part.py", "2 * x", "3 * x")
    done = command(tmp_path, "--renamed", first)
    assert done.returncode == 1, done.stdout
    assert "traced: refused, since the program of 'errors' is another one" in done.stdout
    assert "by-numpy: refused, since the values of 'errors' are others" in done.stdout
    assert digests_written() == now

    change(tmp_path / "jaxrl" / "part.py", "3 * x", "2 * x")
    change(folder / "traced.py", "seeds=5", "seeds=6")  # and a declaration is revised
    change(folder / "by_numpy.py", "+ errors", "- errors")
    done = command(tmp_path, "--renamed", first)
    assert done.returncode == 1
    assert "traced: refused, since seeds was 5 and is 6." in done.stdout
    assert "by-numpy: refused, since" in done.stdout and digests_written() == now
    assert command(tmp_path, "--list").stdout.count("revised since") == 0  # nothing has ended
