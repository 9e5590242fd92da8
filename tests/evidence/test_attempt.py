"""Attempts: what is spent and kept, how they resume, and whether mutations are noticed."""

import dataclasses
import functools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.evidence import attempt
from experiments.evidence.attempt import Readers
from experiments.evidence.declare import Arena, Mutation, Side, better
from experiments.evidence.mutate import apply, mutate
from jaxrl import envs
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.core.errors import UserError
from tests.evidence import stubs

ONCE = 4 * 2  # sides in environments, tuned and reported


class Calls:
    """A measure that counts what it is asked, and is interrupted in its call number `stop`."""

    def __init__(self, stop=0, seconds=0.0, change=lambda found: found):
        self.asked, self.stop, self.time, self.seconds = [], stop, 0.0, seconds
        self.change = change

    def __call__(self, trial, keys, values):
        self.asked.append((trial.name, trial.environment.label, stubs.of_key(keys).tolist()))
        self.time += self.seconds
        if len(self.asked) == self.stop:
            raise KeyboardInterrupt
        return self.change(stubs.measure(trial, keys, values))

    def clock(self):
        return self.time


@pytest.fixture
def run(tmp_path):
    def run(claim, calls=None, tell=lambda line: None, readers=stubs.READERS, store="", **begun):
        clock = calls.clock if calls else lambda: 0.0
        record = attempt.run(claim, stubs.BEGUN | begun, 3, tmp_path / store, readers, clock, tell)
        return json.loads(json.dumps(record, allow_nan=False))

    return run


# ------------------------------------------------------------------------------- a claim


def test_a_record(run):
    calls = Calls(seconds=2.0)
    record = run(stubs.claim(measure=calls), calls)
    assert record.items() >= (stubs.BEGUN | {"event": "ended", "verdict": "holds"}).items()
    assert record["seconds"] == ONCE * 2.0
    assert len(calls.asked) == ONCE
    assert set(record["values"]) == {"meadow", "wood"}
    scores = {side: np.array(x["score"]) for side, x in record["values"]["wood"].items()}
    assert [len(x) for x in scores.values()] == [6, 6]
    np.testing.assert_allclose(scores["one"] - scores["other"], 0.5)  # paired, whatever the noise
    assert record["tuned"]["meadow"] == {"one": {"rate": 0.1}, "other": {"rate": 0.1}}
    assert record["grids"] == {name: {"rate": [0.01, 0.1, 1.0]} for name in ("one", "other")}
    assert [c["value"] for c in record["clauses"]] == pytest.approx([0.5, 0.5])
    assert [(x["name"], x["ok"]) for x in record["looks"]] == [("power", True), ("budget", True)]


def test_tuning_and_reported_seeds(run):
    asked = {}
    for number, root in ((1, 7), (2, 8)):
        calls = Calls()
        run(stubs.claim(measure=calls), calls, attempt=number, seed_root=root)
        for side, environment, numbers in calls.asked:
            asked.setdefault((number, environment, len(numbers)), []).append((side, numbers))
    for (_, _, count), sides in asked.items():
        assert [side for side, _ in sides] == ["one", "other"]
        assert sides[0][1] == sides[1][1]  # both have the same
        assert len(set(sides[0][1])) == min(count, 3 if count == 9 else 6)
    seeds = {where: set(sides[0][1]) for where, sides in asked.items()}
    assert not seeds[1, "wood", 9] & seeds[1, "wood", 6]
    assert not seeds[1, "wood", 6] & seeds[1, "meadow", 6]
    assert seeds[1, "wood", 9] == seeds[2, "wood", 9]  # tuning goes by the id alone
    assert not seeds[1, "wood", 6] & seeds[2, "wood", 6]


def test_edges_are_in_the_record(run):
    far = Side(stubs.STUB, {"best_rate": 8.0, "height": 0.5}, {"rate": stubs.RATES})
    record = run(stubs.claim(sides={"one": far, "other": stubs.claim().sides["other"]}))
    edges = [x for x in record["looks"] if x["name"] == "edge"]
    assert [x["ok"] for x in edges] == [False, False]
    assert "rate of 'one' in wood is best at 10" in edges[1]["said"]
    assert record["grids"]["one"]["rate"] == [0.01, 0.1, 1.0, 10.0]
    assert record["grids"]["other"]["rate"] == [0.01, 0.1, 1.0]


