"""The record of an accelerator, with parts that only say what they were commands to do."""

import json

import pytest

from experiments import accelerator
from jaxrl.commands import command_line

CPU = {"platform": "cpu", "kind": "cpu", "count": 1}
GPU = {"platform": "gpu", "kind": "A GPU", "count": 1}


@pytest.fixture
def commands(monkeypatch):
    """Commands that were run; each ends well, but for those of tests."""
    commands = []

    def run(command, seconds=0.0):
        commands.append(command)
        if "pytest" in command:
            return {"exit_status": 1, "last_line": "1 failed", "output": "FAILED tests/a.py::b - c"}
        return {"exit_status": 0, "last_line": "", "output": ""}

    monkeypatch.setattr(accelerator, "run", run)
    monkeypatch.setattr(accelerator, "device", lambda: GPU)
    return commands


def test_every_family_is_trained_and_what_ended_well_is_not_run_again(commands, tmp_path, capsys):
    output = tmp_path / "record.json"
    assert accelerator.main(["--output", str(output)]) == 1
    record = json.loads(output.read_text())
    families = {path.name for path in (accelerator.ROOT / "configs").iterdir()}
    assert {name.split("/")[1] for name in record["parts"] if "/" in name} == families
    assert record["device"] == GPU and record["versions"]["jaxrl"]
    assert record["parts"]["tests"]["failed"] == ["tests/a.py::b"]
    assert "tests: 1 failed" in capsys.readouterr().out

    (trained,) = [c for c in commands if any("ppo/acrobot" in part for part in c)]
    assert "--steps" in trained and "--seeds" in trained
    commands.clear()
    accelerator.main(["--output", str(output)])
    assert [command[1] for command in commands] == ["pytest"]


def test_what_matters_most_is_run_in_the_minutes_that_there_are(
    commands, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "record.json"
    accelerator.main(["--output", str(output), "--minutes", "5"])
    parts = json.loads(output.read_text())["parts"]
    assert 5 < len(parts) < 20 and {"benchmark", "tests"} < set(parts)
    assert all((accelerator.ROOT / name).is_file() for name in parts if "/" in name)
    output.unlink()
    clock = iter(range(0, 10_000, 100))  # each look at the clock finds 100 s gone
    monkeypatch.setattr(accelerator.time, "monotonic", lambda: next(clock))
    accelerator.main(["--output", str(output), "--minutes", "5"])
    assert set(json.loads(output.read_text())["parts"]) == {
        "benchmark",
        "configs/ppo/cartpole.yaml",
    }
    assert "tests did not fit into 5 minutes" in capsys.readouterr().out


def test_a_part_that_takes_too_long_is_ended_with_what_it_started():
    ended = accelerator.run(["-c", "import time; print('begun', flush=True); time.sleep(60)"], 3.0)
    assert ended == {"exit_status": -1, "last_line": "not done after 3 s", "output": "begun\n"}


def test_a_machine_without_an_accelerator_and_a_record_of_another(commands, tmp_path, monkeypatch):
    output = tmp_path / "record.json"
    monkeypatch.setattr(accelerator, "device", lambda: CPU)
    call = lambda *options: command_line.call(accelerator.main, ["--output", str(output), *options])
    assert call() == 2 and not commands
    output.write_text(json.dumps({"device": GPU}))
    assert call("--cpu") == 2 and not commands
    output.write_text("[]")
    assert call("--cpu") == 2
