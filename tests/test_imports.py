"""Imports run one way, and nothing is imported that is not needed."""

import ast
import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(importlib.util.find_spec("jaxrl").submodule_search_locations[0])

# Rooms of jaxrl that each room may import besides itself. `core.types`, `core.checks` and
# `core.precise` are files of core.
PARTS = {"losses", "diffusion", "gradients", "solvers"}
LOW = {"core", "networks", "envs", "tasks", "sources", "kit"} | PARTS
BELOW_RUNTIME = LOW | {"exact", "evaluation", "datasets", "algorithms"}
ALLOWED = {
    "core": set(),
    "diffusion": {"core.types"},
    "gradients": {"core.precise", "core.types"},
    "losses": {
        "core.aliases",
        "core.checks",
        "core.precise",
        "core.types",
        "diffusion",
        "gradients",
    },
    "solvers": {
        "core.precise",
        "core.types",
        "losses.divergences",
        "losses.games",
        "losses.reductions",
    },
    "networks": {"core"} | PARTS,
    "envs": {"core"},
    "tasks": {"core"},
    "sources": {"core", "tasks"},
    "kit": LOW,
    "exact": {"core", "envs"} | PARTS,
    "evaluation": LOW | {"exact"},
    "datasets": {"core", "losses"},
    "algorithms": LOW | {"exact", "evaluation", "datasets"},
    "export": {"core", "envs"},
    "papers": {"algorithms", "envs"},
    "runtime": BELOW_RUNTIME | {"export"},
    "sweeps": BELOW_RUNTIME | {"runtime"},
    "suites": BELOW_RUNTIME | {"runtime"},
    "reporting": BELOW_RUNTIME | {"runtime", "suites"},
    "commands": {"*"},
}


def files():
    return sorted(p for p in PACKAGE.rglob("*.py") if len(p.relative_to(PACKAGE).parts) > 1)


def imports(path: pathlib.Path) -> set[str]:
    """Return the dotted names that a file imports of this repository, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("jaxrl", "experiments", "tests")}


def test_every_room_has_its_rule():
    rooms = {p.relative_to(PACKAGE).parts[0] for p in files()}
    assert rooms <= set(ALLOWED), rooms - set(ALLOWED)


@pytest.mark.parametrize("room", list(ALLOWED))
def test_imports_run_one_way(room):
    wrong = []
    for path in files():
        if path.relative_to(PACKAGE).parts[0] != room:
            continue
        for name in imports(path):
            parts = name.split(".")
            allowed = ALLOWED[room] | {room}
            fits = parts[0] == "jaxrl" and (
                parts == ["jaxrl"]
                or "*" in allowed
                or parts[1] in allowed
                or ".".join(parts[1:3]) in allowed
            )
            # `from jaxrl import losses` is the room itself.
            if not fits:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong, "; ".join(wrong)


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement,absent",
    [
        (
            "from jaxrl import diffusion, gradients, losses, solvers",
            "matplotlib orbax tyro distrax flax optax tensorflow_probability rich",
        ),
        ("import jaxrl.core.train", "matplotlib orbax tyro distrax flax rich"),
        ("import jaxrl.algorithms.policy_gradient.ppo", "matplotlib tyro gymnasium"),
    ],
)
def test_modules_that_are_imported_late(statement, absent):
    loaded = modules_after(statement)
    assert "jaxrl" in loaded
    assert not loaded & set(absent.split())


def test_only_one_tensorflow_probability():
    names = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    both = {"tfp-nightly", "tensorflow-probability"} & {
        str(n).lower().replace("_", "-") for n in names
    }
    assert len(both) < 2, (
        "tensorflow-probability (stable) is installed beside tfp-nightly, which breaks distrax; "
        "uninstall both and install tfp-nightly again."
    )
