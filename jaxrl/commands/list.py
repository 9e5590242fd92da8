"""List what there is, such as `jaxrl list envs`."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jaxrl.core.errors import UserError, unknown

Line = tuple[str, str]


def main(argv: Sequence[str]) -> int:
    usage = f"jaxrl list {'|'.join(KINDS)} [WORDS]"
    if {"-h", "--help"} & set(argv):
        print(usage)
        return 0
    if not argv:
        raise UserError(f"Say what to list; usage: {usage}.")
    kind, *words = argv
    if kind not in KINDS:
        raise unknown("kind of thing to list", kind, KINDS)
    searched = slice(2 if kind == "papers" else 1)  # the name; for a paper the whole line
    lines = [line for line in KINDS[kind]() if _has(" ".join(line[searched]), words)]
    if not lines:
        where = "line" if kind == "papers" else "name"
        raise UserError(f"None of the {kind} has '{' '.join(words)}' in its {where}.")
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        print(f"{name:<{width}}  {text}".rstrip())
    return 0


def envs() -> Iterable[Line]:
    from jaxrl.envs.registry import BUILT_IN

    for name, path in sorted(BUILT_IN.items()):
        yield name, _first_sentence(_docstring(*path.split(":")))


def wrappers() -> Iterable[Line]:
    from jaxrl.envs import wrappers as room
    from jaxrl.envs.wrappers import registry

    for name in registry.names():
        yield name, _first_sentence(inspect.getdoc(getattr(room, name)) or "")


def algorithms() -> Iterable[Line]:
    from jaxrl.algorithms import registry

    for name, path in sorted(registry.built_in().items()):
        yield name, _first_sentence(_docstring(path.partition(":")[0]))


def configs() -> Iterable[Line]:
    from jaxrl.runtime import configuration

    for name, path in configuration.shipped_files().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
        yield name, _first_sentence(" ".join(line.lstrip("# ") for line in comment))


def losses() -> Iterable[Line]:
    """List the losses, also by other names that people type, such as SimPO."""
    from jaxrl import losses as room
    from jaxrl.core.aliases import aliases

    for name in sorted(dir(room)):
        value = getattr(room, name)
        if inspect.isfunction(value) and not name.startswith("_"):
            yield name, _first_sentence(inspect.getdoc(value) or "")
    for name, here in aliases().items():
        yield name, here if isinstance(here, str) else f"see {', '.join(here)}"


def suites() -> Iterable[Line]:
    from jaxrl.suites import suite

    for path in sorted(suite.SUITES.glob("*.yaml")):
        found = suite.read(path.stem)
        yield path.stem, f"{', '.join(found.algorithms)} in {', '.join(found.environments)}"


def policies() -> Iterable[Line]:
    from jaxrl.runtime import policy_files

    for name in policy_files.names():
        about = policy_files.read_about(policy_files.find(name))
        found = about["evaluation"]
        low, high = found["interval"]
        yield (
            f"{policy_files.PREFIX}{name}",
            f"{about['env']}: return {found['return']:.4g} [{low:.4g}, {high:.4g}] in "
            f"{found['episodes']} episodes, after {about['step']:,} updates",
        )


def claims() -> Iterable[Line]:
    from jaxrl.algorithms import registry

    text = Path(registry.__file__).with_name("claims.tsv").read_text(encoding="utf-8")
    for line in text.splitlines():
        verdict, name, claim = line.split("\t")
        yield name, f"{verdict}: {claim}"


def papers() -> Iterable[Line]:
    """Papers with what implements them and what their claims came to."""
    from jaxrl.papers import index

    here = index.implementations()
    for paper in index.papers().values():
        about = [paper.family, paper.tier and f"class {paper.tier}", str(paper.year or "")]
        about += [f"arXiv:{paper.arxiv}" if paper.arxiv else "", *paper.also]
        names = ", ".join(part.name for part in here.get(paper.id, ())) or "not yet"
        claims = [f"; claim {id}: {said}" for id, said in index.verdicts(paper).items()]
        claims += [f"; no claim: {paper.no_claim}"] if paper.no_claim else []
        title = f"{paper.title} ({', '.join(filter(None, about))})"
        yield paper.id, f"{title}: {names}{''.join(claims)}"


KINDS: dict[str, Callable[[], Iterable[Line]]] = {
    "envs": envs,
    "wrappers": wrappers,
    "algorithms": algorithms,
    "configs": configs,
    "losses": losses,
    "suites": suites,
    "pretrained": policies,
    "claims": claims,
    "papers": papers,
}


def _has(text: str, words: Sequence[str]) -> bool:
    """Return whether every word is somewhere in the text, in upper or lower case."""
    return all(word.lower() in text.lower() for word in words)


def _docstring(module: str, attribute: str = "") -> str:
    """Return the docstring of a function in a module, or else that of the module.

    It is read from the source file, since importing all of them would take long.
    """
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = [x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == attribute]
    found = [ast.get_docstring(node) for node in (*functions, tree)]
    return next((text for text in found if text), "")


def _first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z0-9)])\. (?=[A-Z])", paragraph)[0].rstrip(".:")
