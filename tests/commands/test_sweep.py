"""`jaxrl sweep` called from a shell, in another folder."""

import subprocess
import sys

from tests.runtime import tiny


def test_a_sweep_from_a_shell(tmp_path):
    words = ["--vary", "agent.clip=0.1,0.2", "--seeds", "2", "--steps", "64", "--out", "here"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl", "sweep", tiny.write_settings(tmp_path), *words],
        cwd=tmp_path,
        env=tiny.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    folder = tmp_path / "here" / "ppo-cartpole-0001"
    assert {"sweep.csv", "sweep.png", "summary.json"} <= {p.name for p in folder.iterdir()}
    assert "Compiling: " in done.stderr and "of 64 steps" in done.stderr
    assert (
        "clip 0.1  " in done.stderr
        and "final return  " in done.stderr
        and "sweep.png" in done.stderr
    )
    assert "Saved in here/ppo-cartpole-0001" in done.stderr
