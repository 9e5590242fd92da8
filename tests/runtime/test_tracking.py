"""Tracking: TensorBoard and Weights & Biases receive every row of a run's log once."""

from __future__ import annotations

import json
import os
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from jaxrl.commands import command_line
from jaxrl.commands import train as train_script
from jaxrl.runtime import continuing, tracking
from jaxrl.runtime import log as logs
from jaxrl.runtime.display import Display
from jaxrl.runtime.members import Members, read_members
from tests.runtime import tiny

PAIR = Members([{"seed": 0}, {"seed": 1, "clip": 0.1}])


def row(steps, *values, kind="train"):
    metrics = {"loss": np.asarray(values, float)}
    return {"kind": kind, "steps": steps, "updates": 1, "seconds": 0.0, "metrics": metrics}


def test_scalars_are_means_and_each_members_own():
    assert tracking.scalars(row(8, 2.0, 4.0), PAIR) == {
        "train/loss": 3.0,
        "train/loss/seed 0": 2.0,
        "train/loss/seed 1, clip 0.1": 4.0,
    }
    some = tracking.scalars(row(8, np.nan, 4.0, kind="evaluation"), PAIR)
    assert some == {"evaluation/loss": 4.0, "evaluation/loss/seed 1, clip 0.1": 4.0}
    assert tracking.scalars(row(8, None, None), PAIR) == {}
    assert tracking.scalars(row(8, 2.0), Members([{"seed": 0}])) == {"train/loss": 2.0}


class FakeBackend:
    def __init__(self, rows=0, broken=False):
        self.rows, self.broken, self.received, self.closed = rows, broken, [], False

    def write(self, row, scalars):
        if self.broken:
            raise OSError("no more room")
        self.received.append((row["steps"], scalars["train/loss"]))

    def close(self):
        self.closed = True


def test_rows_that_a_backend_has_are_not_sent_again():
    backend = FakeBackend(rows=2)
    tracker = tracking.Tracker(backend, Members([{"seed": 0}]))
    for steps in (1, 2, 3, 4):
        tracker.write(row(steps, 0.5))
    tracker.close()
    assert backend.received == [(3, 0.5), (4, 0.5)] and backend.closed


def test_a_tracker_that_breaks_does_not_break_the_run():
    said = []
    backend = FakeBackend(broken=True)
    tracker = tracking.Tracker(backend, Members([{"seed": 0}]), said.append)
    tracker.write(row(1, 0.5))
    tracker.write(row(2, 0.5))
    tracker.close()
    assert said == [
        "Tracking ends here (OSError: no more room); the run continues, and metrics.jsonl has all "
        "rows."
    ]
    assert not backend.closed


