"""The checks of systems: the rule of the verdict, the runner, the table, every check when tiny."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.kit.groups import Normalization

ROOT = Path(__file__).resolve().parents[2]


def _load():
    path = ROOT / "experiments" / "systems" / "run.py"
    spec = importlib.util.spec_from_file_location("systems_run", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)  # it also makes `experiments` importable
    return module


run = _load()

from experiments.systems import check as checks  # noqa: E402
from experiments.systems import compare  # noqa: E402

FULL = checks.Budget("full")
SYSTEMS = run.discover()


# ------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("differences", "margin", "expected"),
    [
        ([1.0, 1.1, 0.9, 1.0, 1.05], 0.0, "holds"),
        ([1.0, 1.1, 0.9, 1.0, 1.05], 2.0, "does not hold"),
        ([1.0, 1.1, 0.9, 1.0, 1.05], 1.0, "inconclusive"),  # the interval contains the margin
        ([-1.0, -1.1, -0.9, -1.0, -1.05], 0.0, "does not hold"),
        ([5.0, -4.0, 3.0, -2.0, 1.0], 0.0, "inconclusive"),
        ([1.0, 1.1, 0.9, 1.0], 0.0, "inconclusive"),  # four seeds
        ([0.0] * 5, 0.0, "does not hold"),  # no better, and no spread
        ([0.0] * 5, -0.1, "holds"),  # not worse by more than 0.1
    ],
)
def test_verdict(differences, margin, expected):
    assert checks.verdict(differences, margin) == expected


def test_verdict_uses_students_interval():
    # mean 1, standard deviation 1, five seeds: the half width is 2.7764 / sqrt(5) = 1.2417.
    x = np.array([-1.0, -1.0, 0.0, 1.0, 1.0])
    x = 1 + x / x.std(ddof=1)
    assert checks.verdict(x, 1 - 1.2417 - 0.001) == "holds"
    assert checks.verdict(x, 1 - 1.2417 + 0.001) == "inconclusive"
    assert checks.verdict(x, 1 + 1.2417 - 0.001) == "inconclusive"
    assert checks.verdict(x, 1 + 1.2417 + 0.001) == "does not hold"


def test_verdict_refuses_what_is_not_finite():
    with pytest.raises(UserError, match="finite"):
        checks.verdict([1.0, 1.0, 1.0, 1.0, float("nan")])


def test_what_holds_without_its_mechanism_is_inconclusive():
    costs, nothing = [1.0, 1.1, 0.9, 1.0, 1.0], [0.1, -0.1, 0.2, -0.2, 0.0]
    assert checks.because_of("holds", costs) == "holds"
    assert checks.because_of("holds", nothing) == "inconclusive"
    assert checks.because_of("does not hold", nothing) == "does not hold"


def test_agreement():
    apart, same = [0.1] * 5, [1e-8] * 5
    assert checks.agreement(same, 1e-6, apart, 1e-3) == "holds"
    assert checks.agreement(same, 1e-6, [*apart[:4], 1e-8], 1e-3) == "inconclusive"
    assert checks.agreement(same[:4], 1e-6, apart[:4], 1e-3) == "inconclusive"
    assert checks.agreement([*same[:4], 2e-6], 1e-6, apart, 1e-3) == "does not hold"
    assert checks.agreement([*same[:4], float("nan")], 1e-6, apart, 1e-3) == "does not hold"


def _check(measured, baseline, ablation=None, margin=0.0):
    figures = [checks.figure(n, x) for n, x in [("new", measured), ("old", baseline)]]
    off = None if ablation is None else checks.figure("off", ablation)
    return checks.compare("It is better.", "score", *figures, FULL, margin, off)


def test_figures_that_are_rates_have_intervals_between_0_and_1():
    values = [0.02, 0.01, 0.6, 0.03, 0.05]
    plain, rate = checks.figure("x", values), checks.figure("x", values, rate=True)
    assert plain.low < 0 == rate.low and plain.high == rate.high
    assert rate.value == plain.value and rate.per_seed == plain.per_seed


def test_compare_pairs_seeds():
    seeds = np.array([0.0, 10.0, 20.0, 30.0, 40.0])
    better = seeds + np.array([1.0, 1.1, 0.9, 1.0, 1.0])  # far less than what seeds differ by
    result = _check(better, seeds, ablation=seeds)
    assert (result.verdict, result.holds, result.seeds) == ("holds", True, 5)
    np.testing.assert_allclose(result.difference.per_seed, better - seeds)
    assert 0.9 < result.difference.low < result.difference.value == pytest.approx(1.0)
    assert _check(better, seeds, ablation=better).verdict == "inconclusive"
    assert _check(seeds, better).holds is False
    with pytest.raises(UserError, match="same seeds"):
        _check(better, seeds[:4])


def test_data_of_a_check_is_strict_json():
    one_seed = checks.as_data(_check([1.0], [0.0]))
    assert one_seed["measured"]["low"] is None  # an infinite interval
    assert json.loads(json.dumps(one_seed, allow_nan=False))["seeds"] == 1
    assert (one_seed["verdict"], one_seed["holds"]) == ("inconclusive", None)


def test_budget():
    assert checks.Budget("tiny").choose(1, 2, 3) == 1
    assert checks.Budget("large").choose(1, 2, 3) == 3
    assert checks.Budget("large").choose(1, 2) == 2
    assert checks.Budget("full", 7).num_seeds(1, 20) == 7
    with pytest.raises(UserError, match="did you mean 'full'"):
        checks.Budget("ful")
    with pytest.raises(UserError, match="at least 1"):
        checks.Budget("full", 0)


# ------------------------------------------------------------------------------- comparing


def test_tune_takes_the_best_mean():
    def score(keys, hyper):
        noise = jax.vmap(lambda key: 0.01 * jax.random.uniform(key))(keys)
        return noise - (hyper["rate"] - 3.0) ** 2

    assert compare.tune(score, random.key(0), "rate", (1.0, 2.0, 3.0, 4.0), seeds=3) == 3.0


def test_curves_refuse_unequal_budgets():
    from jaxrl import envs
    from jaxrl.systems.policy_gradient.a2c import a2c

    env = envs.make("cartpole")
    keys = jax.random.split(random.key(0), 2)
    with pytest.raises(UserError, match="no multiple of the 80"):
        compare.curves(env, a2c(env), keys, env_steps=1000, points=1)


def test_world_configures_what_a_config_has():
    from jaxrl.systems.policy_gradient.reinforce import reinforce

    config = compare.PENDULUM.configure(reinforce.Config())  # it normalizes no rewards
    seen = Normalization(observation=True)
    assert config == reinforce.Config(discount=0.9, normalization=seen)
    np.testing.assert_allclose(compare.PENDULUM.score(np.array([-1250.0, -150.0])), [0, 1])


# ------------------------------------------------------------------------------- the runner

FILE = """
PAPER = {"title": "On | bars", "authors": "A. Author", "year": 2020, "arxiv": "2001.00001"}
CLAIM = "It is better."
PARTS = ("jaxrl/core/learn.py",)


