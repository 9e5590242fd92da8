"""Other libraries, each in a virtual environment of its own: what they need excludes each other."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import processes


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library at one version, under the name that it is imported and, unless `distribution` is
    given, distributed by. Its environment has our version of JAX, unless `jax` is False."""

    name: str
    version: str
    also: tuple[str, ...] = ()  # what else its environment must hold
    distribution: str = ""
    jax: bool = True

    @property
    def requirements(self) -> tuple[str, ...]:
        return (f"{self.distribution or self.name}=={self.version}", *self.also)

    @property
    def folder(self) -> Path:
        return processes.REPOSITORY / f".venv-{self.name}"


SB3 = Peer("stable_baselines3", "2.9.2")
SBX = Peer("sbx", "0.28.0", (*SB3.requirements, "gymnasium[mujoco]"), "sbx-rl")
GYMNAX = Peer("gymnax", "1.0.1")
NAVIX = Peer("navix", "0.7.4")
# gymnax 1.0 returns six values from `step`, and rejax 0.1.3 unpacks five.
REJAX = Peer("rejax", "0.1.3", ("gymnax<1.0", *NAVIX.requirements))
XMINIGRID = Peer("xminigrid", "0.9.3")
BRAX = Peer("brax", "0.14.2")
PGX = Peer("pgx", "2.6.0")
JAXMARL = Peer("jaxmarl", "0.2.0")

EXTRAS = {
    "jax-cuda13-plugin": "cuda13",
    "jax-cuda12-plugin": "cuda12",
    "libtpu": "tpu",
}


class Interpreters(argparse.Action):
    """An option that takes several PEER=PATH and gives a dict."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, nargs="*", default={}, metavar="PEER=PATH")

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string=None) -> None:
        if not all("=" in x for x in values):
            parser.error(f"{option_string} takes PEER=PATH, e.g. gymnax=.venv-gymnax/bin/python.")
        setattr(namespace, self.dest, dict(x.split("=", 1) for x in values))


def find(
    peer: Peer, python: str | None = None, folder: Path | None = None
) -> tuple[str | None, str]:
    """An interpreter that imports `peer`, or None, and one sentence about it, for the record: where
    there is one, it names no path of this machine."""
    folder, name = folder or peer.folder, peer.name
    if python is not None:
        problem = check(peer, python)
        if problem:
            return None, f"{name} is not measured: {python} does not import it ({problem})."
        return python, f"{name} runs with the interpreter that --python names."
    if not interpreter(folder).exists() or check(peer, str(interpreter(folder))):
        problem = make(peer, folder)
        if problem:
            return None, f"{name} is not measured: its environment was not made ({problem})."
    return str(interpreter(folder)), f"{name} runs in an environment of its own."


def interpreter(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def check(peer: Peer, python: str) -> str:
    """Return why `python` does not import the peer; empty if it does."""
    name, version = peer.distribution or peer.name, peer.version
    code = (
        f"import {peer.name}; from importlib.metadata import version as v; "
        f"assert v('{name}') == '{version}', '{name} ' + v('{name}') + ' is not {version}'"
    )
    return attempt([python, "-c", code])


def make(peer: Peer, folder: Path) -> str:
    """Return why the environment could not be made; empty if it was."""
    mine = not folder.exists()
    print(
        f"Making the environment of {peer.name} in {folder} (once) ...", file=sys.stderr, flush=True
    )
    problem = attempt([sys.executable, "-m", "venv", str(folder)])
    packages = [*peer.requirements, *([same_jax()] if peer.jax else [])]
    problem = problem or attempt(
        [str(interpreter(folder)), "-m", "pip", "install", "--quiet", *packages]
    )
    problem = problem or check(peer, str(interpreter(folder)))
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
