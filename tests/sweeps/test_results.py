"""Ranking of a sweep's points: grouped by seeds, with intervals, and loaded by name."""

import csv
import json

import numpy as np
import pytest

from jaxrl import runtime
from jaxrl.core.errors import UserError
from jaxrl.evaluation.statistics import score_interval
from jaxrl.runtime.members import RANKING, Members
from jaxrl.sweeps import results
from jaxrl.sweeps.parts import Part

POINTS = [{"rate": 0.1}, {"rate": 0.2}, {"rate": 0.3}, {"rate": 0.4}]
SEEDS = 6
SCORES = {
    0: [480.0, 500, 500, 470, 490, 460],
    1: [500.0, 500, 500, 500, 480, 500],  # the best
    2: [100.0, 120, 90, 130, 110, 105],
    3: [500.0, 500, 500, 500, 500, np.nan],  # a seed diverged
}


def make_sweep(folder, scores, seeds=SEEDS):
    """Write summaries of two runs, between which point 1's seeds are cut, and return the parts."""
    members = [(point, seed) for point in scores for seed in range(seeds)]
    cut, parts = len(members) // 2 - 2, []
    for name, own in (("program1-chunk1", members[:cut]), ("program1-chunk2", members[cut:])):
        labels = [{"seed": seed, "rate": POINTS[point]["rate"]} for point, seed in own]
        parts.append(Part(name, [point for point, _ in own], Members(labels)))
        found = [scores[point][seed] for point, seed in own]
        diverged = {str(i): 1 for i, x in enumerate(found) if np.isnan(x)}  # the update
        (folder / name).mkdir(parents=True)
        summary = {"finished": True, "diverged": diverged, "returns": np.nan_to_num(found).tolist()}
        (folder / name / "summary.json").write_text(json.dumps(summary))
    return parts


def test_seeds_of_a_point_are_one_row_with_mean_interval_and_number(tmp_path):
    ranked = results.ranking(tmp_path, POINTS, make_sweep(tmp_path, SCORES))
    assert [x.point for x in ranked] == [1, 0, 2, 3]
    assert [x.name for x in ranked[:2]] == ["rate 0.2", "rate 0.1"]
    assert [x.seeds for x in ranked] == [SEEDS] * 4
    for x in ranked[:3]:
        assert x.interval == score_interval(SCORES[x.point])
        assert x.interval.high <= 500
    assert [x.is_level for x in ranked] == [True, True, False, None]
    assert ranked[0].places == [f"program1-chunk1/{i}" for i in range(6, 10)] + [
        "program1-chunk2/0",
        "program1-chunk2/1",
    ]


def test_the_table_marks_points_that_may_be_as_good_as_the_best(tmp_path):
    ranked = results.ranking(tmp_path, POINTS, make_sweep(tmp_path, SCORES))
    head, best, level, worse, diverged, mark = results.ranking_table(ranked)
    assert head.split() == ["point", "final", "return", "95", "%", "interval", "seeds"]
    assert best.split()[:3] == ["rate", "0.2", "496.67"] and best.split()[-3:] == ["to", "500", "6"]
    assert level.startswith("=  rate 0.1") and not worse.startswith("=")
    assert "diverged" in diverged and mark.startswith("= Its interval overlaps the best one's")
    assert len({line.index("to") for line in (best, level, worse)}) <= 2
    few = results.ranking(tmp_path / "few", POINTS, make_sweep(tmp_path / "few", SCORES, 2))
    assert "50 % interval" in results.ranking_table(few)[0]
    one = results.ranking(tmp_path / "one", POINTS, make_sweep(tmp_path / "one", SCORES, 1))
    table = results.ranking_table(one)
    assert "%" not in table[0] and table[-1].startswith("One seed has no interval")
    assert not any(line.startswith("=") for line in table)


def test_points_that_were_left_behind_show_where(tmp_path):
    parts = make_sweep(tmp_path, {0: SCORES[0], 1: SCORES[1]})
    further = Part("program1", [0] * SEEDS, Members([{"seed": i} for i in range(SEEDS)]), segment=1)
    for part, steps, returns in ((parts[0], 100, None), (parts[1], 100, None), (further, 200, 450)):
        path = tmp_path / part.name / "summary.json"
        path.parent.mkdir(exist_ok=True)
        found = json.loads(path.read_text()) if returns is None else {"returns": [450.0] * SEEDS}
        path.write_text(json.dumps({"finished": True, "diverged": {}} | found | {"steps": steps}))
    ranked = results.ranking(tmp_path, POINTS, [*parts, further])
    # The point that went on is first, though its return is the lower one.
    assert [(x.point, x.steps, x.is_level) for x in ranked] == [(0, 200, True), (1, 100, None)]
    head, best, behind, said = results.ranking_table(ranked)
    assert head.split()[-2:] == ["seeds", "steps"] and best.endswith("200")
    assert behind.endswith("100") and "were left behind" in said and not behind.startswith("=")
    results.write_ranking(tmp_path / RANKING, ranked)
    with open(tmp_path / RANKING) as file:
        rows = list(csv.DictReader(file))
    assert [row["steps"] for row in rows] == ["200", "100"]
    assert rows[0]["members"].split()[0] == "program1-segment2/0"


def test_the_ranking_is_a_file(tmp_path):
    results.write_ranking(
        tmp_path / RANKING, results.ranking(tmp_path, POINTS, make_sweep(tmp_path, SCORES))
    )
    with open(tmp_path / RANKING) as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["rate 0.2", "rate 0.1", "rate 0.3", "rate 0.4"]
    assert [row["level_with_best"] for row in rows] == ["true", "true", "false", ""]
    assert float(rows[0]["mean"]) == pytest.approx(np.mean(SCORES[1]))
    assert rows[3]["mean"] == rows[3]["low"] == ""
    assert rows[2]["members"].split()[0] == "program1-chunk2/2"


def test_a_sweep_is_not_loaded_without_a_choice(tmp_path, finished_run):
    with pytest.raises(UserError, match=r"is no sweep, so it has no point 'best'; give a member"):
        runtime.load(finished_run, point="best")
    assert runtime.load(finished_run).step == runtime.load(finished_run, 0).step