def test_what_is_untestable_spends_no_reported_seed(run):
    top = {"name": "ceiling", "ok": False, "said": "All are at the top."}
    calls = Calls()
    readers = dataclasses.replace(stubs.READERS, look=lambda *about: ([top], "Full."))
    record = run(stubs.claim(measure=calls), calls, readers=readers)
    assert (record["verdict"], record["why"]) == ("untestable", "Full.")
    assert len(calls.asked) == ONCE / 2
    assert record["values"] == {} and record["clauses"] == []
    assert record["looks"][0] == top


def test_readers_are_told_what_is_declared(run):
    told = {}

    def look(claim, clauses, environments, values, seeds, level):
        told["look"] = (
            clauses,
            [w.label for w in environments],
            np.shape(values["wood"]["one"]["score"]),
        )
        assert (seeds, level) == (6, 0.95)
        return [], ""

    def judge(claim, clauses, environments, values, level, hours):
        told["judge"] = (
            clauses,
            [w.label for w in environments],
            np.shape(values["wood"]["one"]["score"]),
        )
        assert level == 0.95 and hours == pytest.approx(4 * 3.0 / 3600 / 6)
        return stubs.judge(claim, clauses, environments, values, level, hours)

    calls = Calls(seconds=3.0)
    claim = stubs.claim(measure=calls)
    run(claim, calls, readers=Readers(look, judge, stubs.judge_exact))
    assert told["look"] == (claim.clauses, ["meadow", "wood"], (3,))
    assert told["judge"] == (claim.clauses, ["meadow", "wood"], (6,))


# ------------------------------------------------------------------------------- interruptions


@pytest.mark.parametrize("stop", range(1, ONCE + 1))
def test_an_interrupted_attempt_ends_with_the_same_numbers(run, stop):
    calls = Calls(seconds=2.0)
    whole = run(stubs.claim(measure=calls), calls, store="whole")
    first, second = Calls(stop, seconds=2.0), Calls(seconds=2.0)
    with pytest.raises(KeyboardInterrupt):
        run(stubs.claim(measure=first), first)
    record = run(stubs.claim(measure=second), second)
    assert record == whole  # the seconds too
    assert first.asked[:-1] + second.asked == calls.asked  # and nothing ran twice


def test_parts_serve_one_attempt_of_one_declaration_by_the_same_code(run):
    calls = Calls()
    claim = stubs.claim(measure=calls)
    lines = []
    run(claim, calls)
    for count, other in enumerate([{}, {"attempt": 2}, {"digest": "f" * 12}, {"code": "d"}]):
        run(claim, calls, lines.append, **other)
        assert len(calls.asked) == ONCE * (1 + count)
    assert [x for x in lines if "begins anew" in x] == [
        "1-full was made by other code or on another machine; it begins anew."
    ]
    assert lines[0].startswith("tuned meadow one: ")


# ------------------------------------------------------------------------------- budgets


def test_a_budget_that_was_overrun_is_said(run):
    for seconds, ok, said in (
        (7.0, True, "It took 56 s on 2 cores."),
        (8.0, False, "It took 64 s on 2 cores, more than the 60 s allowed."),
    ):
        calls = Calls(seconds=seconds)
        record = run(stubs.claim(measure=calls), calls, store=f"{seconds}")
        assert record["looks"][-1] == {"name": "budget", "ok": ok, "said": said}
        assert record["verdict"] == "holds"  # what was begun is finished
    calls = Calls(seconds=8.0)  # one core has twice the time
    record = run(stubs.claim(measure=calls), calls, store="one core", cores=1)
    assert record["looks"][-1]["said"] == "It took 64 s on 1 core."
    calls = Calls(seconds=8.0)
    record = run(stubs.claim(measure=calls), calls, budget="large")
    assert [x["name"] for x in record["looks"]] == ["power"]


