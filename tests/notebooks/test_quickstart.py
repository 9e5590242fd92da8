"""The notebook runs from top to bottom, and says what it promises."""

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
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"


class ThisInterpreter(AsyncKernelManager):
    """A kernel of the interpreter that runs the tests: no kernel spec needs to be installed."""

    def format_kernel_cmd(self, extra_arguments=None):
        return [sys.executable, "-m", "ipykernel_launcher", "-f", self.connection_file]


@pytest.fixture(scope="module")
def executed():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, kernel_manager_class=ThisInterpreter, resources={}
    )
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("MPLBACKEND", None)  # the kernel's own, which shows figures in the notebook
    client.execute(env=environment, cwd=str(NOTEBOOK.parent))  # raises where a cell does
    return notebook


def _text(notebook) -> str:
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    return "\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)


def test_it_trains_32_seeds_that_solve_cartpole(executed):
    found = re.search(r"mean return ([\d.]+), 95 % interval .* over 32 seeds", _text(executed))
    assert found and float(found[1]) > 475


def test_it_draws_its_curves(executed):
    code = [c for c in executed.cells if c.cell_type == "code"]
    drawn = [c for c in code if any("image/png" in o.get("data", {}) for o in c.outputs)]
    assert len(drawn) == 2


def test_the_clipped_ratio_has_no_gradient(executed):
    last = executed.cells[-1].outputs[-1]["data"]["text/plain"]
    numbers = re.findall(r"Array\(\[(.*?)\]", last, re.DOTALL)
    gradient = [float(x) for x in numbers[1].split(",")]
    assert gradient[2] == 0 and all(gradient[i] != 0 for i in (0, 1, 3))


def test_outputs_are_not_committed():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not c.outputs for c in notebook.cells if c.cell_type == "code")
