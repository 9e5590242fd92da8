"""Selection of tests by what a change can affect, and of the others by the day.

Three hundred algorithms are too many to test each time. The ones that a change can affect
(`affected.py`) are tested whole; the others take turns, a few each day, so that all are tested
within a period; `make test-all` tests everything. One plan is made at the start of a run and shared
by its workers, so neither midnight nor a file saved in the meantime changes anything.

    JAXRL_DAY    the day, as a number of days since 1970; default: today (UTC)
    JAXRL_BASE   the commit to compare with; default: see `affected.change`
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import pathlib
import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from tests import affected

ROOT = pathlib.Path(__file__).resolve().parents[1]
DAY, BASE, PLAN = "JAXRL_DAY", "JAXRL_BASE", "JAXRL_PLAN"

# Folders of functions under one contract (tests/losses/contract.py).
ROOMS = ("losses", "diffusion", "gradients", "solvers")
# The contract that holds every algorithm, and the algorithms that are always tested.
CONTRACT = "tests/contracts/test_registry.py"
CORE = ("dqn", "iql", "muzero", "ppo")
# Days in which all tests of functions that nothing uses have their turn.
UNUSED = 5
# Folders of tests whose files take turns where a change cannot affect them, and the days in which
# all have theirs. Files that read configurations, records, pages or other tests always run, since
# the graph of imports does not see these.
TAKING_TURNS = tuple(
    f"tests/{folder}/"
    for folder in (
        *("core", "datasets", "envs", "evaluation", "evidence", "exact", "export", "kit"),
        *("learning", "networks", "runtime", "sources", "sweeps", "tasks", *ROOMS),
    )
)
ALWAYS = frozenset(
    f"tests/{file}.py"
    for file in (
        *("core/test_checks", "evidence/test_pages", "evidence/test_run", "losses/test_index"),
        "runtime/test_configuration",
    )
)
FILE_TURNS = 4
# Test files of algorithms that have their turn each day, and the largest number of affected ones
# that all run.
FILES, MOST_FILES = 16, 40
# Largest number of affected functions of `ROOMS` that CI tests in every respect.
MOST_FUNCTIONS = 150
# Largest number of affected claims of which CI runs a tiny attempt each (half a minute); of more,
# those in turn.
MOST_CLAIMS = 6


# ---------------------------------------------------------------------------------------- turns


def in_turn(name: str, one_in: int, day: int) -> bool:
    """Return whether it is the turn of `name`, which comes every `one_in` days."""
    return (zlib.crc32(name.encode()) + day) % one_in == 0


def period(count: int, size: int) -> int:
    """Return the days in which `count` names all have their turn, about `size` each day.

    Never a multiple of seven: tests that run on Mondays only would always meet the same names.
    """
    days = max(1, -(-count // size))
    return days + (days % 7 == 0)


def choose(
    families: Mapping[str, str],
    affected: Iterable[str],
    *,
    day: int,
    size: int,
    most: int,
    core: Iterable[str] = (),
) -> set[str]:
    """Choose the names to test on a day: the core, the names in turn, and the affected ones.

    If more than `most` are affected, one of each family is chosen instead, another each day.

    families: name -> family, of all names.
    size: names in turn each day, about.
    """
    core, affected = set(core) & set(families), sorted(set(affected) & set(families))
    others = [name for name in families if name not in core]
    days = period(len(others), size)
    chosen = core | {name for name in others if in_turn(name, days, day)}
    if len(affected) <= most:
        return chosen | set(affected)
    for family in {families[name] for name in affected}:
        members = [name for name in affected if families[name] == family]
        chosen.add(members[day % len(members)])
    return chosen


# ----------------------------------------------------------------------------------------- plan


@dataclasses.dataclass(frozen=True)
class Plan:
    """Choice of the tests of one run.

    day: days since 1970.
    base: commit that the files are compared with; "" if git knows none.
    changed: files that differ from it.
    files: files that this can affect.
    algorithms: algorithms that this can affect, by name.
    families: algorithm -> family, of all.
    claims: claims that this can affect, by the names of their files; none if they are more than
        `MOST_CLAIMS`.
    functions: functions of `ROOMS` in files that this can affect, by name; none if they are more
        than `MOST_FUNCTIONS`.
    own: test file of algorithms -> family, of all.
    unused: functions of `ROOMS` that nothing else in the library uses, as `file:name`.
    tested: test file of `ROOMS` -> test -> functions of `ROOMS` that it uses, as `file:name`.
    everything: whether no test rests, as when tests are asked for by name.
    """

    day: int
    base: str
    changed: tuple[str, ...]
    files: frozenset[str]
    algorithms: frozenset[str]
    families: Mapping[str, str]
    claims: frozenset[str]
    functions: frozenset[str]
    own: Mapping[str, str]
    unused: frozenset[str]
    tested: Mapping[str, Mapping[str, tuple[str, ...]]]
    everything: bool = False

    def __str__(self) -> str:
        since = f"since {self.base[:10]}" if self.base else "not committed"
        algorithms = f"{len(self.algorithms)} of {len(self.families)} algorithms"
        if self.everything:
            return f"no test rests; the {len(self.changed)} files changed can affect {algorithms}"
        return (
            f"day {self.day} ({DAY}); {len(self.changed)} files changed {since} ({BASE}) "
            f"can affect {algorithms}"
        )

    def algorithms_today(self, size: int, most: int) -> set[str]:
        """Algorithms to hold against the contract; see `choose`."""
        if self.everything:
            return set(self.families)
        options = {"day": self.day, "size": size, "most": most, "core": CORE}
        return choose(self.families, self.algorithms, **options)

    def rests(self, file: str, test: str, case: str = "") -> bool:
        """Return whether a test leaves its place to others today.

        file: test file, from the root of the repository.
        test: name of the test function.
        case: function of `ROOMS` that the test is about, as `file:name`, if there is one.
        """
        if self.everything:
            return False
        if file in self.own:
            return file not in self.own_today
        if file in self.files:
            return False
        takes_turns = file.startswith(TAKING_TURNS) and file not in ALWAYS
        if takes_turns and not in_turn(subject(file), FILE_TURNS, self.day):
            return True
        if file not in self.tested:
            return False
        functions = [case] if case else self.tested[file].get(test, ())
        if not functions or not self.unused.issuperset(functions):
            return False
        return not in_turn(functions[0], UNUSED, self.day)

    @functools.cached_property
    def own_today(self) -> set[str]:
        """Test files of algorithms to run; see `choose`."""
        return choose(self.own, self.files, day=self.day, size=FILES, most=MOST_FILES)

    def dump(self) -> str:
        """Write the plan as JSON."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps(fields, default=sorted)