def test_the_plan():
    claim = stubs.claim(minutes=3.0)
    old = {"event": "ended", "digest": "a", "budget": "full", "cores": 2, "verdict": "holds"}
    records = [old | {"seconds": 50.0}, old | {"seconds": 70.0}, {"event": "begun"}]
    records += [old | {"seconds": 1.0} | other for other in
                ({"verdict": "untestable"}, {"digest": "b"}, {"cores": 8}, {"budget": "large"})
                ]  # fmt: skip
    assert attempt.plan(claim, "a", records, "full", 2) == 70.0
    assert attempt.plan(claim, "c", records, "full", 2) == 180.0
    assert attempt.plan(claim, "a", records, "full", 1) == 360.0
    assert attempt.plan(claim, "a", [], "full", 16) == 180.0


def test_unequal_budgets_are_refused(run):
    def unequal(trial, keys, values):
        found = stubs.measure(trial, keys, values)
        return found | {"env_steps": found["env_steps"] + 40 * (trial.name == "other")}

    said = "In meadow 'other' took 640 environment steps; each side has 600."
    with pytest.raises(UserError, match=said):
        run(stubs.claim(measure=unequal))


def test_a_side_that_does_not_count_its_steps_among_others_that_do_is_refused(run):
    def silent(trial, keys, values):
        found = stubs.measure(trial, keys, values)
        return {k: v for k, v in found.items() if k != "env_steps" or trial.name == "one"}

    with pytest.raises(UserError, match="'other' took nan environment steps"):
        run(stubs.claim(measure=silent))


def test_steps_that_nobody_counts_are_said_to_be_uncounted(run):
    score = lambda found: {"score": found["score"]}
    record = run(stubs.claim(measure=Calls(change=score)))
    assert "Environment steps were not counted" in record["looks"][0]["said"]


# ------------------------------------------------------------------------------- what is measured


def test_what_is_not_finite_is_not_judged(run):
    def broken(trial, keys, values):
        found = stubs.measure(trial, keys, values)
        lost = (trial.name == "one") & (np.arange(len(keys)) == 1) & (len(keys) == 6)
        return found | {"score": np.where(lost, np.nan, found["score"])}

    record = run(stubs.claim(measure=broken))
    assert record["verdict"] == "inconclusive" and record["clauses"] == []
    assert record["why"] == "'one' has no finite score on 1 seed in meadow."
    assert record["values"]["meadow"]["one"]["score"][1] is None


def test_a_clause_is_about_what_is_measured(run):
    calls = Calls()
    clauses = (better("one", "other"), better("one", "other", metric="untraind"))
    with pytest.raises(UserError, match="'one' in meadow 'untraind'; did you mean 'untrained'"):
        run(stubs.claim(measure=calls, clauses=clauses), calls)
    assert len(calls.asked) == ONCE / 2  # no reported seed


def test_tiny(run):
    calls = Calls()
    record = run(stubs.claim(measure=calls), calls, budget="tiny")
    assert record["verdict"] == "inconclusive" and "only tests" in record["why"]
    assert [(side, environment, len(x)) for side, environment, x in calls.asked] == [
        (side, "meadow", 2) for side in ("one", "other", "one", "other")
    ]  # two points on a seed, then two seeds
    assert record["grids"]["one"] == {"rate": [0.01, 0.1]}


def test_large(run):
    calls = Calls()
    large = (Arena("meadow", stubs.STEPS, 0.0, 1.0), Arena("ocean", stubs.STEPS, 0.0, 1.0))
    record = run(stubs.claim(measure=calls, large=large), calls, budget="large")
    assert set(record["values"]) == {"meadow", "ocean"}
    with pytest.raises(UserError, match="is about 'meadow', which a large attempt does not run"):
        run(stubs.claim(measure=calls, large=large[1:]), calls, budget="large")


# ------------------------------------------------------------------------------- equalities


