"""Tests of what the benches of speed and learning say of their records."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from experiments.bench import report

BENCH = Path(report.__file__).parent


def record(algorithm, variant, returns):
    return {
        "task": "curve",
        "algorithm": algorithm,
        "variant": variant,
        "result": {"returns": returns},
    }


def cells(table):
    """First column and heading of the row -> the other cells."""
    rows = [[x.strip() for x in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {(name, what): rest for name, what, *rest in rows}


def test_learning_beside_a_peer():
    records = [
        record("dqn", report.OURS, [[0, 4, 5], [0, 2, 3], [0, 0, 4]]),
        record("dqn", report.PEER, [[0, 1, 2], [0, 1, 1], [0, 1, 3]]),
        record("sac", report.OURS, [[0, 1], [0, 2]]),  # its peer failed
        {"task": "curve", "algorithm": "sac", "variant": report.PEER, "result": {"failure": "x"}},
        record("ppo", report.OURS, [[0, 1]]),  # one seed has no interval
        record("ppo", report.PEER, [[0, 1]]),
        {"task": "speed", "algorithm": "dqn", "variant": report.OURS, "result": {}},
    ]
    found = cells(report.learning(records, "algorithm"))
    assert list(found) == [("dqn", "end"), ("dqn", "mean of curve")]
    ours, theirs, above = found["dqn", "end"]
    # Student's ends, 4 - 2.48 and 4 + 2.48, lie outside of the three seeds.
    assert ours == "4 [3, 5]" and theirs == "2 [1, 3]"
    assert above.startswith("0.944 [")  # 8 of 9 pairs, and one tie
    assert found["dqn", "mean of curve"][0].startswith("2 [")  # of 3, 5/3 and 4/3


def test_there_is_nothing_to_say_of_one_side():
    assert (
        report.learning([record("dqn", report.OURS, [[0, 1], [0, 2]])], "algorithm") == "No pairs."
    )


@pytest.mark.parametrize(
    "name",
    [
        "peer-environments",
        "peer-environments-small",
        "peer-environments-longer",
        "algorithms-curves",
        "algorithms-curves-pqn",
    ],
)
def test_the_learning_in_the_readme_is_what_was_recorded(name):
    found = json.loads((BENCH / "results" / f"cpu-2-cores-{name}.json").read_text())
    assert report.learning(found["records"], "algorithm") in (BENCH / "README.md").read_text()


def test_the_speed_on_the_host_is_what_was_recorded():
    found = json.loads((BENCH / "results" / "cpu-2-cores-host.json").read_text())["records"]
    assert report.host(found) in (BENCH / "README.md").read_text()
    readme, speed = (
        (BENCH.parents[1] / name).read_text() for name in ("README.md", "docs/speed.md")
    )
    for algorithm in ("ppo", "sac"):
        rates = lambda side, name=algorithm: report.values(
            found, "steps_per_s", algorithm=name, variant=side
        )
        sbx, sb3 = (
            report.ratios(rates(report.OURS), rates(side)) for side in ("sbx", "stable_baselines3")
        )
        assert report.ratio(sbx) in speed and report.ratio(sb3) in speed
        rounded = [f"{statistics.median(x):.1f} times" for x in (sbx, sb3)]
        assert f"{rounded[0]} sbx, {rounded[1]} Stable-Baselines3" in readme


def test_the_speed_of_tokens_is_what_was_recorded():
    found = json.loads((BENCH / "results" / "cpu-2-cores-tokens.json").read_text())["records"]
    assert report.tokens(found) in (BENCH / "README.md").read_text()
    speed = (BENCH.parents[1] / "docs/speed.md").read_text()
    for case in dict.fromkeys(record["case"] for record in found):
        row = [
            report.ratio(report.against(found, name, side, case=case))
            for name in ("rollout_tokens_per_s", "update_tokens_per_s", "tokens_per_s")
            for side in ("floor", "trl")
        ]
        assert f"| {' | '.join(row)} |" in speed


def test_steps_per_second_on_the_host_are_divided_within_a_round():
    def record_of(side, turn, rate):
        result = {"steps_per_s": rate} if rate else {"failure": "crashed"}
        return {"algorithm": "sac", "variant": side, "round": turn, "result": result}

    records = [
        *(record_of(report.OURS, turn, rate) for turn, rate in enumerate([300.0, 100.0, 90.0])),
        *(record_of("sbx", turn, rate) for turn, rate in enumerate([100.0, 50.0, None])),
    ]
    found = cells(report.host(records))
    assert found["sac", report.OURS] == ["100 (90-300)", "2.50 [2.00, 3.00]"]
    assert found["sac", "sbx"] == ["75 (50-100)", "-"]


def test_rates_of_tokens_are_divided_within_a_round():
    def record_of(side, turn, rate):
        result = {"rollout_tokens_per_s": rate} if rate else {"failure": "crashed"}
        return {"case": "small", "variant": side, "round": turn, "result": result}

    records = [
        *(record_of(report.OURS, turn, rate) for turn, rate in enumerate([300.0, 100.0, 90.0])),
        *(record_of("floor", turn, rate) for turn, rate in enumerate([600.0, 400.0, 90.0])),
        *(record_of("trl", turn, rate) for turn, rate in enumerate([100.0, 50.0, None])),
    ]
    found = cells(report.tokens(records))["small", "rollout, tokens/s"]
    assert found[:3] == ["100 (90-300)", "400 (90-600)", "75 (50-100)"]
    assert found[3:] == ["0.50 [0.25, 1.00]", "2.50 [2.00, 3.00]"]


def test_an_exponent_is_the_slope_of_the_larger_half():
    sizes = [1, 10, 100, 1000]
    assert report.exponent(sizes, [5, 5, 3 * 100**1.5, 3 * 1000**1.5]) == pytest.approx(1.5)
    assert math.isnan(report.exponent([4], [1.0]))


def test_sizes_and_their_exponents_are_in_one_table():
    result = {"steps_per_s": 1e6, "peak_mib": 200.0, "compile_s": 1.0}
    records = [
        {"axis": "seeds", "size": size, "result": result | {"update_s": float(size**2)}}
        for size in (1, 4, 16, 64)
    ] + [{"axis": "seeds", "size": 256, "result": {"failure": "no memory"}}]
    lines = report.scale(records).splitlines()
    assert len(lines) == 2 + 4 + 1 and "time^2.00" in lines[-1] and "^0.00" in lines[-1]
    assert report.exponents(records)["seeds"]["peak_mib"] == pytest.approx(0.0)


def test_learning_from_a_dataset_is_what_was_recorded():
    found = json.loads((BENCH / "results" / "cpu-2-cores-offline.json").read_text())["records"]
    rows = {"gradient_steps_per_s": "gradient steps/s", "final_return": "final return"}
    text = report.offline(found, rows)
    assert text in (BENCH / "README.md").read_text()
    assert not any(report.has_failed(record) for record in found)
