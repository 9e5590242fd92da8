"""Tests of what a change can affect, in a library that is made up."""

from __future__ import annotations

import json
import subprocess
import textwrap

import pytest

from tests import affected, rota

TREE = {
    "jaxrl/__init__.py": """
        import importlib
        _DEFINED = {"train": "jaxrl.core.train:train"}
        def __getattr__(name): return importlib.import_module(_DEFINED[name])
    """,
    "jaxrl/core/__init__.py": "",
    "jaxrl/core/types.py": "class Array: pass",
    "jaxrl/core/train.py": "from jaxrl.core.types import Array\ndef train() -> Array: pass",
    "jaxrl/losses/__init__.py": """
        from jaxrl.losses.x import *
        from jaxrl.losses.y import *
        from jaxrl.losses.z import *
    """,
    "jaxrl/losses/z.py": "__all__ = []",
    "jaxrl/losses/x.py": """
        from jaxrl.losses.y import helper
        __all__ = ["x_loss", "lonely"]
        def x_loss(): return helper()
        def lonely(): pass
    """,
    "jaxrl/losses/y.py": """
        __all__ = ["y_loss"]
        def y_loss(): return _shared()
        def helper(): return _shared()
        def _shared(): return 1
        def left_over(): return 2
    """,
    "jaxrl/kit/__init__.py": "from jaxrl.kit.net import Net\nfrom jaxrl.kit.part import Part",
    "jaxrl/kit/net.py": """
        from typing import TYPE_CHECKING
        from jaxrl.core.types import Array
        if TYPE_CHECKING:
            from jaxrl.kit.part import Part
        class Net: pass
    """,
    "jaxrl/kit/part.py": "class Part: pass",
    "jaxrl/envs/__init__.py": "from jaxrl.envs.registry import make",
    "jaxrl/envs/registry.py": """
        BUILT_IN = {"maze": "jaxrl.envs.maze:maze", "pole": "jaxrl.envs.pole:pole"}
        def make(name): return BUILT_IN[name]
    """,
    "jaxrl/envs/maze.py": "def maze(): pass",
    "jaxrl/envs/pole.py": "def pole(): pass",
    "jaxrl/algorithms/__init__.py": "def __getattr__(name): pass",
    "jaxrl/algorithms/value/__init__.py": "",
    "jaxrl/algorithms/value/shared/__init__.py": "",
    "jaxrl/algorithms/value/shared/heads.py": """
        from jaxrl import losses
        def head(): return losses.x_loss()
        def recipe(losses, more):
            y = [more for losses in more]
            return losses, y
    """,
    "jaxrl/algorithms/value/ant.py": """
        from jaxrl.algorithms.value.shared import heads
        from jaxrl.kit import Net
        def ant(): return heads.head()
        TINY = {"env": "maze"}
    """,
    "jaxrl/algorithms/value/bee.py": """
        from jaxrl.kit import Net
        def bee():
            from jaxrl.algorithms.value.ant import ant
            return ant()
        TINY = {"env": "pole"}
    """,
    "jaxrl/algorithms/value/elk.py": """
        from jaxrl.algorithms.value import ant
        def elk(): pass
        TINY = ant.TINY | {"size": 1}
    """,
    "jaxrl/algorithms/games/__init__.py": "",
    "jaxrl/algorithms/games/cow.py": """
        from jaxrl.kit import Part
        from jaxrl import losses
        NAME = "maze"  # no environment that it is tested in
        def parts(x):
            losses = x
            return lambda: losses
        def cow(): return losses.y_loss()
        TINY = {"env": "pole"}
    """,
    "experiments/claims/value/bee.py": "from jaxrl.algorithms.value.bee import bee",
    "experiments/names.py": "FILE = 'docs/names.yaml'",
    "tests/__init__.py": "",
    "tests/contracts/test_registry.py": """
        from tests.contracts import structure
        from jaxrl.algorithms.games import cow
        def test_all(): structure.check(cow)
    """,
    "tests/contracts/structure.py": "def check(x): pass",
    "tests/contracts/conftest.py": "from jaxrl.data import data",
    "jaxrl/data.py": "def data():\n    from jaxrl.algorithms.value.ant import ant",
    "tests/algorithms/value/test_ant.py": "from jaxrl.algorithms.value.ant import ant",
    "tests/algorithms/value/test_bee.py": "import jaxrl\nBEE = jaxrl.algorithms.bee",
    "tests/algorithms/games/test_cow.py": "NAME = 'cow'",
    "tests/losses/test_x.py": """
        from tests.losses.compiled import losses
        CASES = [losses.lonely, losses.x_loss]
        def expected(): return losses.lonely()
        def test_x(): assert losses.x_loss() == 1
        def test_lonely(): expected()
        def test_both(): return CASES
        def test_nothing(): pass
    """,
    "tests/losses/test_y.py": """
        from jaxrl.losses.y import helper
        def test_helper(): helper()
    """,
    "tests/losses/test_any.py": """
        from jaxrl import losses
        def test_any(): return [getattr(losses, name) for name in dir(losses)]
    """,
    "tests/losses/compiled.py": "from jaxrl import losses as all\nlosses = vars(all)",
}
ALL = {"ant", "bee", "cow", "elk"}


