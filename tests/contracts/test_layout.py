"""Names mirror each other, every file lies in its room, and no two modules import each other.

An algorithm, its tests, its configurations and its claim share a name or a family. Lists of
exceptions only get shorter: an entry that is no longer true fails.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import yaml

from jaxrl.algorithms import registry
from jaxrl.algorithms.families import NAMES as FAMILIES
from tests import rota

ROOT = rota.ROOT
# Folders of tests that mirror no room of the library, and what they test.
ELSEWHERE = {
    "contracts": "jaxrl",
    "evidence": "experiments/evidence",
    "experiments": "experiments",
    "learning": "jaxrl",
    "notebooks": "notebooks",
}

# --------------------------------------------------------------------------- to become empty

UNTESTED: frozenset[str] = frozenset()
WITHOUT_CONFIGURATION = frozenset({"lpg"})  # it needs a rule that ta_lpg has learned
MISNAMED_CONFIGURATIONS: frozenset[str] = frozenset()
CIRCLES: frozenset[frozenset[str]] = frozenset()
ROOMS_IN_CIRCLES: frozenset[tuple[str, str]] = frozenset()
# It uses the kit through algorithms.
TESTS_ELSEWHERE = frozenset({"tests/kit/test_builder.py"})


def assert_only(found: Iterable, known: Iterable, what: str) -> None:
    """Breaches found are those known, no more and no fewer."""
    found, known = set(found), set(known)
    assert not found - known, f"{what}: {sorted(map(str, found - known))}"
    assert not known - found, f"no longer, so strike out: {sorted(map(str, known - found))}"


# -------------------------------------------------------------------------------- algorithms

ALGORITHMS = rota.graph().algorithms


def family(path: str) -> str:
    """Family of a file below jaxrl/algorithms or tests/algorithms, or of a claim."""
    return path.split("/")[2]


@pytest.mark.parametrize("folder", ["jaxrl/algorithms", "tests/algorithms", "experiments/claims"])
def test_the_families_are_those_of_the_one_list(folder):
    found = {p.name for p in (ROOT / folder).iterdir() if p.is_dir() and p.name[0] not in "_."}
    assert found <= set(FAMILIES)
    assert found, folder


def test_every_file_in_a_family_is_a_published_algorithm():
    """Code that several share lies in <family>/shared."""
    assert set(ALGORITHMS) == set(registry.names())
    assert len(ALGORITHMS) == len([f for f in rota.graph().files if is_directly_in_a_family(f)])


def is_directly_in_a_family(file: str) -> bool:
    parts = file.split("/")
    return parts[:2] == ["jaxrl", "algorithms"] and len(parts) == 4 and parts[3] != "__init__.py"


def test_only_shared_lies_below_a_family():
    deep = [f.split("/") for f in rota.graph().files if f.startswith("jaxrl/algorithms/")]
    assert {parts[3] for parts in deep if len(parts) > 4} == {"shared"}


def test_every_algorithm_has_a_test_of_its_family_that_names_it():
    assert_only(without_a_test(), UNTESTED, "no file in tests/algorithms/<family> imports or names")


def without_a_test() -> set[str]:
    graph = rota.graph()
    named = {
        (family(test), algorithm)
        for test in graph.files
        if test.startswith("tests/algorithms/")
        for algorithm in graph.imports[test]
    }
    return {name for name, file in ALGORITHMS.items() if (family(file), file) not in named}


@functools.cache
def configurations() -> Mapping[str, str]:
    """File below configs/ -> its algorithm."""
    files = sorted((ROOT / "configs").rglob("*.yaml"))
    return {
        str(file.relative_to(ROOT / "configs")): yaml.safe_load(file.read_text())["algorithm"]
        for file in files
    }


def test_configurations_lie_in_the_folder_of_their_algorithm():
    misnamed = {file for file, name in configurations().items() if file.split("/")[0] != name}
    assert_only(misnamed, MISNAMED_CONFIGURATIONS, "not in configs/<algorithm>")
    assert_only(
        set(ALGORITHMS) - set(configurations().values()),
        WITHOUT_CONFIGURATION,
        "no configuration in configs/<algorithm>",
    )


def claims() -> list[Path]:
    return [p for p in sorted((ROOT / "experiments/claims").glob("*/*.py")) if p.name[0] != "_"]


def parts_of(claim: Path) -> list[str]:
    """The files of algorithms that a claim lists, with those that several share."""
    strings = [n.value for n in ast.walk(ast.parse(claim.read_text())) if is_string(n)]
    return [s for s in strings if s.startswith("jaxrl/algorithms/") and s.endswith(".py")]


def is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


# Claims about a game of their family, in which an algorithm of another one learns.
OF_ENVIRONMENTS = {"information_modulation", "stat_arb_dqn"}


@pytest.mark.parametrize("claim", claims(), ids=lambda path: path.stem)
def test_a_claim_lies_in_the_family_of_its_algorithm(claim):
    """The first algorithm that it lists; a claim over several families may lie in evaluation."""
    listed = parts_of(claim)
    own = [family(file) for file in listed if file in set(ALGORITHMS.values())]
    several = len({family(file) for file in listed}) > 1
    found = not own or claim.parent.name in {own[0], *(["evaluation"] if several else [])}
    assert found != (claim.stem in OF_ENVIRONMENTS)


def test_claims_are_found():
    assert len(claims()) > 30
    assert any(parts_of(claim) for claim in claims())


# ----------------------------------------------------------------------------------- imports


@functools.cache
def edges() -> Mapping[str, frozenset[str]]:
    """File of the library -> files whose names it imports anywhere, for types too. The package's
    own file, which imports everything late, is left out."""
    graph = rota.graph()
    result = {}
    for file in graph.files:
        if file.startswith("jaxrl/") and file != "jaxrl/__init__.py":
            said = graph.facts[file]
            dotted = [*said.binds.values(), *said.typing.values(), *said.stars]
            found = {f for name in dotted for f, _ in graph.resolve(name, whole=False)}
            result[file] = frozenset(found - {file, "jaxrl/__init__.py"})
    return result


def circles(edges: Mapping[str, Iterable[str]]) -> set[frozenset[str]]:
    """Sets of nodes that all reach each other (Tarjan's algorithm)."""
    order, low, stack = {}, {}, []
    found: set[frozenset[str]] = set()
    count = itertools.count()

    def visit(node: str) -> None:
        order[node] = low[node] = next(count)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            circle = set()
            while node not in circle:
                circle.add(stack.pop())
            if len(circle) > 1:
                found.add(frozenset(circle))

    for node in edges:
        if node not in order:
            visit(node)
    return found


def test_circles_are_found():
    tree = {"a": "b", "b": "c", "c": "d"}
    assert circles(tree) == set()
    assert circles({**tree, "c": "bd", "d": "ef", "e": "d"}) == {frozenset("bc"), frozenset("de")}


def test_no_modules_import_each_other():
    assert_only(circles(edges()), CIRCLES, "modules import each other, in a circle")


def test_no_rooms_import_each_other():
    """The direction in which rooms import is in tests/test_imports.py."""
    room = lambda file: file.split("/")[1]
    between = {(room(a), room(b)) for a, others in edges().items() for b in others}
    both = {(a, b) for a, b in between if a < b and (b, a) in between}
    assert_only(both, ROOMS_IN_CIRCLES, "rooms import each other")


# -------------------------------------------------------------------------------------- tests


def test_every_test_file_lies_where_what_it_tests_lies():
    """A file in tests/<room> uses something of jaxrl/<room>, itself or by helpers of the tests."""
    assert_only(elsewhere(), TESTS_ELSEWHERE, "tests that use nothing of the room they lie in")


def elsewhere() -> set[str]:
    graph = rota.graph()
    found = set()
    for test in graph.files:
        folders = test.split("/")[1:-1]
        if not test.startswith("tests/") or not folders or "/test_" not in test:
            continue
        if folders[0] == "notebooks":
            continue
        used = set(graph.imports[test])
        used |= graph.closure(file for file in used if file.startswith("tests/"))
        room = f"{room_of(folders[0])}/"
        if not any(file.startswith(room) for file in used):
            found.add(test)
    return found


def room_of(folder: str) -> str:
    return ELSEWHERE.get(folder, f"jaxrl/{folder}")


def test_every_folder_of_tests_mirrors_a_room():
    for folder in sorted(p for p in (ROOT / "tests").rglob("*") if is_code(p)):
        top, *deeper = folder.relative_to(ROOT / "tests").parts
        assert (ROOT / room_of(top)).joinpath(*deeper).is_dir(), folder


def is_code(path: Path) -> bool:
    return path.is_dir() and path.name[0] not in "_." and any(path.rglob("*.py"))
