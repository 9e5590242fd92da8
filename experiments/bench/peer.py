"""rejax in a virtual environment of its own, since it needs an older gymnax than we do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import processes

VERSION = "0.1.3"
# gymnax 1.0 returns six values from `step`, and rejax 0.1.3 unpacks five.
REQUIREMENTS = (f"rejax=={VERSION}", "gymnax<1.0")
EXTRAS = {
    "jax-cuda13-plugin": "cuda13",
    "jax-cuda12-plugin": "cuda12",
    "libtpu": "tpu",
}


def find(python: str | None, folder: Path) -> tuple[str | None, str]:
    """An interpreter that imports rejax, or None, and one sentence about it."""
    if python is not None:
        problem = check(python)
        if problem:
            return None, f"rejax is not measured: {python} does not import it ({problem})."
        return python, f"rejax runs with {python}."
    if not interpreter(folder).exists() or check(str(interpreter(folder))):
        problem = make(folder)
        if problem:
            return None, f"rejax is not measured: its environment was not made ({problem})."
    return str(interpreter(folder)), f"rejax runs in the environment {folder}."


def interpreter(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def check(python: str) -> str:
    """Why `python` does not import rejax; empty if it does."""
    code = (
        "import rejax; from importlib.metadata import version as v; "
        f"assert v('rejax') == '{VERSION}', 'rejax ' + v('rejax') + ' is not {VERSION}'"
    )
    return attempt([python, "-c", code])


def make(folder: Path) -> str:
    """Why the environment could not be made; empty if it was."""
    mine = not folder.exists()
    print(f"Making the environment of rejax in {folder} (once) ...", file=sys.stderr, flush=True)
    problem = attempt([sys.executable, "-m", "venv", str(folder)])
    packages = [*REQUIREMENTS, same_jax()]
    problem = problem or attempt(
        [str(interpreter(folder)), "-m", "pip", "install", "--quiet", *packages]
    )
    problem = problem or check(str(interpreter(folder)))
    if problem and mine:
        shutil.rmtree(folder, ignore_errors=True)
    return problem


def same_jax() -> str:
    """The requirement that gives both sides the same JAX, for the same kind of device."""
    installed = {(d.metadata["Name"] or "").lower() for d in metadata.distributions()}
    extra = next((f"[{extra}]" for name, extra in EXTRAS.items() if name in installed), "")
    return f"jax{extra}=={metadata.version('jax')}"


def attempt(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=1800,
            env=processes.environment(ours=False),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1][:300] if done.returncode else ""