def logged_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values of each tag, as the log has them."""
    members = read_members(folder)
    found: dict[str, list[tuple[int, float]]] = {}
    for row in logs.read(folder / "metrics.jsonl"):
        for tag, value in tracking.scalars(row, members).items():
            found.setdefault(tag, []).append((row["steps"], np.float32(value)))
    return found


def cut_off(run: Path, folder: Path, rows: int) -> Path:
    """Copy a finished run as a kill would leave it: without the last checkpoint, and with `rows`
    rows after the one before."""
    shutil.copytree(run, folder)
    (folder / "summary.json").unlink()
    shutil.rmtree(sorted((folder / "checkpoints").iterdir())[-1])
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    at_checkpoint = sum(json.loads(x)["updates"] <= 16 for x in lines)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[: at_checkpoint + rows]))
    return folder


def resume(folder: Path, *words: str) -> None:
    argv = ["--resume", str(folder), "--quiet", *words]
    assert command_line.call(train_script.main, argv) == 0


# ----------------------------------------------------------------------------- tensorboard


def read_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values of each tag, as TensorBoard reads them."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (the track extra)")
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(
        str(folder / "tensorboard"), size_guidance={event_accumulator.SCALARS: 0}
    ).Reload()
    return {
        tag: [(event.step, np.float32(event.value)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@pytest.fixture(scope="module")
def tracked_run(tmp_path_factory):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (the track extra)")
    out = tmp_path_factory.mktemp("tracked")
    return tiny.train(out, "run", "--seeds", "2", "--track", "tensorboard")


def test_tensorboard_shows_the_log(tracked_run, finished_pair):
    assert read_tensorboard(tracked_run) == logged_scalars(tracked_run)
    tags = read_tensorboard(tracked_run)
    assert [step for step, _ in tags["evaluation/return"]] == [256, 512, 640]
    assert {"evaluation/return/seed 0", "evaluation/return/seed 1"} <= tags.keys()
    tiny.assert_same_run(tracked_run, finished_pair)


@pytest.mark.parametrize("rows", [0, 2])
def test_no_row_appears_twice_after_a_resume(tracked_run, tmp_path, rows):
    folder = cut_off(tracked_run, tmp_path / "cut", rows)
    resume(folder)
    assert read_tensorboard(folder) == logged_scalars(folder) == logged_scalars(tracked_run)


def test_a_tensorboard_that_is_open_sees_what_happens(tmp_path):
    """A run on the host is cut off after its second row, and continues differently."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    one, display = Members([{"seed": 0}]), Display(quiet=True)
    log = logs.Log(tmp_path / "metrics.jsonl")

    def go_on(rows):
        tracker = tracking.start(tiny.config(track="tensorboard"), tmp_path, one, display)
        for steps, value in rows:
            log.write(row(steps, value))
            tracker.write(row(steps, value))
        return tracker

    go_on([(8, 0.5)])
    open_one = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found = lambda: [(x.step, x.value) for x in open_one.Reload().Scalars("train/loss")]
    assert found() == [(8, 0.5)]  # although nothing was closed
    size = log.size()
    go_on([(16, 1.0), (24, 2.0)]).close()
    assert found() == [(8, 0.5), (16, 1.0), (24, 2.0)]
    os.truncate(log.path, size)
    log = logs.Log(log.path)
    go_on([(16, 4.0), (24, 8.0), (32, 16.0)]).close()
    assert found() == [(8, 0.5), (16, 4.0), (24, 8.0), (32, 16.0)]


def test_tracking_begins_and_ends_with_a_resume(finished_pair, tracked_run, tmp_path):
    begun = cut_off(finished_pair, tmp_path / "begun", 1)
    resume(begun, "--track", "tensorboard")
    assert read_tensorboard(begun) == logged_scalars(tracked_run)
    ended = cut_off(tracked_run, tmp_path / "ended", 1)
    before = read_tensorboard(ended)
    resume(ended, "--track", "none")
    assert read_tensorboard(ended) == before
    tiny.assert_same_run(ended, finished_pair)


# ----------------------------------------------------------------------------- wandb


@pytest.fixture
def wandb(monkeypatch):
    """Fake the functions of wandb that are called; `runs` holds their arguments and rows."""
    fake = types.ModuleType("wandb")
    fake.runs = []

    class Run:
        offline, url = True, None

        def __init__(self, **settings):
            self.settings, self.rows, self.finished = settings, [], False
            part = f"offline-run-{len(fake.runs)}-{settings['id']}"
            self.dir = str(Path(settings["dir"]) / "wandb" / part / "files")
            Path(self.dir).mkdir(parents=True)
            fake.runs.append(self)

        def log(self, data, step):
            assert not self.rows or step >= self.rows[-1][0]
            self.rows.append((step, data))

        def finish(self):
            self.finished = True

    fake.init, fake.Settings = Run, dict
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return fake