def test_an_exact_record(run):
    def errors(key):
        # Float64 is on, and a number of its own for each seed.
        x = jax.random.uniform(key, dtype=jnp.float64)
        return {"one": abs((x + 1e-12) - x), "none": 0.0}

    claim = stubs.exact(errors=errors, planted={"a sign": lambda key: {"one": 1.0, "none": 3.0}})
    record = run(claim, seeds=5)
    assert record["verdict"] == "holds"
    one = record["values"][""][""]["one"]
    assert len(set(one)) > 1 and min(one) > 5e-13 and max(one) < 2e-12
    assert record["values"][""][""]["none"] == [0.0] * 5
    assert record["planted"] == {"a sign": [3.0] * 5}
    assert record["clauses"] == [] and record["looks"][-1]["name"] == "budget"
    assert jnp.zeros(()).dtype == jnp.float32  # float64 is off again


def test_an_exact_claim_that_does_not_notice_what_is_planted(run):
    planted = {"a sign": lambda key: {"sum": 2.0}, "a term": lambda key: {"sum": 1e-5}}
    record = run(stubs.exact(planted=planted), seeds=5)
    assert (record["verdict"], record["why"]) == ("inconclusive", "Not seen: a term.")


def test_an_exact_claim_computes_in_float64(run):
    claim = stubs.exact(errors=lambda key: {"sum": jnp.float32(0.0)})
    with pytest.raises(UserError, match="'sum' is a float32; an exact claim computes in float64"):
        run(claim)


# ------------------------------------------------------------------------------- mutations

SCALE = 1.0


def broken(function):
    return lambda value: 0.0


def nobody_asks(function):
    return lambda *args: "nobody asks"


MECHANISM = Mutation("no mechanism", "tests.evidence.stubs:mechanism", broken)
NOBODY = Mutation("nobody_asks", "tests.evidence.test_attempt:nobody_asks", nobody_asks)


def test_mutations_of_a_claim(tmp_path):
    calls = Calls()
    claim = stubs.claim(measure=calls, mutations=(MECHANISM, NOBODY))
    ended = attempt.run(claim, stubs.BEGUN, 3, tmp_path, stubs.READERS)
    calls.asked.clear()
    seen, unseen = mutate(claim, ended, stubs.READERS)
    assert seen["seen"] and not unseen["seen"]
    assert seen["said"] == (
        "The verdict notices 'no mechanism': on 6 seeds it changes from 'holds' to 'does not hold'."
    )
    assert unseen["said"] == (
        "The verdict does not notice 'nobody_asks': on 6 seeds it is 'holds' with it and without."
    )
    assert stubs.mechanism(2.0) == 2.0
    # Only the side that is broken runs, in both environments, and nothing is tuned.
    assert [(name, len(x)) for name, _, x in calls.asked] == [("one", 6)] * 4


def test_a_mutation_may_be_of_another_side(tmp_path):
    calls = Calls()
    other = dataclasses.replace(MECHANISM, side="other")
    claim = stubs.claim(measure=calls, mutations=(other,))
    ended = attempt.run(claim, stubs.BEGUN, 3, tmp_path, stubs.READERS)
    calls.asked.clear()
    (found,) = mutate(claim, ended, stubs.READERS)
    assert found["side"] == "other" and {name for name, _, _ in calls.asked} == {"other"}
    missing = dataclasses.replace(MECHANISM, side="third")
    with pytest.raises(UserError, match="side of the mutation 'no mechanism' 'third'"):
        mutate(stubs.claim(mutations=(missing,)), ended, stubs.READERS)


def test_a_mutation_takes_as_many_seeds_as_the_verdict_does(tmp_path):
    claim = stubs.claim(mutations=(MECHANISM,))
    ended = attempt.run(claim, stubs.BEGUN | {"seeds": 20}, 3, tmp_path, stubs.READERS)
    (found,) = mutate(claim, ended, stubs.READERS)
    assert found["seeds"] == 8 and ended["seeds"] == 9  # the first group decided
    # The verdict that the record has takes more seeds where the first ones are others.
    for here in ended["values"].values():
        for side in here.values():
            side["score"] = side["score"] * 2
        here["one"]["score"][:8] = [-5.0] * 8
    ended["seeds"] = 18
    (found,) = mutate(claim, ended, stubs.READERS)
    assert found["seeds"] in (16, 18)


