"""Digests, registration, attempts and freshness, with mistakes planted in each.

Planted are a dirty tree, a digest that is not committed, a revision, prose, programs that changed,
and an interrupted attempt.
"""

from __future__ import annotations

import json
import threading
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import experiments.evidence
from experiments.evidence import digests, records
from experiments.evidence.declare import Arena, Claim, Exact, Metric, Paper, Side, Trial, better
from jaxrl.core.errors import UserError
from jaxrl.kit import AlgorithmBuilder
from tests.evidence.planted import TEXT, VALUES, change, commit, repository

PAPER = Paper("On planting", "A. Author", 2020, "", "It grows.")


def claim(**more):
    fields = {
        "paper": PAPER,
        "claim": "New is better.",
        "left_out": "",
        "parts": ("jaxrl/part.py",),
        "metric": Metric("score", 0.0, 1.0),
        "environments": (Arena("cartpole", 1000, 0.0, 500.0),),
        "sides": {"new": Side(None, {"discount": 0.9}), "old": Side(None)},
        "clauses": (better("new", "old", 0.1),),
        "seeds": 5,
        "minutes": 2.0,
    }
    return Claim(**(fields | more))


# ------------------------------------------------------------------------------- digests


def digest(tmp_path, text=TEXT, values=VALUES):
    folder = tmp_path / "planted_family"
    folder.mkdir(exist_ok=True)
    (folder / "_values.py").write_text(values)
    path = folder / "claim.py"
    path.write_text(text)
    return digests.digest(path)


