"""`jaxrl evaluate` on a finished run."""

import csv
import itertools
import json
import re
import shutil

import numpy as np
import pytest
import scipy.stats
from PIL import Image, ImageSequence

from jaxrl.commands import command_line
from jaxrl.commands import evaluate as script
from jaxrl.evaluation.evaluate import Episodes
from jaxrl.runtime.members import SWEEP, Members


def evaluate(run, out, *words):
    argv = [
        str(run),
        "--out",
        str(out),
        *words,
        *([] if any("--episodes" in w for w in words) else ["--episodes", "5"]),
    ]
    assert command_line.call(script.main, argv) == 0
    return json.loads((out / "evaluation.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_both_ways_of_acting_with_intervals_and_a_gif(finished_run, tmp_path, capsys):
    before = sorted(finished_run.rglob("*"))
    result = evaluate(finished_run, tmp_path / "new" / "folder")
    assert sorted(finished_run.rglob("*")) == before  # everything is in --out
    for how in ("greedy", "stochastic"):
        found = result[how]["return"]
        low, high = found["interval"]
        assert low <= found["mean"] <= high
        assert found == result[how]["length"]  # a reward of 1 per step
        assert result[how]["finished"]["mean"] == 1.0
    assert result["step"] == 20 and result["episodes"] == 5 and result["env"] == "cartpole"
    shown = capsys.readouterr().out
    assert "greedy return" in shown and "stochastic return" in shown and "95 % interval" in shown
    with Image.open(tmp_path / "new" / "folder" / "episode.gif") as gif:
        assert gif.n_frames > 5 and np.asarray(gif.convert("RGB")).std() > 0
        durations = [frame.info["duration"] for frame in ImageSequence.Iterator(gif)]
        assert min(durations) == 20  # ms, CartPole's time step; equal frames are joined


def test_the_same_seed_gives_the_same_numbers(finished_run, tmp_path):
    first = evaluate(finished_run, tmp_path / "a", "--video", "none")
    assert first == evaluate(finished_run, tmp_path / "b", "--video", "none")
    other = evaluate(finished_run, tmp_path / "c", "--video", "none", "--seed", "1")
    assert first["stochastic"] != other["stochastic"]
    assert not (tmp_path / "a" / "episode.gif").exists()


@pytest.mark.slow
def test_several_seeds_are_what_the_interval_is_over(finished_pair, tmp_path, capsys):
    result = evaluate(finished_pair, tmp_path, "--video", "png", "--member", "1")
    assert result["greedy"]["return"]["seeds"] == 2
    shown = capsys.readouterr()
    assert "intervals over 2 seeds" in shown.out
    spread = r"greedy return \S+ \(\S+ to \S+\) · stochastic return \S+"
    assert re.search(rf"20 of 20 episodes · \S+ episodes/s · {spread} · 0 s left", shown.err)
    with (tmp_path / "evaluation_episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ["member", "seed", "acting", "episode", "return", "length", "finished"]
    assert list(rows[0]) == names
    whose = [(x["acting"], x["member"], x["seed"], x["episode"]) for x in rows]
    ways = ("greedy", "stochastic")
    assert whose == [
        (how, str(i), str(i), str(n)) for how in ways for i in (0, 1) for n in range(5)
    ]
    for how in ways:
        for name in ("return", "length"):
            values = [float(x[name]) for x in rows if x["acting"] == how]
            assert np.mean(values) == pytest.approx(result[how][name]["mean"])
    assert {x["finished"] for x in rows} == {"True"}
    with Image.open(tmp_path / "episode.png") as picture:
        assert picture.format == "PNG"


def test_of_several_agents_it_says_whose_the_return_is(finished_run, tmp_path, capsys, monkeypatch):
    """Nothing is played: the two returns of a game, and a metric of its environment, are given."""
    returns = np.asarray([[1.0, -1.0], [1.0, -1.0], [-2.0, 2.0]])
    ended = np.ones(3, bool)
    played = Episodes(returns, 2 * ended, ended, {"returned": 0.5 * ended})  # type: ignore
    monkeypatch.setattr("jaxrl.evaluation.evaluate.evaluate", lambda *_: played)
    result = evaluate(finished_run, tmp_path, "--episodes", "3", "--video", "none")
    assert result["greedy"].keys() == {"return_0", "return_1", "length", "finished", "returned"}
    shown = capsys.readouterr()
    for said in ("return of agent 0          0 ", "return of agent 1          0 ", "returned  "):
        assert f"    greedy {said}" in shown.out and f"stochastic {said}" in shown.out
    assert "stochastic return of agent 0 0 ·" in shown.err
    head = (tmp_path / "evaluation_episodes.csv").read_text().splitlines()[0]
    assert head == "member,seed,acting,episode,return_0,return_1,length,finished,returned"


@pytest.mark.slow
def test_intervals_of_rates_stay_between_0_and_1(finished_run, tmp_path):
    """Intervals of a single seed are over its episodes, each a success or a failure."""
    result = evaluate(
        finished_run, tmp_path, "--max-steps", "15", "--video", "none", "--episodes=20"
    )
    found = result["stochastic"]["finished"]
    assert 0 < found["mean"] < 1
    successes = round(20 * found["mean"])
    expected = scipy.stats.binomtest(successes, 20).proportion_ci(0.95, "wilson")
    np.testing.assert_allclose(found["interval"], expected)


@pytest.mark.slow
def test_one_episode_has_no_interval(finished_run, tmp_path, capsys):
    result = evaluate(finished_run, tmp_path, "--episodes=1", "--video", "none")
    assert result["greedy"]["return"]["interval"] is None


@pytest.mark.slow
def test_another_environment_and_its_metrics(finished_run, tmp_path, capsys):
    env = "tests.runtime.environments:cartpole_with_success"
    result = evaluate(finished_run, tmp_path, "--env", env, "--video", "none")
    assert result["greedy"]["success"]["mean"] == 1.0
    assert "success" in capsys.readouterr().out


@pytest.mark.slow
def test_other_settings_of_the_environment(finished_run, tmp_path, capsys):
    """The training environment with other settings is used if no other is named."""
    usual = evaluate(finished_run, tmp_path, "--video", "none")
    heavy = evaluate(finished_run, tmp_path, "--env-params", "gravity=1e4", "--video", "none")
    assert heavy["env"] == "cartpole"
    assert heavy["greedy"]["length"]["mean"] < usual["greedy"]["length"]["mean"] < 500


def test_members_of_a_sweep_are_not_averaged(finished_pair, tmp_path, capsys, monkeypatch):
    """Two settings of one seed each have two means, each over its own episodes."""
    labels = [{"seed": 0, "clip": clip} for clip in (0.1, 0.2)]
    sweep = tmp_path / "sweep"
    shutil.copytree(finished_pair, sweep)
    hyper = {"clip": np.asarray([0.1, 0.2], np.float32)}
    Members(labels, hyper).write(sweep / "members.json")
    ended, count = np.ones(3, bool), itertools.count()
    returns = lambda *_: np.full(3, float(next(count)))
    play = lambda *_: Episodes(returns(), 2 * ended, ended, {})  # type: ignore
    monkeypatch.setattr("jaxrl.evaluation.evaluate.evaluate", play)
    result = evaluate(sweep, tmp_path, "--episodes", "3", "--video", "none")
    assert [result[f"clip {x}"]["greedy"]["return"]["mean"] for x in (0.1, 0.2)] == [0, 1]
    assert "intervals over 3 episodes" in capsys.readouterr().out


def test_every_run_of_a_sweep_is_evaluated(
    finished_run, finished_pair, tmp_path, capsys, monkeypatch
):
    ended = np.ones(3, bool)
    play = lambda *_: Episodes(np.arange(3.0), 2 * ended, ended, {})  # type: ignore
    monkeypatch.setattr("jaxrl.evaluation.evaluate.evaluate", play)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / SWEEP).write_text("{}")
    for name, run in {"program1": finished_run, "program2": finished_pair}.items():
        shutil.copytree(run, tmp_path / "sweep" / name)
    words = [str(tmp_path / "sweep"), "--episodes", "3", "--video", "none", "--out"]
    assert command_line.call(script.main, [*words, str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    for name in ("program1", "program2"):
        result = json.loads((tmp_path / "out" / name / "evaluation.json").read_text())
        assert result["greedy"]["return"]["mean"] == 1.0 and f"sweep/{name}:\n" in said
