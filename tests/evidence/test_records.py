"""Digests, registration and attempts, with mistakes planted in each.

Planted are a dirty tree, a digest that is not committed, a revision, prose, a helper that gained a
function, a pilot that is not recorded, a record that was removed, and an interrupted attempt.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.evidence import digests, records
from experiments.evidence.declare import Arena, Claim, Metric, Paper, Side, better
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
        ('"It grows."', '"It may grow."'),
        ("2020", "2021"),
        ("Of no account.", "Of some account."),
        ('deviates="Much."', 'deviates="Little."'),
        ('"""Measure it."""', '"""Measure all."""'),
        ("seeds=5,", "seeds=5,  # enough"),
        ('    left_out="All else.",\n', '  left_out="",\n'),
        ("from experiments.evidence.declare import", "from jaxrl.declare import"),
        ("def unused", "@registered\ndef unused"),
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
        ("New is better than old.", "The new one is better."),  # a claim is its sentence
        ("seeds=5", "seeds=6"),
        ("0.1", "0.2"),
        ("1000", "2000"),
        ('{"score": keys}', '{"score": -keys}'),
        ("measure=measure", "measure=unused"),
        ("Side(None, deviates", 'Side(None, {"clip": 0.1}, deviates'),
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
@pytest.mark.parametrize(
    ("line", "used"), [("from {} import _more", "_more.X"), ("from {}._more import X", "X")]
)
def test_a_helper_of_a_helper_counts_and_one_of_another_family(tmp_path, family, line, used):
    (tmp_path / family).mkdir()
    line = line.format(f"experiments.claims.{family}") + "\n"
    values = line + VALUES.replace("0.9", used)
    (tmp_path / family / "_more.py").write_text("X = 1")
    one = digest(tmp_path, values=values)
    (tmp_path / family / "_more.py").write_text("X = 2")
    assert one != digest(tmp_path, values=values)
    assert digest(tmp_path, values=line + VALUES) == digest(tmp_path)  # imported, and not used


def test_a_helper_that_gained_a_function_changes_nothing(tmp_path):
    """The planted case that made claims "revised" with other seeds, though nothing they use was."""
    before = digest(tmp_path)
    gained = (
        VALUES + "\n\n@functools.cache\ndef more():\n    return DISCOUNT\n\n\nRATE = float('1')\n"
    )
    assert digest(tmp_path, values=gained) == before
    shared = "\n\ndef used():\n    return 1\n\n\nDISCOUNT = used()\n"
    one, two = (digest(tmp_path, values=VALUES + shared.replace("1", x)) for x in "12")
    assert one != two != before


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
        'claim was "New is better." and is "Better.".',
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
    (tmp_path / records.BEST).write_text("{}\n")
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
    change(path, "All else", "The rest")  # prose: the same digest, another commit
    with pytest.raises(UserError, match=r"ppo.py and 1 more differs"):
        records.register(path, tmp_path)


def test_without_git_nothing_is_registered(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    path = tmp_path / "experiments" / "ppo.py"
    path.parent.mkdir()
    path.write_text("CLAIM = None")
    with pytest.raises(UserError, match="there is no git repository"):
        records.register(path, tmp_path)


def test_what_was_recorded_stays(tmp_path):
    """A pilot, or an attempt, whose lines are gone from the file."""
    path = repository(tmp_path, "ppo") / "ppo.py"
    lines = path.with_suffix(".jsonl")
    lines.write_text('{"attempt": 1}\n{"attempt": 2}\n')
    commit(tmp_path)
    lines.write_text('{"attempt": 1}\n{"attempt": 2}\n{"attempt": 3}\n')
    commit(tmp_path)
    records.register(path, tmp_path)
    lines.write_text('{"attempt": 1}\n{"attempt": 3}\n')
    with pytest.raises(
        UserError, match=r"^Line 2 \(commit \w+\) of .*ppo.jsonl was recorded and is"
    ):
        records.register(path, tmp_path)
    commit(tmp_path)  # to commit the removal does not help
    with pytest.raises(UserError, match="Line 2"):
        records.register(path, tmp_path)


def test_a_pilot_that_is_not_recorded(tmp_path):
    (tmp_path / "ppo-0123456789ab" / "1-pilot").mkdir(parents=True)
    (tmp_path / "ppo-0123456789ab" / "mutations-full").mkdir()
    (tmp_path / "pqn-0123456789ab" / "1-full").mkdir(parents=True)
    with pytest.raises(UserError, match=r"^Attempt 1 at ppo \(pilot\) ran here and has no record"):
        records.check_store(tmp_path, "ppo", [])
    known = [{"event": "begun", "attempt": 1, "budget": "pilot"}]
    records.check_store(tmp_path, "ppo", known)
    records.check_store(tmp_path, "dqn", [])


def begin(known, declared=None, digest="d1", budget="full"):
    """The record, appended to `known` if it is new."""
    more = lambda record: {"level": 1 - 0.05 / record["attempt"]}
    begun, new = records.begin(known, "ppo", "family", declared or claim(), digest, budget, more)
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
    again = begin(known, claim(seeds=6, notes="In other words."), digest="d2")
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


@pytest.mark.parametrize("other", [{"digest": "d2"}, {"budget": "large"}])
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


def test_a_later_judgement_counts_and_the_record_stays():
    ended = {"id": "ppo", "event": "ended", "attempt": 1, "verdict": "holds", "level": 0.95,
             "why": "It did.", "clauses": [1], "values": {}}  # fmt: skip
    now = {"verdict": "inconclusive", "level": 0.98, "why": "Less.", "clauses": [2], "rules": 2}
    known = [
        ended,
        {"id": "ppo", "event": "judged", "attempt": 1} | now | {"why": "An earlier one."},
        {"id": "ppo", "event": "judged", "attempt": 1} | now,
        {"id": "pqn", "event": "ended", "attempt": 1, "verdict": "holds"},
    ]
    counted = records.with_judgements(known)
    assert counted[0] == ended | now | {"was": "holds"} and counted[1:] == known[1:]
    assert known[0] == ended


def test_renamings_have_one_original():
    known = [
        {"event": "renamed", "from": "d1", "to": "d2", "commit": "a", "names": {"worlds": "envs"}},
        {"event": "renamed", "from": "d1", "to": "d3", "commit": "b", "names": {"who": "side"}},
    ]
    assert [records.original(known, x) for x in ("d1", "d2", "d3", "d4")] == [
        "d1",
        "d1",
        "d1",
        "d4",
    ]
    data = {"worlds": ["who", 3, {"who": "worlds"}]}
    assert records.with_names(data, known) == {"envs": ["side", 3, {"side": "envs"}]}
