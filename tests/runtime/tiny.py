"""A tiny run that all tests of the runtime share, and with it its compiled programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.commands import command_line
from jaxrl.commands import sweep as sweep_script
from jaxrl.commands import train as train_script
from jaxrl.runtime import checkpoints, configuration, run_folder
from jaxrl.runtime.configuration import Experiment

ROOT = Path(__file__).resolve().parents[2]
ENV_STEPS = 32  # environment steps per update
SETTINGS: dict[str, Any] = {
    "agent": {
        "rollouts": {"num_envs": 4, "num_steps": 8},
        "passes": {"epochs": 1, "minibatches": 2},
        "torso": {"hidden": [4]},
    },
    "steps": 20 * ENV_STEPS,
    "log_every": 3 * ENV_STEPS,
    "evaluate_every": 8 * ENV_STEPS,
    "evaluate_episodes": 3,
    "checkpoint_every": 4 * ENV_STEPS,
}


def config(**changes: Any) -> Experiment:
    return configuration.experiment(changes, configuration.experiment(SETTINGS))


def write_settings(folder: Path) -> str:
    path = folder / "tiny.yaml"
    configuration.write(config(out=str(folder)), path)
    return str(path)


def call(command: str, folder: Path, *words: str) -> int:
    """Return the exit code of `jaxrl COMMAND tiny.yaml WORDS` in this process, runs in `folder`."""
    main = {"train": train_script.main, "sweep": sweep_script.main}[command]
    return command_line.call(main, [write_settings(folder), *words])


def train(folder: Path, name: str, *words: str) -> Path:
    assert call("train", folder, "--name", name, "--quiet", *words) == 0
    return folder / name


def resume(folder: Path) -> Path:
    assert command_line.call(train_script.main, ["--resume", str(folder), "--quiet"]) == 0
    return folder


def environment() -> dict[str, str]:
    """Return the variables of a process with this project and these tests' compilation cache."""
    cache = jax.config.jax_compilation_cache_dir
    return (
        os.environ
        | {"PYTHONPATH": str(ROOT)}
        | ({"JAX_COMPILATION_CACHE_DIR": cache} if cache else {})
    )


def process(
    command: str, *words: str, cwd: Path | None = None, new_session: bool = False
) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "jaxrl", command, *words],
        env=environment(),
        cwd=cwd,
        start_new_session=new_session,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the log without the time of day."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if k != "time"} for x in lines]


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the last checkpoint."""
    return checkpoints.restore_raw(checkpoints.latest(run_folder.checkpoints(folder)))[0]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def assert_same_arrays(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        assert a[name].tobytes() == b[name].tobytes(), name


def assert_same_run(a: Path, b: Path) -> None:
    """Assert that the last checkpoints and the logs are the same, bit for bit."""
    assert_same_arrays(arrays(a), arrays(b))
    assert rows(a) == rows(b)
