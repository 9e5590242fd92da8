"""Tests of each suite of environments, with its packages alone in a fresh virtual environment.

`python tests/suites.py [SUITE ...] [--python PYTHON] [--folder FOLDER]`, or `make suites`. The
packages of a suite are those of the extra with its name in pyproject.toml, or its own line of the
extra `suites`. Prints one line per suite; the exit status is 1 if any failed.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADAPTERS = ROOT / "jaxrl" / "envs" / "adapters" / "__init__.py"
# Craftax computes light in half precision, which the old instructions of tests/conftest.py cannot.
FLAGS = {"craftax": "--xla_cpu_max_isa=AVX2 --xla_cpu_use_fusion_emitters=true"}
TOOLS = ("pytest", "pytest-xdist", "hypothesis")  # of the extra `test`, what these tests need


def names() -> tuple[str, ...]:
    """Return the names of the suites, read without importing jaxrl."""
    for node in ast.parse(ADAPTERS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SUITES":
            return ast.literal_eval(node.value)
    raise LookupError(f"{ADAPTERS} has no SUITES")


def requirements(suite: str) -> list[str]:
    """Return the packages of a suite, as pip takes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    own = extras.get(suite)
    return own or [line for line in extras["suites"] if _package(line) == suite]


def tests(suite: str) -> list[str]:
    """Return the files that test a suite's adapter."""
    found = ROOT.joinpath("tests", "envs", "adapters").glob(f"test_{suite}.py")
    return [str(path.relative_to(ROOT)) for path in found]


def check(suite: str, python: str, folder: Path) -> tuple[bool, str]:
    """Install a suite alone and run its tests. Return whether they passed, and a line about it."""
    if not tests(suite):
        return True, "no tests of its own"
    start = time.monotonic()
    place, log = folder / suite, folder / f"{suite}.log"
    folder.mkdir(parents=True, exist_ok=True)
    here = str(place / ("Scripts" if sys.platform == "win32" else "bin") / "python")
    tools = project_tools()
    install = ["-m", "pip", "install", "--quiet", "--editable", str(ROOT)]
    steps = {
        "the virtual environment failed": [python, "-m", "venv", "--clear", str(place)],
        "the installation failed": [here, *install, *requirements(suite), *tools],
        "failed": [here, "-m", "pytest", "-n", "0", "-m", "", *tests(suite)],
    }
    variables = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_flags(suite)}"}
    with log.open("w", encoding="utf-8") as file:
        for what, command in steps.items():
            streams = {"stdout": file, "stderr": subprocess.STDOUT}
            done = subprocess.run(command, cwd=ROOT, env=variables, **streams)
            if done.returncode:
                return False, f"{what}: {_outcome(log)} (see {log})"
    return True, f"{_outcome(log)} ({', '.join(_versions(here, suite))}; {_minutes(start)})"


def project_tools() -> list[str]:
    """Return what pytest needs here, with the versions of the extra `test`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["optional-dependencies"]["test"]
    return [line for line in lines if _package(line) in TOOLS]


def _flags(suite: str) -> str:
    """Return the flags of XLA that a suite needs; processors other than x86 need none."""
    return FLAGS.get(suite, "") if platform.machine() in ("x86_64", "AMD64") else ""


def _package(requirement: str) -> str:
    """Return the name of the package that a requirement is about."""
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower()


def _outcome(log: Path) -> str:
    """Return the counts of pytest, such as `9 passed`; else the last line of the log."""
    lines = log.read_text(encoding="utf-8").splitlines() or [""]
    counts = re.compile(r"\b\d+ (?:passed|failed|skipped|errors?)\b")
    for line in reversed(lines):
        if counts.search(line):
            return ", ".join(counts.findall(line))
    return lines[-1]


def _versions(python: str, suite: str) -> list[str]:
    """Return jax and the suite's packages with their installed versions."""
    wanted = ["jax", *map(_package, requirements(suite))]
    code = f"from importlib.metadata import version; print(*map(version, {wanted!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return [f"{name} {number}" for name, number in zip(wanted, done.stdout.split(), strict=True)]


def _minutes(start: float) -> str:
    seconds = round(time.monotonic() - start)
    return f"{seconds // 60}:{seconds % 60:02d} min"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Test each suite with its packages alone.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of: {', '.join(names())}")
    parser.add_argument("--python", default=sys.executable, help="Python of the environments")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "suites")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.suites) - set(names()))
    if unknown:
        parser.error(f"no suite is called {', '.join(unknown)}; there are {', '.join(names())}")
    passed = []
    for suite in options.suites or names():
        fits, line = check(suite, options.python, options.folder)
        print(f"{suite}: {line}", flush=True)
        passed.append(fits)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
