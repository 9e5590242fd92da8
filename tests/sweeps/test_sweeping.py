"""Sweeps: the grid times the seeds, each member as it would be beside any others."""

import csv
import shutil
import time

import jax
import numpy as np
import pytest

from jaxrl import runtime
from jaxrl.commands import command_line
from jaxrl.core.errors import UserError
from jaxrl.runtime import run_folder
from tests.runtime import tiny


def sweep(folder, name, *words):
    assert tiny.call("sweep", folder, "--name", name, "--quiet", "--seeds", "2", *words) == 0
    return folder / name


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory):
    """Sweep two learning rates, of which the second cannot work."""
    out = tmp_path_factory.mktemp("sweep")
    return sweep(out, "sweep", "--vary", "agent.learning-rate=1e-3,1e30")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    return sweep(out, "sweep", "--vary", "agent.learning-rate=1e-3,1e-4")


def test_labels_hypers_table_and_picture(healthy):
    labels = tiny.summary(healthy)["members"]
    points = [(x["optimizer.learning_rate"], x["seed"]) for x in labels]
    assert points == [(1e-3, 0), (1e-3, 1), (1e-4, 0), (1e-4, 1)]
    stored = tiny.arrays(healthy)[".run.state.agent.hyper['optimizer.learning_rate']"]
    np.testing.assert_array_equal(stored, np.float32([1e-3, 1e-3, 1e-4, 1e-4]))
    with open(healthy / "sweep.csv") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == ["point", "seed", "optimizer.learning_rate", "steps", "return"]
    assert len(table) == 4 * 3
    last = {(row["point"], row["seed"]): float(row["return"]) for row in table}
    returns = [last[point, seed] for point in "01" for seed in "01"]
    assert returns == tiny.summary(healthy)["returns"]
    best = "0" if sum(returns[:2]) >= sum(returns[2:]) else "1"
    assert [row["point"] for row in table] == [best] * 6 + ["10"[int(best)]] * 6
    assert (healthy / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert tiny.summary(healthy)["return"] is None  # a mean over settings would be meaningless


def test_a_grid_of_two(tmp_path):
    folder = sweep(
        tmp_path, "two", "--steps", "64", "--vary", "agent.clip=0.1,0.2",
        "--vary", "agent.discount=0.9,0.95,0.99",
    )  # fmt: skip
    labels = tiny.summary(folder)["members"]
    assert len(labels) == 12
    assert labels[2] == {"seed": 0, "clip": 0.1, "discount": 0.95}
    assert (folder / "sweep.png").exists()


def test_one_member_that_diverges_is_marked_and_the_others_go_on(sweep_folder, healthy):
    assert tiny.summary(sweep_folder)["diverged"].keys() == {"2", "3"}
    assert tiny.summary(sweep_folder)["finished"]
    bad, good = tiny.arrays(sweep_folder), tiny.arrays(healthy)
    for name in good:
        # The others are bit for bit what they are in any run of the same number of members.
        assert bad[name][:2].tobytes() == good[name][:2].tobytes(), name
        if "agent.parts" in name:
            assert np.isfinite(bad[name]).all(), name
    rows = [row for row in tiny.rows(sweep_folder) if row["kind"] == "train"]
    assert rows[-1]["metrics"]["diverged"][:2] == [None, None]
    assert None not in rows[-1]["metrics"]["diverged"][2:]


def test_what_diverged_is_said(tmp_path, capsys):
    words = ["--vary", "agent.learning-rate=1e-3,1e30", "--steps", "64", "--seeds", "2"]
    assert tiny.call("sweep", tmp_path, *words) == 0
    assert "seed 1, optimizer.learning_rate 1e+30: a loss was not finite" in capsys.readouterr().err


def test_a_sweep_that_was_killed_goes_on_to_the_same_bits(sweep_folder, tmp_path):
    run = tiny.process(
        "sweep", tiny.write_settings(tmp_path), "--name", "sweep", "--seeds", "2",
        "--vary", "agent.learning-rate=1e-3,1e30",
    )  # fmt: skip
    log = tmp_path / "sweep" / "metrics.jsonl"
    while run.poll() is None and not (log.is_file() and log.read_bytes().count(b"\n") >= 4):
        time.sleep(0.002)
    run.kill()
    run.communicate()
    folder = tmp_path / "sweep"
    assert command_line.call(tiny.sweep_script.main, ["--resume", str(folder), "--quiet"]) == 0
    tiny.assert_same_run(folder, sweep_folder)
    assert (folder / "sweep.csv").read_text() == (sweep_folder / "sweep.csv").read_text()
    assert tiny.summary(folder)["diverged"] == tiny.summary(sweep_folder)["diverged"]


@pytest.mark.parametrize("script", [tiny.sweep_script, tiny.train_script])
def test_a_finished_sweep_resumed_writes_its_table_again(healthy, tmp_path, script):
    folder = tmp_path / "sweep"
    shutil.copytree(healthy, folder)
    (folder / "sweep.csv").unlink()
    assert command_line.call(script.main, ["--resume", str(folder), "--quiet"]) == 0
    assert (folder / "sweep.csv").read_text() == (healthy / "sweep.csv").read_text()


def test_a_finished_sweep_whose_log_is_gone(healthy, tmp_path, capsys):
    folder = tmp_path / "sweep"
    shutil.copytree(healthy, folder)
    (folder / "metrics.jsonl").unlink()
    assert command_line.call(tiny.sweep_script.main, ["--resume", str(folder), "--quiet"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == f"error: The log of '{folder}' has no evaluations to compare."


def test_a_resumed_sweep_knows_its_grid(healthy, capsys):
    argv = ["--resume", str(healthy), "--vary", "agent.clip=1,2"]
    assert command_line.call(tiny.sweep_script.main, argv) == 2
    assert "leave out --vary" in capsys.readouterr().err


def test_forks_of_a_sweep(healthy, tmp_path, capsys):
    words = ["--fork", str(healthy), "--out", str(tmp_path), "--steps", "672", "--quiet"]
    fork = lambda *more: command_line.call(tiny.train_script.main, [*words, *more])
    assert fork("--agent.learning-rate", "0.1") == 2
    assert "agent.optimizer.learning_rate is varied in" in capsys.readouterr().err
    assert fork("--agent.clip", "0.1", "--name", "fork") == 0
    stored = tiny.arrays(tmp_path / "fork")
    rates = stored[".run.state.agent.hyper['optimizer.learning_rate']"]
    np.testing.assert_array_equal(rates, np.float32([1e-3, 1e-3, 1e-4, 1e-4]))
    np.testing.assert_array_equal(stored[".run.state.agent.hyper['clip']"], np.float32([0.1] * 4))
    vary = ["--vary", "agent.clip=1,2"]
    assert command_line.call(tiny.sweep_script.main, [*words, *vary]) == 2
    assert "A sweep cannot be forked" in capsys.readouterr().err


def test_a_sweep_is_loaded_by_the_name_of_a_point(healthy):
    with open(healthy / "ranking.csv") as file:
        best, other = csv.DictReader(file)
    assert {best["name"], other["name"]} == {
        "optimizer.learning_rate 0.001",
        "optimizer.learning_rate 0.0001",
    }
    assert float(best["mean"]) >= float(other["mean"])
    with pytest.raises(UserError) as error:
        runtime.load(healthy)
    assert 'a sweep of 2 points; choose one with point="best" (that is ' in str(error.value)
    assert best["name"] in str(error.value)
    rate = lambda trained: float(trained.policy.state.hyper["optimizer.learning_rate"])
    for row in (best, other):
        value = float(row["name"].split()[-1])
        assert rate(runtime.load(healthy, point=row["name"])) == pytest.approx(value)
    assert rate(runtime.load(healthy, point="best")) == pytest.approx(
        float(best["name"].split()[-1])
    )
    first, second = (runtime.load(healthy, i, point=best["name"]).policy.state for i in (0, 1))
    leaves = [jax.tree.leaves(x.parts) for x in (first, second)]
    assert any((a != b).any() for a, b in zip(*leaves, strict=True))
    with pytest.raises(UserError, match=r"member is 2; .* has members 0 to 1, one for each seed"):
        runtime.load(healthy, 2, point="best")
    with pytest.raises(UserError, match=r"Unknown point of the sweep 'optimizer.learning_rate 1'"):
        runtime.load(healthy, point="optimizer.learning_rate 1")


def test_a_sweep_without_a_ranking_says_how_to_write_it(healthy, tmp_path):
    copy = shutil.copytree(healthy, tmp_path / "copy")
    (copy / "ranking.csv").unlink()
    with pytest.raises(UserError, match=r"without ranking.csv.*jaxrl sweep --resume"):
        runtime.load(copy)
    assert runtime.load(copy, 0).step


def test_a_member_loads_with_its_own_parameters(healthy):
    stored = tiny.arrays(healthy)
    for member in range(4):
        state = runtime.load(healthy, member).policy.state
        assert float(state.hyper["optimizer.learning_rate"]) == pytest.approx(
            (1e-3, 1e-4)[member // 2]
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.parts):
            name = f".run.state.agent.parts{jax.tree_util.keystr(path)}"
            assert np.asarray(leaf).tobytes() == stored[name][member].tobytes()


def test_a_sweep_from_a_warm_start(finished_run, tmp_path):
    words = ("--warm-start", str(finished_run), "--steps", "64", "--vary", "agent.clip=0.1,0.3")
    folder = sweep(tmp_path, "warm", *words)
    stored = tiny.arrays(folder)
    np.testing.assert_array_equal(
        stored[".run.state.agent.hyper['clip']"], np.float32([0.1, 0.1, 0.3, 0.3])
    )
    assert run_folder.read_config(folder).warm_start == str(finished_run)