def load(text: str) -> Plan:
    """Read a plan that was written by `Plan.dump`."""
    fields: dict[str, Any] = json.loads(text)
    for name in ("files", "algorithms", "claims", "functions", "unused"):
        fields[name] = frozenset(fields[name])
    return Plan(**{**fields, "changed": tuple(fields["changed"])})


def make(graph: affected.Graph, *, day: int, base: str = "", changed: Iterable[str] = ()) -> Plan:
    """Plan the tests of a day after the files `changed` were changed."""
    changed = tuple(sorted(changed))
    files = graph.impact(changed)
    algorithms = {
        name for name, file in graph.algorithms.items() if file in files or graph.tiny(file) & files
    }
    if set(changed) & _machinery(graph):
        algorithms = set(graph.algorithms)

    claims = {_stem(f) for f in files if f.startswith("experiments/claims/")}
    rooms = [file for file in graph.files if file.startswith(tuple(f"jaxrl/{r}/" for r in ROOMS))]
    others = {f for f in graph.files if f.startswith("jaxrl/")} - set(rooms)
    modules = [file for file in rooms if not file.endswith("__init__.py")]
    public = {(file, name) for file in modules for name in graph.facts[file].uses if name}
    functions = {name for file, name in public if file in files}
    unused = public - graph.definitions_used(others, rooms)
    tested = {
        file: {
            test: sorted(_label(*found) for found in used & public)
            for test, used in graph.used_by_tests(file).items()
        }
        for file in graph.files
        if file.startswith(tuple(f"tests/{room}/" for room in ROOMS)) and "/test_" in file
    }
    own = [file.split("/") for file in graph.files if file.startswith("tests/algorithms/")]
    return Plan(
        day=day,
        base=base,
        changed=changed,
        files=files,
        algorithms=frozenset(algorithms),
        families={name: file.split("/")[2] for name, file in sorted(graph.algorithms.items())},
        claims=frozenset(claims if len(claims) <= MOST_CLAIMS else ()),
        functions=frozenset(functions if len(functions) <= MOST_FUNCTIONS else ()),
        own={"/".join(x): x[2] for x in own if len(x) == 4 and x[3].startswith("test_")},
        unused=frozenset(_label(*found) for found in unused),
        tested=tested,
    )


def _stem(file: str) -> str:
    return pathlib.PurePosixPath(file).stem


def _label(file: str, name: str) -> str:
    return f"{file}:{name}"


def subject(file: str) -> str:
    """Return what a test file is about: the same name for `tests/losses/values/test_soft_q.py` as
    for `jaxrl/losses/values/soft_q.py`."""
    path = pathlib.PurePosixPath(file)
    return "/".join([*path.parts[1:-1], path.stem.removeprefix("test_")])


def label(case: Any) -> str:
    """Return `file:name` of the function that a case is about, "" if there is none."""
    function = getattr(case, "function", None)
    if not inspect.isfunction(function):
        return ""
    return _label(f"{function.__module__.replace('.', '/')}.py", function.__name__)


def _machinery(graph: affected.Graph) -> frozenset[str]:
    """Return the files that the contract itself depends on, without the algorithms it names."""
    if CONTRACT not in graph.imports:
        return frozenset()
    return graph.closure([CONTRACT], without=graph.algorithms.values())


@functools.cache
def graph() -> affected.Graph:
    """Return the graph of this repository."""
    cache = ROOT / ".pytest_cache" / "imports.json"
    cache.parent.mkdir(exist_ok=True)
    return affected.Graph(ROOT, cache)


@functools.cache
def plan() -> Plan:
    """Return the plan of this run, which the process that started it may have made."""
    if path := os.environ.get(PLAN):
        return load(pathlib.Path(path).read_text())
    day = int(os.environ.get(DAY) or time.time() // 86_400)
    base, changed = affected.change(ROOT, os.environ.get(BASE, ""))
    return make(graph(), day=day, base=base, changed=changed)


def mark(name: str, one_in: int, turn: str = "", *, file: str = "") -> str:
    """Return the mark of a test that CI runs for affected names and for others in turn.

    It is `slow`, which CI runs, if a change can affect `name` or it is its turn, which comes every
    `one_in` days; `rest`, which only `make test-all` runs, otherwise.

    name: a claim, a function of `ROOMS`, or anything else.
    turn: name that decides when it is its turn; `name` by default.
    file: file, from the root of the repository, that affects `name` when it changes.
    """
    today = plan()
    known = today.claims | today.functions
    is_affected = today.everything or name.replace("-", "_") in known or file in today.changed
    return "slow" if is_affected or in_turn(turn or name, one_in, today.day) else "rest"
