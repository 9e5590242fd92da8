"""Tests that each notebook runs from top to bottom and is stored with the outputs of a run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PATH = re.compile(r"(?<![\w.:/])/(?:home|tmp|work|root|Users|var|usr|opt|mnt)/|[A-Z]:\\")


class ThisInterpreter(AsyncKernelManager):
    """A kernel of the interpreter that runs the tests: no kernel spec needs to be installed."""

    def format_kernel_cmd(self, extra_arguments=None):
        return [sys.executable, "-m", "ipykernel_launcher", "-f", self.connection_file]


def _outputs(notebook) -> list:
    return [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]


def _kinds(notebook) -> list[list[str]]:
    """Return what each code cell shows."""
    code = [c for c in notebook.cells if c.cell_type == "code"]
    return [[o.get("name") or min(o.get("data", {"error": ""})) for o in c.outputs] for c in code]


def _text(notebook) -> str:
    shown = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in _outputs(notebook)]
    return "\n".join(shown)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_shows_what_is_stored(path, tmp_path):
    stored = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, kernel_manager_class=ThisInterpreter, coalesce_streams=True
    )
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    for name in ("MPLBACKEND", "XLA_FLAGS"):  # figures in the notebook; code that is fast to run
        environment.pop(name, None)
    client.execute(env=environment, cwd=str(tmp_path))  # raises where a cell does
    assert _kinds(notebook) == _kinds(stored)
    if path.stem in ("train_and_look", "trained_policy"):
        returns = re.search(r"mean return (\d+)", _text(notebook))
        assert returns and int(returns[1]) > 150  # 20 before it learns


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_short_and_stored_with_its_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert 8 <= len(notebook.cells) <= 15
    assert path.stat().st_size < 200_000
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    assert any("image/png" in kinds for kinds in _kinds(notebook))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_of_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    assert not PATH.search(_text(notebook))
    assert not any(o.get("name") == "stderr" for o in _outputs(notebook))  # warnings, bars
    assert not any(o.output_type == "error" for o in _outputs(notebook))


def test_there_is_one_for_each_way_of_use():
    names = "losses_alone train_and_look trained_policy vmap_seeds_and_hypers your_own"
    assert [path.stem for path in NOTEBOOKS] == names.split()