MUTATION = """
from jaxrl.planted import Flipped


def flipped(f):
    return lambda x: -f(x)


CLAIM = Claim(mutations=(Mutation("sign", "jaxrl.losses:gae", flipped),),"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("New is better than old.", "The new one is better."),
        ('"It grows."', '"It may grow."'),
        ("2020", "2021"),
        ("Of no account.", "Of some account."),
        ('deviates="Much."', 'deviates="Little."'),
        ('"""Measure it."""', '"""Measure all."""'),
        ("seeds=5,", "seeds=5,  # enough"),
        ('    claim="New is better than old.",\n    left_out="All else.",\n', '  left_out="",\n'),
        ("minutes=2.0", "minutes=4.0"),
        ("Side(None)", "Side(\n None\n)"),
        ("0.1", "1e-1"),
        ("return 1", "return 2"),  # of what is not used
        ("CLAIM = Claim(", MUTATION.lstrip()),
    ],
)
def test_prose_does_not_change_the_digest(tmp_path, old, new):
    assert digest(tmp_path) == digest(tmp_path, TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seeds=5", "seeds=6"),
        ("0.1", "0.2"),
        ("1000", "2000"),
        ('{"score": keys}', '{"score": -keys}'),
        ("measure=measure", "measure=unused"),
        ("Side(None, deviates", 'Side(None, {"clip": 0.1}, deviates'),
        ("def unused", "@registered\ndef unused"),  # which may do something by itself
    ],
)
def test_what_is_computed_changes_the_digest(tmp_path, old, new):
    assert digest(tmp_path) != digest(tmp_path, TEXT.replace(old, new))


def test_prose_is_that_of_declarations_alone(tmp_path):
    one, two = (digest(tmp_path, TEXT.replace("keys}", f"keys(notes={i})}}")) for i in (1, 2))
    assert one != two


def test_a_helper_counts(tmp_path):
    before = digest(tmp_path)
    assert digest(tmp_path, values=VALUES.replace("Shared.", "Of all.") + "# a note") == before
    assert digest(tmp_path, values=VALUES.replace("0.9", "0.8")) != before
    assert len(before) == 12


@pytest.mark.parametrize("family", ["planted_family", "another_family"])
@pytest.mark.parametrize("line", ["from {} import _more", "from {}._more import X"])
def test_a_helper_of_a_helper_counts_and_one_of_another_family(tmp_path, family, line):
    (tmp_path / family).mkdir()
    imported = VALUES + line.format(f"experiments.claims.{family}") + "\n"
    (tmp_path / family / "_more.py").write_text("X = 1")
    one = digest(tmp_path, values=imported)
    (tmp_path / family / "_more.py").write_text("X = 2")
    assert one != digest(tmp_path, values=imported)


def test_seeds_come_from_the_declaration():
    roots = [digests.seed_roots("a", "d", 1), digests.seed_roots("a", "d", 2),
             digests.seed_roots("a", "e", 1), digests.seed_roots("b", "d", 1)]  # fmt: skip
    tuning, reported = zip(*roots, strict=True)
    assert len(set(reported)) == 4 and tuning[0] == tuning[1] == tuning[2] != tuning[3]
    assert roots[0] == digests.seed_roots("a", "d", 1)
    assert all(0 <= root < 2**31 for root in (*tuning, *reported))


def test_a_declaration_is_strict_json():
    said = digests.as_json(claim(measure=np.mean, seeds=np.int64(5)))
    assert json.loads(json.dumps(said, allow_nan=False)) == said
    assert said["sides"]["new"]["settings"] == {"discount": 0.9}
    recipe: Any = None
    assert digests.as_json(AlgorithmBuilder("ppo", Side, recipe)) == "ppo"
    assert said["environments"][0]["env"] == "cartpole" and said["measure"] == "numpy:mean"
    assert digests.as_json([jnp.float32(0.5), float("inf"), np.ones(2)]) == [0.5, None, [1.0, 1.0]]


def test_what_changed_is_said_in_sentences():
    before = digests.as_json(claim())
    environment = Arena("cartpole", 2000, 0.0, 500.0)
    sides = {"new": Side(None, {"clip": 0.2}), "old": Side(None)}
    after = digests.as_json(
        claim(environments=(environment,), sides=sides, claim="Better.", minutes=9.0)
    )
    assert digests.revisions(before, after) == [
        "environments, cartpole, env_steps was 1000 and is 2000.",
        "sides, new, settings, discount (0.9) is gone.",
        "sides, new, settings, clip (0.2) is new.",
    ]
    sides = {"new": Side(None, {"discount": 0.9}), "third": Side(None)}
    more = digests.as_json(claim(sides=sides, clauses=(better("new", "third"),)))
    assert digests.revisions(before, more) == [
        "sides, old is gone.",
        "sides, third is new.",
        "clauses, new better than old is gone.",
        "clauses, new better than third is new.",
    ]
    assert "but the code" in digests.revisions(before, before)[0]


# ------------------------------------------------------------------------------- registration


def test_a_claim_is_registered_by_a_commit(tmp_path):
    folder = repository(tmp_path, "ppo")
    path = folder / "ppo.py"
    first = records.register(path, tmp_path)
    assert first == digests.digest(path)
    path.with_suffix(".jsonl").write_text("{}\n")  # written while other claims run
    (tmp_path / records.STALE).write_text("{}\n")
    assert records.register(path, tmp_path) == first

    change(path, "seeds=5", "seeds=6")
    with pytest.raises(UserError, match=rf"was committed \({first}\); a declaration is committed"):
        records.register(path, tmp_path)
    commit(tmp_path)
    assert records.register(path, tmp_path) != first

    change(folder / "_values.py", "0.9", "0.8")
    with pytest.raises(UserError, match="is not what was committed"):
        records.register(path, tmp_path)
    commit(tmp_path)

    new = folder / "new.py"
    new.write_text(TEXT)
    with pytest.raises(UserError, match="committed \\(in no commit\\)"):
        records.register(new, tmp_path)
    with pytest.raises(UserError, match=r"planted_family/new.py differs from the last commit"):
        records.register(path, tmp_path)


def test_nothing_is_recorded_from_a_dirty_tree(tmp_path):
    path = repository(tmp_path, "ppo") / "ppo.py"
    change(tmp_path / "jaxrl" / "part.py", "1", "2")
    with pytest.raises(UserError, match=r"^jaxrl/part.py differs from the last commit"):
        records.register(path, tmp_path)
    change(path, "New is", "It is")  # prose alone: the same digest, and yet not the same commit
    with pytest.raises(UserError, match=r"ppo.py and 1 more differs"):
        records.register(path, tmp_path)


def test_without_git_nothing_is_registered(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    path = tmp_path / "experiments" / "ppo.py"
    path.parent.mkdir()
    path.write_text("CLAIM = None")
    with pytest.raises(UserError, match="there is no git repository"):
        records.register(path, tmp_path)


def begin(known, declared=None, digest="d1", budget="full", programs=None):
    """The record, appended to `known` if it is new."""
    more = lambda attempt: {"level": 1 - 0.05 / attempt}
    programs = {"new @ cartpole": "p1"} if programs is None else programs
    begun, new = records.begin(
        known, "ppo", "family", declared or claim(), digest, budget, programs, more
    )
    if new:
        known.append(begun)
    return begun


def end(known, verdict="holds"):
    known.append(known[-1] | {"event": "ended", "verdict": verdict})


def test_a_revision_is_another_attempt_and_says_what_changed():
    known = [{"id": "ppo", "verdict": "holds"}]  # from before the harness
    first = begin(known)
    assert (first["attempt"], first["changed"], first["level"]) == (1, [], 0.95)
    end(known, "does not hold")
    second = begin(known, claim(seeds=6), digest="d2")
    assert second["changed"] == ["seeds was 5 and is 6."]
    assert (second["attempt"], second["seeds"], second["level"]) == (2, 6, 0.975)
    assert second["seed_root"] != first["seed_root"]
    end(known)
    again = begin(known, claim(seeds=6, claim="It is better, in other words."), digest="d2")
    assert (again["attempt"], again["changed"]) == (3, [])  # prose is no revision
    assert again["seed_root"] != second["seed_root"]


def test_an_interrupted_attempt_goes_on_under_its_number():
    known = []
    first = begin(known)
    assert records.open_attempt(known, "ppo") == first
    assert begin(known) == first and len(known) == 1
    end(known)
    assert records.open_attempt(known, "ppo") is None
    assert begin(known)["attempt"] == 2


@pytest.mark.parametrize(
    "other", [{"digest": "d2"}, {"budget": "large"}, {"programs": {"new @ cartpole": "p2"}}]
)
def test_what_would_compute_something_else_does_not_go_on(other):
    known = []
    first = begin(known)
    assert begin(known, **other)["attempt"] == 2
    assert known[0] == first and len(known) == 2  # it stays, as one that never ended


def test_large_budgets_have_their_own_seeds():
    assert begin([], claim(large_seeds=30), budget="large")["seeds"] == 30
    assert begin([], claim(large_seeds=30))["seeds"] == begin([], budget="large")["seeds"] == 5


def test_records_are_lines(tmp_path):
    path = tmp_path / "ppo.jsonl"
    assert records.read(path) == []
    words = "x" * 100_000  # more than a buffer holds
    threads = [threading.Thread(target=records.append, args=(path, {"id": i, "why": words}))
               for i in range(8)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record["id"] for record in records.read(path)) == list(range(8))
    records.append(path, {"low": float("-inf"), "value": np.float32(0.5)})
    assert records.read(path)[-1] == {"low": None, "value": 0.5}
    path.write_text(path.read_text() + '{"id": ')
    with pytest.raises(UserError, match=r"Line 10 of ppo.jsonl is no record"):
        records.read(path)


# ------------------------------------------------------------------------------- freshness


@pytest.fixture
def programs(monkeypatch):
    """Function of a claim and the text of a function `curve` that stands for training."""

    def trials(declared, budget):
        return {
            (w.label, n): Trial(n, s, w, w.env_steps)
            for w in declared.environments
            for n, s in declared.sides.items()
        }

    def hashes(declared, curve, root=Path()):
        space = {"jnp": jnp, "jax": jax}
        exec(curve, space)
        stub = types.SimpleNamespace(curve=space["curve"], build=space.get("build"))
        monkeypatch.setattr(experiments.evidence, "measure", stub, raising=False)
        monkeypatch.setattr(
            experiments.evidence, "sides", types.SimpleNamespace(trials=trials), raising=False
        )
        return records.programs(declared, "full", root)

    return hashes


CURVE = """
@jax.jit
def inner(x):
    return jnp.where(x > 0, x, 2 * x)