def test_an_attempt_ends_with_the_first_group_that_decides(run):
    calls = Calls()
    claim = stubs.claim(measure=calls, seeds=40)
    assert attempt.groups_of(claim, 40) == [10, 20, 30, 40]  # tuning has 9 runs
    assert attempt.groups_of(claim, 6) == [6]
    assert attempt.groups_of(claim, 25) == [9, 18, 25]
    levels = []

    def judge(claim, clauses, environments, values, level, hours):
        seeds = len(values["wood"]["one"]["score"])
        levels.append((seeds, round(level, 6)))
        verdict = "holds" if seeds >= 20 else "inconclusive"
        return SimpleNamespace(verdict=verdict, why=f"{seeds} seeds.", clauses=())

    readers = dataclasses.replace(stubs.READERS, judge=judge)
    found = run(claim, calls, readers=readers, seeds=40)
    assert levels == [(10, 0.9875), (20, 0.9875)]  # the error is spread over four looks
    assert (found["seeds"], found["groups"], found["why"]) == (20, 4, "20 seeds.")
    assert len(set(found["values"]["meadow"]["one"]["score"])) == 20
    reported = [len(x) for _, _, x in calls.asked[4:]]
    assert reported == [10] * 4 * 2


def test_mutations_of_an_equality(tmp_path):
    claim = stubs.exact(mutations=(MECHANISM, NOBODY))
    ended = attempt.run(claim, stubs.BEGUN, 3, tmp_path, stubs.READERS)
    seen, unseen = mutate(claim, ended, stubs.READERS)
    assert (seen["before"], seen["after"]) == ("holds", "does not hold")
    assert (unseen["seen"], unseen["after"]) == (False, "holds")


@jax.jit
def compile_it(x):
    return stubs.mechanism(x)


@functools.cache
def build_it():
    return stubs.mechanism(1.0)


def test_what_was_compiled_or_built_before_is_not_used_nor_what_was_meanwhile():
    from tests.evidence.stubs import mechanism

    for _ in range(2):
        assert (compile_it(1.0), build_it(), mechanism(1.0)) == (1.0, 1.0, 1.0)
        with pytest.raises(ZeroDivisionError), apply(MECHANISM):
            assert (compile_it(1.0), build_it(), stubs.mechanism(1.0)) == (0.0, 0.0, 0.0)
            raise ZeroDivisionError


def test_algorithms_are_built_anew():
    env = envs.make("cartpole")
    before = dqn(env)
    with apply(NOBODY):
        meanwhile = dqn(env)
        assert meanwhile is not before
    assert dqn(env) is not meanwhile


held = stubs.mechanism  # as `from module import name` would


class Holder:
    @staticmethod
    def method(x):
        return x


@dataclasses.dataclass(frozen=True)
class Frozen:
    function: object


FROZEN = Frozen(stubs.mechanism)


def test_where_a_mutation_reaches():
    here = "tests.evidence.test_attempt"
    with apply(MECHANISM):
        assert held(1.0) == 0.0  # every module that holds it
        assert FROZEN.function(1.0) == 1.0  # but no object
    with apply(Mutation("a", f"{here}:FROZEN.function", broken)):
        assert FROZEN.function(1.0) == 0.0 and held(1.0) == 1.0
    with apply(Mutation("a", f"{here}:Holder.method", lambda method: staticmethod(lambda x: 5))):
        assert Holder.method(1) == 5 == Holder().method(1)
    with apply(Mutation("a", f"{here}:SCALE", lambda scale: 2 * scale)):
        assert SCALE == 2.0 and stubs.STEPS == 600
    assert (held(1.0), FROZEN.function(1.0), Holder().method(1), SCALE) == (1.0, 1.0, 1, 1.0)


@pytest.mark.parametrize("where", ["tests.evidence.stubs:mechanisn", "tests.nowhere:a", "json:a.b"])
def test_a_mutation_of_nothing_is_refused(where):
    refused = pytest.raises(UserError, match=f"'a' is of '{where}', which does not exist")
    with refused, apply(Mutation("a", where, broken)):
        pass