def write(root, tree):
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    root = tmp_path_factory.mktemp("made_up")
    write(root, TREE)
    return affected.Graph(root)


def algorithms(graph, *changed):
    return set(rota.make(graph, day=0, changed=changed).algorithms)


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ("jaxrl/losses/x.py", {"ant", "bee", "elk"}),  # through shared/heads.py
        ("jaxrl/losses/y.py", ALL),  # used by x.py, and by name
        ("jaxrl/losses/z.py", set()),
        ("jaxrl/losses/__init__.py", ALL),
        ("jaxrl/algorithms/value/shared/heads.py", {"ant", "bee", "elk"}),
        ("jaxrl/algorithms/value/bee.py", {"bee"}),  # a leaf
        ("jaxrl/algorithms/value/ant.py", {"ant", "bee", "elk"}),  # imported in a function
        ("jaxrl/kit/net.py", {"ant", "bee", "elk"}),
        ("jaxrl/kit/part.py", {"cow"}),  # of net.py's types only
        ("jaxrl/core/types.py", {"ant", "bee", "elk"}),  # under net.py
        ("jaxrl/envs/maze.py", {"ant", "elk"}),  # by TINY; in none that only imports ant
        ("jaxrl/envs/pole.py", {"bee", "cow"}),
        ("jaxrl/core/train.py", set()),
        ("tests/contracts/structure.py", ALL),  # the contract itself
        ("tests/contracts/test_registry.py", ALL),
        ("tests/contracts/conftest.py", ALL),  # its fixtures
        ("jaxrl/data.py", ALL),
        ("tests/conftest.py", ALL),
        ("pyproject.toml", ALL),
        ("tests/algorithms/value/test_ant.py", set()),
        ("README.md", set()),
    ],
)
def test_algorithms_that_a_change_can_affect(graph, changed, names):
    assert algorithms(graph, changed) == names


def test_several_changes_add_up(graph):
    changed = ("jaxrl/algorithms/value/bee.py", "jaxrl/algorithms/games/cow.py")
    assert algorithms(graph, *changed) == {"bee", "cow"}
    assert algorithms(graph) == set()


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("jaxrl/algorithms/value/bee.py", {"algorithms/value/test_bee.py"}),  # by jaxrl.algorithms
        ("jaxrl/algorithms/games/cow.py", {"algorithms/games/test_cow.py"}),  # by a string
        ("jaxrl/losses/x.py", {"losses/test_x.py", "losses/test_any.py"}),
        ("tests/losses/compiled.py", {"losses/test_x.py"}),
        ("tests/losses/test_y.py", {"losses/test_y.py"}),
    ],
)
def test_tests_that_a_change_can_affect(graph, changed, tests):
    found = {f for f in graph.impact([changed]) if "/test_" in f}
    assert {f"tests/{test}" for test in tests} <= found
    others = {"tests/losses/test_x.py", "tests/losses/test_y.py", "tests/losses/test_any.py"}
    others |= {f for f in graph.files if f.startswith("tests/algorithms/")}
    by_ant = {f"tests/algorithms/value/test_{n}.py" for n in ("ant", "bee")}
    allowed = {f"tests/{t}" for t in tests} | (by_ant if "losses/x" in changed else set())
    assert not (found & others) - allowed


def test_a_claim_and_a_file_of_data_are_followed(graph):
    claim = "experiments/claims/value/bee.py"
    assert claim in graph.impact(["jaxrl/algorithms/value/bee.py"])
    assert claim not in graph.impact(["jaxrl/algorithms/games/cow.py"])
    assert graph.impact(["docs/names.yaml"]) == {"experiments/names.py"}
    assert graph.impact(["docs/other.yaml"]) == frozenset()


def test_functions_that_nothing_uses(graph):
    plan = rota.make(graph, day=0)
    assert plan.unused == {"jaxrl/losses/x.py:lonely", "jaxrl/losses/y.py:left_over"} | {
        "jaxrl/losses/x.py:__all__", "jaxrl/losses/y.py:__all__", "jaxrl/losses/z.py:__all__",
    }  # fmt: skip