def curve(trial, keys, hyper):
    discount = trial.side.settings.get("discount", 0.5)
    return discount * inner(jax.vmap(jax.random.normal)(keys)) * hyper.get("rate", 1.0)
"""


def test_a_record_is_stale_where_its_programs_are_others(programs):
    declared = claim()
    before = programs(declared, CURVE)
    assert set(before) == {"new @ cartpole", "old @ cartpole"} and len(set(before.values())) == 2
    moved = "# a comment\n\n\n" + CURVE.replace("inner", "renamed")
    assert programs(declared, moved) == before
    after = programs(declared, CURVE.replace("0.5", "0.25"))
    record = {"digest": "d1", "programs": before}
    assert records.staleness(record, "d1", before) == ""
    one = "Recorded with older code: old @ cartpole compiles to a different program today."
    assert records.staleness(record, "d1", after) == one
    assert records.staleness(record, "d2", before) == "Its declaration was revised since."
    more = records.staleness(record, "d1", after | {"third @ cartpole": "p"})
    assert more == (
        "Recorded with older code: old @ cartpole and third @ cartpole compile to different "
        "programs today."
    )


def test_a_tuned_value_is_no_part_of_the_program(programs):
    def sides(*rates):
        return {"new": Side(None, {}, {"rate": rates}), "old": Side(None)}

    one, two = (programs(claim(sides=sides(*r)), CURVE) for r in [(1.0, 2.0), (3.0, 4.0)])
    assert one == two != programs(claim(), CURVE)


BUILT = """
from jaxrl.core.types import Algorithm

