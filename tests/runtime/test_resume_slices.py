"""Exact resume of algorithms other than PPO: replay with priorities, and a life amid a task."""

import signal
import time

import pytest

from jaxrl.runtime import configuration
from tests.runtime import tiny

SLICES = {
    "rainbow": {
        "algorithm": "rainbow",
        "env": "catch",
        "agent": {
            "replay": {
                "num_envs": 4, "num_steps": 2, "updates": 2, "batch_size": 8, "capacity": 64,
                "warmup": 16,
            },
            "torso": {"hidden": [8]}, "num_atoms": 5, "target": {"period": 7},
        },
        "steps": 16 + 20 * 8,
        "log_every": 3 * 8,
        "evaluate_every": 8 * 8,
        "checkpoint_every": 4 * 8,
    },
    "lifelong_ppo": {
        "algorithm": "lifelong_ppo",
        "env": "corners",
        "agent": {
            "ppo": {
                "rollouts": {"num_envs": 4, "num_steps": 8},
                "passes": {"epochs": 1, "minibatches": 1}, "torso": {"hidden": [4]},
            },
            "vary": "task", "values": [0, 2], "windows": 2, "periods": 3, "episodes": 2,
            "components": ["replay", "ewc"], "ewc": {"samples": 2}, "measure": "success",
            "replay": {"capacity": 8, "replays": 2, "clone": {"steps": 1}},
        },
        "steps": 6 * 64,  # of which each task has three periods
        "log_every": 64,
        "evaluate_every": -1,
        "checkpoint_every": 64,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SLICES)
def test_killed_and_resumed(name, tmp_path):
    path = tmp_path / "slice.yaml"
    settings = SLICES[name] | {"out": str(tmp_path), "evaluate_episodes": 3, "quiet": True}
    configuration.write(configuration.experiment(settings), path)
    whole = tmp_path / "whole"
    assert tiny.command_line.call(tiny.train_script.main, [str(path), "--name", "whole"]) == 0

    run, folder = tiny.process("train", str(path), "--name", "run"), tmp_path / "run"
    log = folder / "metrics.jsonl"
    while run.poll() is None and not (log.is_file() and log.read_bytes().count(b"\n")):
        time.sleep(0.001)
    run.kill()
    run.communicate()
    assert run.returncode == -signal.SIGKILL
    assert not (folder / "summary.json").exists()
    tiny.assert_same_run(tiny.resume(folder), whole)