def sent_scalars(runs) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values of each tag in all parts together."""
    found: dict[str, list[tuple[int, float]]] = {}
    for run in (run for run in runs if Path(run.dir).exists()):
        assert run.finished
        for step, data in run.rows:
            for tag, value in data.items():
                found.setdefault(tag, []).append((step, np.float32(value)))
    return found


def test_wandb_is_told_a_sweep_and_goes_on_under_its_id(wandb, tmp_path):
    words = ["--name", "run", "--quiet", "--seeds", "2", "--track", "wandb"]
    words += ["--vary", "agent.learning-rate=1e-3,1e-4"]
    assert tiny.call("sweep", tmp_path, *words) == 0
    folder = tmp_path / "run"
    (run,) = wandb.runs
    assert run.finished and run.settings["mode"] == "offline"
    assert run.settings["config"]["agent"]["rollouts"]["num_envs"] == 4
    assert sent_scalars([run]) == logged_scalars(folder)
    assert "evaluation/return/seed 1, optimizer.learning_rate 0.0001" in sent_scalars([run])
    cut_off(folder, tmp_path / "cut", 1)
    shutil.rmtree(folder)
    (tmp_path / "cut").rename(folder)
    resume(folder)  # its config.yaml says that it is tracked
    before, after = wandb.runs
    assert after.settings["id"] == before.settings["id"] and after.settings["resume"] == "allow"
    assert not after.rows and sent_scalars([before, after]) == logged_scalars(folder)


def test_wandb_is_told_anew_what_a_kill_left_open(wandb, tmp_path):
    log = logs.Log(tmp_path / "metrics.jsonl")

    def go_on(*rows):
        one, display = Members([{"seed": 0}]), Display(quiet=True)
        tracker = tracking.start(tiny.config(track="wandb"), tmp_path, one, display)
        for new in rows:
            log.write(new)
            tracker.write(new)
        return tracker

    go_on(row(8, 1.0)).close()
    go_on(row(16, 2.0), row(16, 4.0, kind="evaluation"))  # never closed
    go_on(row(24, 8.0)).close()
    assert sent_scalars(wandb.runs) == {
        "train/loss": [(8, 1.0), (16, 2.0), (24, 8.0)],
        "evaluation/loss": [(16, 4.0)],
    }
    assert len({run.settings["id"] for run in wandb.runs}) == 1


def test_wandb_learns_what_it_missed(wandb, finished_run, tmp_path):
    folder = cut_off(finished_run, tmp_path / "cut", 0)
    resume(folder, "--track", "wandb")
    assert sent_scalars(wandb.runs) == logged_scalars(folder)


def test_wandbs_own_settings_are_respected(wandb, finished_run, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    resume(cut_off(finished_run, tmp_path / "cut", 0), "--track", "wandb")
    assert wandb.runs[0].settings["mode"] == "online"
    assert wandb.runs[0].settings["project"] == "mine"


def test_a_wandb_that_cannot_start_is_one_sentence(wandb, finished_run, tmp_path, capfd):
    def init(**settings):
        raise RuntimeError("no key\n was given")

    wandb.init = init
    folder = cut_off(finished_run, tmp_path / "cut", 0)
    argv = ["--resume", str(folder), "--quiet", "--track", "wandb"]
    assert command_line.call(train_script.main, argv) == 2
    assert capfd.readouterr().err == (
        "error: wandb cannot start (RuntimeError: no key was given); to continue without it: "
        f"jaxrl resume {folder} --track none\n"
    )
    resume(folder, "--track", "none")
    tiny.assert_same_run(folder, finished_run)


# ----------------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_said_before_training(kind, tmp_path, monkeypatch, capfd):
    for name in [name for name in sys.modules if name.partition(".")[0] == kind]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    assert tiny.call("train", tmp_path, "--quiet", "--track", kind) == 2
    assert capfd.readouterr().err == (
        f"error: The package '{kind}' is not installed; pip install -e '.[track]' in jaxrl's "
        "repository brings it.\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_an_unknown_tracker_is_one_sentence(tmp_path, capfd):
    assert tiny.call("train", tmp_path, "--quiet", "--track", "tensorbord") == 2
    logged_scalars = "error: track is 'tensorbord'; it must be one of none, tensorboard, wandb"
    assert capfd.readouterr().err.startswith(logged_scalars)


def test_a_first_phase_is_the_same_however_it_is_tracked(tmp_path):
    names = []
    for track in ("none", "wandb"):
        path = tmp_path / f"{track}.yaml"
        path.write_text(f"track: {track}\n")
        names.append(continuing.warm_start_experiment(tiny.config(warm_start=str(path))).name)
    assert names[0] == names[1]