def build(trial):
    step = lambda state, key: (state + 1.0, {})
    init = lambda key, hyper: jax.random.normal(key)
    return None, Algorithm("stub", init, step, lambda state: None)

curve = None
"""


def test_a_claim_that_measures_by_itself_has_its_step_and_its_files(programs, tmp_path):
    part = tmp_path / "jaxrl" / "part.py"
    part.parent.mkdir()
    part.write_text("X = 1\n")
    declared = claim(measure=lambda trial, keys, hyper: {})
    before = programs(declared, BUILT, tmp_path)
    assert set(before) == {"new @ cartpole", "old @ cartpole", "parts"}
    changed = lambda now: {name for name in before if now[name] != before[name]}
    part.write_text('"""A file."""\n\nX = 1  # one\n')
    assert not changed(programs(declared, BUILT, tmp_path))
    part.write_text("X = 2\n")
    assert changed(programs(declared, BUILT, tmp_path)) == {"parts"}
    part.write_text("X = 1\n")
    for old, new in (("1.0", "2.0"), ("normal", "uniform")):  # a step, and the beginning
        now = programs(declared, BUILT.replace(old, new), tmp_path)
        assert changed(now) == {"new @ cartpole", "old @ cartpole"}


def test_the_program_of_an_exact_claim(programs, tmp_path):
    def exact(errors):
        return Exact(paper=PAPER, claim="", left_out="", parts=("part.py",), errors=errors,
                     planted={"a sign": errors})  # fmt: skip

    (tmp_path / "part.py").write_text("X = 1\n")
    traced = lambda key: {"error": jax.random.normal(key)}
    double = lambda key: {"error": jax.random.normal(key, dtype=jnp.float64)}
    single = lambda key: {"error": jax.random.normal(key, dtype=jnp.float32)}
    hashes = [programs(exact(f), CURVE, tmp_path) for f in (traced, double, single)]
    assert hashes[0] == hashes[1] != hashes[2] and set(hashes[0]) == {"errors"}  # in float64
    by_numpy = exact(lambda key: {"error": np.asarray(jax.random.normal(key))})
    assert set(programs(by_numpy, CURVE, tmp_path)) == {"parts"}
