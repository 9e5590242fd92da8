"""The wheel, built and installed in its own environment, used outside of the repository."""

import importlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "--steps 64 --evaluate-episodes 2 --agent.num-envs 4 --agent.num-steps 8 --hidden 4 --seeds 2 "
    "--name tiny --quiet"
)


@pytest.fixture(scope="module")
def jaxrl(tmp_path_factory):
    """Return a function that calls the installed command in its own folder.

    The dependencies are those of this environment; the package is not.
    """
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("wheel")
    python = place / "venv" / "bin" / "python"

    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: object) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=place, env=alone, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place, ROOT)
    (wheel,) = place.glob("jaxrl_research-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv")
    run(*pip, "--python", python, "install", "--no-deps", wheel)
    (packages,) = place.glob("venv/lib/python*/site-packages")
    (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = run(python, "-c", "import jaxrl; print(jaxrl.__file__)")
    assert Path(found.strip()).is_relative_to(packages)
    return lambda words: run(place / "venv" / "bin" / "jaxrl", *words.split())


@pytest.mark.slow
def test_the_installed_command_trains_and_evaluates(jaxrl):
    version = importlib.import_module("jaxrl").__version__
    assert jaxrl("--version") == f"jaxrl {version}\n"
    assert "losses.dpo" in jaxrl("list papers dpo")
    assert "Breakout" in jaxrl("suite minatar --plan --algorithms PQN").title()
    assert "too long" in jaxrl("suite gymnasium_classic --plan")  # reads published figures
    said = jaxrl("evaluate pretrained/dqn-catch --episodes 2")
    assert "greedy return" in " ".join(said.split())
    jaxrl(f"train ppo/cartpole {TINY}")
    jaxrl("resume runs/tiny --quiet")
    said = jaxrl("evaluate runs/tiny --episodes 2 --video none")
    assert "greedy return" in " ".join(said.split())
