"""Environments on the host that hang, raise, or return unusable values."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from jaxrl import envs
from jaxrl.commands import command_line
from jaxrl.commands import train as train_script
from jaxrl.core import random
from jaxrl.envs.adapters import wrapping
from jaxrl.runtime import configuration, host, load, run_folder, training
from tests.runtime import faulty, tiny
from tests.runtime.faulty import Faulty

WINDOW = 16  # steps
SETTINGS = {
    "env": faulty.NAME,
    "agent": {
        "rollouts": {"num_envs": 2, "num_steps": 8},
        "passes": {"epochs": 1, "minibatches": 1},
        "torso": {"hidden": [4]},
    },
    "steps": 8 * WINDOW,
    "log_every": 2 * WINDOW,
    "evaluate_every": 4 * WINDOW,
    "evaluate_episodes": 2,
    "checkpoint_every": 4 * WINDOW,
}
PLAYED = 2 * faulty.LENGTH  # steps of an evaluation


@pytest.fixture
def fault(monkeypatch):
    """Set the fault, and count calls from 1."""

    def set(function):
        monkeypatch.setattr(Faulty, "counts", dict.fromkeys(Faulty.counts, 0))
        monkeypatch.setattr(Faulty, "fault", staticmethod(function))

    set(lambda method, count: None)
    return set


def settings(folder: Path) -> str:
    path = folder / "faulty.yaml"
    config = configuration.experiment(SETTINGS | {"out": str(folder), "name": "run"})
    configuration.write(config, path)
    return str(path)


def evaluations(folder: Path) -> list[int]:
    return [row["steps"] for row in tiny.rows(folder) if row["kind"] == "evaluation"]


def resume(folder: Path) -> None:
    training.train(
        dataclasses.replace(run_folder.read_config(folder, True), resume=str(folder), trust=True)
    )
    assert tiny.summary(folder)["finished"]
    assert evaluations(folder) == [4 * WINDOW, 8 * WINDOW]
    trained = [row["steps"] for row in tiny.rows(folder) if row["kind"] == "train"]
    assert trained == [n * WINDOW for n in (2, 4, 6, 8)]


@pytest.mark.parametrize(
    ("at", "whole", "number"),
    [
        (5 * WINDOW + PLAYED + 3, 5, signal.SIGTERM),  # in the sixth window
        (4 * WINDOW + 3, 4, signal.SIGINT),  # in the first evaluation
    ],
    ids=["step", "evaluation"],
)
def test_a_hanging_environment_ends_at_the_first_signal(fault, tmp_path, at, whole, number):
    hangs, folder = tmp_path / "hangs", tmp_path / "run"
    run = subprocess.Popen(
        [sys.executable, "-m", "jaxrl", "train", settings(tmp_path)],
        env=tiny.environment() | {"FAULT": f"hang {at} {hangs}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not hangs.exists():
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)
    run.send_signal(number)
    _, said = run.communicate()
    assert run.returncode == 128 + number, said
    assert f"saved. Continue with jaxrl resume {folder} --trust" in said and "Traceback" not in said
    assert load(folder, trust=True).step == whole
    assert not tiny.summary(folder)["finished"]
    assert evaluations(folder) == ([4 * WINDOW] if whole == 5 else [])
    resume(folder)  # the missing evaluation is made now


def test_a_hanging_start_ends_at_the_first_signal(fault, tmp_path, capfd):
    released = threading.Event()

    def hang(method, count):
        if (method, count) == ("reset", 1):
            os.kill(os.getpid(), signal.SIGTERM)
            released.wait()

    fault(hang)
    with pytest.raises(SystemExit) as ended:
        command_line.call(train_script.main, [settings(tmp_path)])
    released.set()
    assert ended.value.code == 128 + signal.SIGTERM
    assert "terminated before there was anything to save." in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["faulty.yaml"]


def test_environments_that_hang_are_abandoned(fault):
    released, stopping = threading.Event(), threading.Event()
    environments = host.Environments(Faulty, 2, stopping=stopping.is_set)
    environments.reset(random.key(0))

    def hang(method, count):
        stopping.set()
        released.wait()

    fault(hang)
    with pytest.raises(
        host.Abandoned, match="Stopped waiting for the environment 'gymnasium/Faulty'"
    ):
        environments.step(np.zeros(2, np.int32))
    with pytest.raises(host.Abandoned):  # not the result of the step before
        environments.step(np.zeros(2, np.int32))
    released.set()


def raising(method, at):
    def fault(called, count):
        if (called, count) == (method, at):
            raise ValueError("no\n fuel")

    return fault


@pytest.mark.parametrize(
    ("method", "at", "whole"),
    [("step", 5 * WINDOW + PLAYED + 3, 5), ("step", 4 * WINDOW + 3, 4), ("reset", 9, 2)],
    ids=["step", "evaluation", "reset"],
)
def test_a_raising_environment_is_one_sentence_and_nothing_is_lost(
    fault, tmp_path, capfd, method, at, whole
):
    fault(raising(method, at))
    assert command_line.call(train_script.main, [settings(tmp_path), "--quiet"]) == 1
    folder = tmp_path / "run"
    assert capfd.readouterr().err == (
        f"error: The environment '{faulty.NAME}' raised ValueError: no fuel in {method} "
        f"(test_host_faults.py, line {raising.__code__.co_firstlineno + 3}); the state after "
        f"{whole} updates ({whole * WINDOW} environment steps) is saved in {folder}/checkpoints; "
        f"continue with jaxrl resume {folder} --trust\n"
    )
    assert load(folder, trust=True).step == whole
    summary = json.loads((folder / "summary.json").read_text())
    assert not summary["finished"] and "no fuel" in summary["stopped_because"]
    fault(lambda method, count: None)
    resume(folder)


def test_an_environment_that_raises_at_the_start_leaves_nothing(fault, tmp_path, capfd):
    fault(raising("reset", 1))
    assert command_line.call(train_script.main, [settings(tmp_path), "--quiet"]) == 1
    assert "raised ValueError: no fuel in reset" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["faulty.yaml"]


PLACE = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (({"place": PLACE}, np.nan, False, False, {}), "a reward that is not finite, nan, in step"),
        (({"place": PLACE}, "high", False, False, {}), "raised ValueError: .* 'high' in step"),
        (
            ({"place": np.array([0, np.inf])}, 1.0, False, False, {}),
            r"returned an observation that is not finite, \[ 0. inf\], in step",
        ),
        (
            ({"place": np.zeros(3)}, 1.0, False, False, {}),
            r"observation\['place'\] of shape \[3\] where its space has \[2\] in step",
        ),
        ((PLACE, 1.0, False, False, {}), r"with ndarray where its space has \['place'\]"),
        (({"place": PLACE}, 1.0, False, {}), "raised ValueError: not enough values to unpack"),
    ],
)
def test_what_nobody_can_learn_from_is_the_environments_fault(fault, result, said):
    environments = host.Environments(Faulty, 2)
    environments.reset(random.key(0))
    fault(lambda method, count: result if method == "step" else None)
    with pytest.raises(
        host.EnvironmentFailed, match=f"The environment 'gymnasium/Faulty' .*{said}"
    ):
        environments.step(np.zeros(2, np.int32))


def test_what_cannot_be_evaluated_is_said_before_a_run_begins(fault, tmp_path, capfd):
    endless = faulty.NAME.replace("Faulty", "Endless")
    words = [settings(tmp_path), "--env", endless]
    assert command_line.call(train_script.main, words) == 2
    said = capfd.readouterr().err
    wrapper = "[{gymnasium/TimeLimit: {max_episode_steps: 1000}}]"
    assert f"'{endless}' has no time limit" in said and f"such as --wrappers '{wrapper}'" in said
    assert [path.name for path in tmp_path.iterdir()] == ["faulty.yaml"]
    limited = wrapping.wrap(envs.make(endless), yaml.safe_load(wrapper))
    assert limited.max_steps == 1000


def test_an_exit_inside_an_environment_is_its_failure(fault):
    environments = host.Environments(Faulty, 1)
    fault(lambda method, count: sys.exit(3))
    with pytest.raises(host.EnvironmentFailed, match="raised SystemExit: 3 in reset"):
        environments.reset(random.key(0))


def test_what_is_not_resumed_exactly_is_said(fault, tmp_path, capfd):
    fault(raising("step", 2 * WINDOW + 1))
    said = lambda: " ".join(capfd.readouterr().err.split())
    assert command_line.call(train_script.main, [settings(tmp_path)]) == 1
    assert f"'{faulty.NAME}' runs on the host: checkpoints hold the parameters" in said()
    fault(lambda method, count: None)
    assert command_line.call(train_script.main, ["--resume", str(tmp_path / "run"), "--trust"]) == 0
    assert f"The episodes of '{faulty.NAME}' were not saved: new ones begin" in said()