def test_functions_that_a_test_is_about(graph):
    x, lonely = "jaxrl/losses/x.py:x_loss", "jaxrl/losses/x.py:lonely"
    assert rota.make(graph, day=0).tested["tests/losses/test_x.py"] == {
        "test_x": [x], "test_lonely": [lonely], "test_both": [lonely, x], "test_nothing": [],
    }  # fmt: skip


def test_a_file_that_cannot_be_parsed_stops_nothing(tmp_path):
    write(tmp_path, TREE | {"jaxrl/losses/x.py": "def x_loss(:"})
    broken = affected.Graph(tmp_path)
    assert {"ant", "bee"} <= algorithms(broken, "jaxrl/algorithms/value/ant.py")


def test_what_was_read_is_kept_until_a_file_changes(tmp_path, monkeypatch):
    write(tmp_path, TREE)
    cache = tmp_path / "cache.json"
    first = affected.Graph(tmp_path, cache)
    read = []
    monkeypatch.setattr(affected, "facts", lambda text: read.append(text) or FACTS(text))
    assert affected.Graph(tmp_path, cache).imports == first.imports and read == []
    write(tmp_path, {"jaxrl/core/train.py": "from jaxrl.losses import x_loss"})
    again = affected.Graph(tmp_path, cache)
    assert len(read) == 1
    assert "jaxrl/losses/x.py" in again.imports["jaxrl/core/train.py"]
    cache.write_text("{")  # half written
    assert affected.Graph(tmp_path, cache).imports == again.imports


FACTS = affected.facts


def test_the_library_itself():
    """Known facts, so that no rewriting makes the graph blind."""
    graph = rota.graph()
    everything = set(graph.algorithms)
    assert algorithms(graph, "jaxrl/core/learn.py") > {"ppo", "dqn", "sac", "muzero"}
    assert algorithms(graph, "jaxrl/algorithms/value/munchausen_dqn.py") < everything
    assert "munchausen_dqn" in algorithms(graph, "jaxrl/losses/values/soft_q.py")
    assert "munchausen_dqn" in algorithms(graph, "jaxrl/algorithms/value/dqn.py")
    assert algorithms(graph, "jaxrl/losses/representations/quasimetrics.py") < everything
    assert "dreamer" in algorithms(graph, "jaxrl/envs/pixels/catch.py")
    assert 0.2 < len(rota.plan().unused) / len(json.loads(rota.plan().dump())["unused"] or [1]) <= 1


# ------------------------------------------------------------------------------------------- git


def git(root, *words):
    name = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *name, *words], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """Three commits on main that add a, b and c, and a file `later` that is not committed."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch", "main")
    for name in "abc":
        commit(root, name)
    write(root, {"later": "new"})
    return root


def commit(root, name):
    write(root, {name: name})
    git(root, "add", name)
    git(root, "commit", "--quiet", "--message", name)
    return git(root, "rev-parse", "HEAD")


def test_on_the_default_branch_it_is_the_last_commit(repository):
    base, changed = affected.change(repository)
    assert (base, changed) == (git(repository, "rev-parse", "HEAD~1"), ("c", "later"))


def test_on_another_branch_it_is_all_of_it(repository):
    left = git(repository, "rev-parse", "HEAD")
    git(repository, "switch", "--quiet", "--create", "mine")
    commit(repository, "d")
    commit(repository, "e")
    assert affected.change(repository) == (left, ("d", "e", "later"))


def test_what_is_ignored_or_undone_is_no_change(repository):
    write(repository, {".git/info/exclude": "later", "c": "c", "b": "other"})
    assert affected.change(repository)[1] == ("b", "c")


def test_a_base_that_is_told(repository, monkeypatch):
    first = git(repository, "rev-parse", "HEAD~2")
    assert affected.change(repository, first) == (first, ("b", "c", "later"))
    assert affected.change(repository, "HEAD")[1] == ("later",)
    nowhere = "0" * 40  # as CI gives it for a branch's first push
    assert affected.change(repository, nowhere)[1] == ("c", "later")


def test_a_clone_without_history_knows_what_is_not_committed(repository, tmp_path):
    shallow = tmp_path / "shallow"
    url = repository.as_uri()
    git(tmp_path, "clone", "--quiet", "--depth", "1", url, str(shallow))
    git(shallow, "switch", "--quiet", "--detach")
    git(shallow, "branch", "--delete", "--force", "main")
    assert affected.change(shallow) == ("", ())
    write(shallow, {"a": "changed", "new": "new"})
    assert affected.change(shallow) == ("", ("a", "new"))


def test_without_git_nothing_is_known(tmp_path, monkeypatch):
    write(tmp_path, {"a": "a"})
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert affected.change(tmp_path) == ("", ())
    monkeypatch.setenv("PATH", "")
    assert affected.change(tmp_path) == ("", ())