def check(key, budget):
    raise AssertionError("listing runs nothing")
"""


@pytest.fixture
def folder(tmp_path):
    for track, name in [("first_track", "one_two"), ("other", "three")]:
        (tmp_path / track).mkdir()
        (tmp_path / track / f"{name}.py").write_text(FILE)
    (tmp_path / "run.py").write_text("not a check")
    return tmp_path


def test_discover(folder):
    systems = run.discover(folder)
    assert [(s.id, s.track) for s in systems.values()] == [
        ("one-two", "first-track"),
        ("three", "other"),
    ]
    assert systems["three"].paper["arxiv"] == "2001.00001"
    (folder / "other" / "one_two.py").write_text(FILE)
    with pytest.raises(UserError, match="twice"):
        run.discover(folder)
    (folder / "other" / "one_two.py").write_text("PAPER = {}\nPARTS = ()\n")
    with pytest.raises(UserError, match=r"other/one_two.py has no CLAIM"):
        run.discover(folder)


def test_the_three_first_checks_are_found():
    assert {"ppo", "a2c-is-ppo", "policy-gradient-guide"} <= set(SYSTEMS)


def test_choose(folder):
    systems = run.discover(folder)
    assert [s.id for s in run.choose(systems, [], None)] == ["one-two", "three"]
    assert [s.id for s in run.choose(systems, ["three", "three"], None)] == ["three"]
    assert [s.id for s in run.choose(systems, [], "first-track")] == ["one-two"]
    with pytest.raises(UserError, match="did you mean 'three'"):
        run.choose(systems, ["tree"], None)
    with pytest.raises(UserError, match="did you mean 'other'"):
        run.choose(systems, [], "others")


def test_command_line():
    assert run.parse(["--again", "ppo", "--seeds", "3", "a2c"]) == (
        ["ppo", "a2c"],
        {"again": "", "seeds": "3"},
    )
    with pytest.raises(UserError, match="did you mean '--seeds'"):
        run.parse(["--seed", "3"])
    with pytest.raises(UserError, match="--track needs a value"):
        run.parse(["--track"])
    with pytest.raises(UserError, match="not 'many'"):
        run.main(["--seeds", "many"])


def test_an_unknown_id_is_one_sentence_and_code_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "pqo"])
    with pytest.raises(SystemExit) as stopped:
        run.command_line.run(run.main)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: Unknown system 'pqo'; did you mean 'ppo'?\n"


def _record(system, commit="abc", budget="full", **changes):
    data = checks.as_data(_check([1.0, 1.1, 0.9, 1.0, 1.0], [0.0] * 5, [0.5] * 5))
    data |= {"id": system, "commit": commit, "budget": budget, "seconds": 1.0}
    return data | changes


def test_run_all_records_skips_and_goes_on(folder, monkeypatch, tmp_path, capsys):
    results, ran = tmp_path / "results.jsonl", []

    def run_one(system, budget):
        ran.append(system.id)
        if system.id == "one-two":
            raise RuntimeError("it broke")
        return _record(system.id, budget=budget.name)

    monkeypatch.setattr(run, "run_one", run_one)
    monkeypatch.setattr(run, "current_commit", lambda: "abc")
    chosen = list(run.discover(folder).values())
    assert run.run_all(chosen, FULL, again=False, results=results) == 1
    assert ran == ["one-two", "three"]  # the second ran although the first raised
    output = capsys.readouterr()
    assert "it broke" in output.err and "1 of 2 raised: one-two" in output.err
    assert [r["id"] for r in run.read_results(results)] == ["three"]
    assert run.run_all(chosen[1:], FULL, again=False, results=results) == 0
    assert len(run.read_results(results)) == 1  # skipped
    assert run.run_all(chosen[1:], FULL, again=True, results=results) == 0
    assert len(run.read_results(results)) == 2  # the first attempt stays
    run.run_all(chosen[1:], checks.Budget("tiny"), again=True, results=results)
    assert len(run.read_results(results)) == 2  # tiny budgets are not recorded
    monkeypatch.setattr(run, "current_commit", lambda: "def")
    run.run_all(chosen[1:], FULL, again=False, results=results)
    assert len(run.read_results(results)) == 3  # another commit


def test_is_recorded(folder):
    system = run.discover(folder)["three"]
    known = [_record("three"), _record("three", "abc-dirty")]
    recorded = lambda commit, budget: run.is_recorded(known, system, commit, budget)
    assert recorded("abc", FULL)
    assert recorded("abc", checks.Budget("full", 5))
    assert not recorded("abc", checks.Budget("full", 6))
    assert not recorded("abc", checks.Budget("large"))
    assert not recorded("abc-dirty", FULL)  # its changes may be others by now


def test_run_one_gives_a_complete_line(monkeypatch):
    module = run.importlib.import_module("experiments.systems.policy_gradient.ppo")
    monkeypatch.setattr(module, "check", lambda key, budget: _check([1.0] * 5, [0.0] * 5))
    record = json.loads(json.dumps(run.run_one(SYSTEMS["ppo"], FULL), allow_nan=False))
    wanted = "id track verdict holds claim metric measured baseline difference margin ablation"
    wanted += " ablation_loss details notes seeds budget date commit device generator seconds"
    assert set(record) == set(wanted.split())
    assert (record["id"], record["verdict"], record["holds"]) == ("ppo", "holds", True)
    assert record["measured"]["per_seed"] == [1.0] * 5


# ------------------------------------------------------------------------------- the table


def test_table(folder):
    systems = run.discover(folder).values()
    parts = [checks.as_data(_check([2.0] * 5, [0.0] * 5))["measured"] | {"name": "part"}]
    latest = _record("three", details=parts)
    results = [_record("three", verdict="does not hold"), latest, _record("gone")]
    lines = run.table(systems, results).splitlines()
    row = {name: next(x for x in lines if x.startswith(f"| [{name}]")) for name in
           ("one-two", "three")}  # fmt: skip
    assert row["one-two"].endswith("| not run |")
    assert row["three"].endswith("| **holds** (2 attempts) |")
    assert "new 1 [0.912, 1.09]" in row["three"] and "*off:* off 0.5" in row["three"]
    assert "<summary>in detail</summary>part 2 [2, 2]</details>" in row["three"]
    assert "On \\| bars" in row["three"] and "arxiv.org/abs/2001.00001" in row["three"]
    assert "1 holds, 0 does not hold, 0 inconclusive, 1 not run." in lines


def test_the_committed_table_is_that_of_the_committed_results():
    assert run.TABLE.read_text() == run.table(SYSTEMS.values(), run.read_results())


def test_recorded_results_are_whole():
    for record in run.read_results():
        assert record["verdict"] in ("holds", "does not hold", "inconclusive")
        assert record["budget"] in ("full", "large"), record["id"]
        for key in ("measured", "baseline"):
            figure = record[key]
            assert len(figure["per_seed"]) == record["seeds"]
            assert figure["value"] == pytest.approx(np.mean(figure["per_seed"]))
        if record["difference"]:  # the verdict is the rule's, not a wish
            verdict = checks.verdict(record["difference"]["per_seed"], record["margin"])
            if record["ablation_loss"]:
                verdict = checks.because_of(verdict, record["ablation_loss"]["per_seed"])
            assert record["verdict"] == verdict


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_parts_exist(system):
    assert system.parts
    for part in system.parts:
        assert (ROOT / part).exists(), part


# ------------------------------------------------------------------------------- every check


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_a_tiny_budget_gives_finite_figures(system, no_training):
    record = run.run_one(system, checks.Budget("tiny"))
    assert record["claim"] == system.claim
    assert record["verdict"] in ("holds", "does not hold", "inconclusive")
    for figure in filter(
        None, [*(record[k] for k in ("measured", "baseline", "ablation")), *record["details"]]
    ):
        assert len(figure["per_seed"]) == record["seeds"] > 0
        assert np.isfinite(figure["per_seed"]).all(), figure["name"]
