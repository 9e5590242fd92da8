"""Write docs/algorithms: a page for each algorithm of the registry, and an index of them.

    python experiments/document_algorithms.py

A page is made of what the code and the records say: docstrings, settings, configurations, records
of suites and claims, and the source of the update (`experiments/flatten.py`). Only what lies in
docs/algorithms/details is written by hand: `{optimizer.eps}` there becomes the setting with its
default. A test holds the pages to what this writes.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments import flatten
from experiments.docstrings import as_markdown, fence, first_line
from experiments.evidence import findings, listing, run
from experiments.evidence.findings import Findings
from experiments.evidence.words import escape, todays
from jaxrl import losses
from jaxrl.algorithms import describe, registry
from jaxrl.algorithms.families import FAMILIES
from jaxrl.core import settings
from jaxrl.kit import Net
from jaxrl.papers import index as papers
from jaxrl.runtime import configuration
from jaxrl.suites import page as suite_page
from jaxrl.suites.suite import read as read_suite

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "algorithms"
DETAILS = FOLDER / "details"
FOLDED = 8  # means of claims above which their table is folded
UP = "../.."  # the root of the repository, from a page
# Those whose pages also have implementation details and a listing of the update.
DETAILED = ("ppo", "dqn", "sac", "td3", "rainbow", "muzero", "dreamer", "grpo", "dpo", "iql")
NOTE = "<!-- Written by experiments/document_algorithms.py; do not edit. -->"

INDEX_HEAD = f"""{NOTE}

# Algorithms

Every algorithm that `--algorithm NAME` and `jaxrl.algorithms` know. Each has a page: the command
that trains it, what it reached, its settings with their sources, its losses, its claim, and how it
differs from its paper. The pages of {{detailed}} also list the implementation details that matter,
and the whole update with its losses in one piece.

    jaxrl list algorithms
    jaxrl show ppo
"""

SETTINGS_HEAD = """`--NAME VALUE` sets one on the command line. The end of a name is enough, such
as `--learning-rate`, unless several settings end so. Settings marked \\* are arrays: `--vary`
sweeps them in one program."""

# What marks a sentence of a docstring that begins to say how the algorithm differs from its paper.
DIFFERS = re.compile(
    r"\b(unlike|differences from|left out|is ours|are ours|not implemented|later versions use"
    r"|(in|by) the paper[,:)]|where the paper|only (its|the paper's) abstract"
    r"|the paper (estimates|has|uses|trains|clips|sums|penalizes)|the first paper uses"
    r"|the authors' (code|critic)|than the paper's)",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"(?<=[.)])\s+(?=[A-Z(])")


# ------------------------------------------------------------------------------- pages


def pages() -> dict[Path, str]:
    """Return the text of every page by its file."""
    found = {FOLDER / f"{name}.md": page(name) for name in registry.names()}
    return {FOLDER / "index.md": index()} | found


def page(name: str) -> str:
    """Return the page of an algorithm."""
    about, differences = split_description(describe.text(name))
    sections = [
        NOTE,
        f"# {name}",
        links(as_markdown(about)),
        f"{family_link(name)} · [code]({UP}/{path(name)}) · `jaxrl.algorithms.{name}`",
        "## Train it\n\n" + training(name),
        section("Results", results(name)),
        section("Papers and claims", claims(name)),
        section("What differs from the paper", [*differences, *left_untested(name)]),
        section("Implementation details", details(name)),
        section("Losses", losses_used(name)),
        "## Settings\n\n" + settings_tables(name),
        section("The update in one piece", update_listing(name)),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def section(title: str, paragraphs: Sequence[str]) -> str:
    """Return a section, or nothing where there is nothing to say."""
    return "\n\n".join([f"## {title}", *paragraphs]) if paragraphs else ""


def index() -> str:
    """Return the page that lists all algorithms by family."""
    detailed = ", ".join(f"[{name}]({name}.md)" for name in DETAILED)
    sections = [INDEX_HEAD.format(detailed=detailed).strip()]
    for heading, names in families().items():
        lines = [f"- [{name}]({name}.md): {summary(name)}" for name in names]
        sections.append(f"## {heading}\n\n" + "\n".join(lines))
    return "\n\n".join(sections) + "\n"


def navigation() -> list[dict[str, list[str]]]:
    """Return the pages of each family, as the navigation of the site lists them."""
    return [
        {heading: [f"algorithms/{name}.md" for name in names]}
        for heading, names in families().items()
    ]


def families() -> dict[str, list[str]]:
    """Return the algorithms of each family that has some, by its heading."""
    known = registry.built_in()
    found = {
        family.heading: [name for name, target in known.items() if folder(target) == family.name]
        for family in FAMILIES
    }
    return {heading: sorted(names) for heading, names in found.items() if names}


def folder(target: str) -> str:
    """Return the family's folder of an algorithm, "value" of "jaxrl.algorithms.value.dqn:dqn"."""
    return target.split(".")[2]


def family_link(name: str) -> str:
    (heading,) = (heading for heading, names in families().items() if name in names)
    return f"[{heading}](index.md#{heading.lower().replace(' ', '-')})"


def path(name: str) -> str:
    """Return the file of an algorithm, from the root of the repository."""
    return registry.built_in()[name].partition(":")[0].replace(".", "/") + ".py"


# ------------------------------------------------------------------------------- description


def summary(name: str) -> str:
    """Return the first sentence about an algorithm."""
    text = first_line(describe.text(name))
    text = re.sub(r"\(([^()]*?\b\d{4})\b[^()]*\)", r"(\1)", text, count=1)  # authors and year
    end = re.search(r"(?<!al)(?<!vs)(?<!e\.g)(?<!i\.e)\.(?= [A-Z])", text)
    return escape(text[: end.start()] if end else text.rstrip(".")) + "."


def split_description(text: str) -> tuple[str, list[str]]:
    """Return what a module's docstring says of the algorithm, and how it differs from its paper.

    The latter begins, in each paragraph but the first, with the first sentence that says so.
    """
    first, *rest = re.split(r"\n\s*\n", text)
    about, differences = [first], []
    for paragraph in rest:
        ends = [0, *(x.end() for x in SENTENCE.finditer(paragraph)), len(paragraph)]
        starts = (
            start
            for start, end in itertools.pairwise(ends)
            if DIFFERS.search(" ".join(paragraph[start:end].split()))
        )
        begin = next(starts, len(paragraph))
        about.append(paragraph[:begin].rstrip())
        differences.append(paragraph[begin:])
    return (
        "\n\n".join(filter(None, about)),
        [links(as_markdown(x)) for x in differences if x],
    )


def links(text: str) -> str:
    """Return text with a link at every arXiv number, outside of code."""
    pieces = re.split(r"(````.*?````|`[^`]*`)", text, flags=re.DOTALL)
    number = r"\barXiv:\s?(\d{4}\.\d{4,5})\b"
    linked = r"[arXiv:\1](https://arxiv.org/abs/\1)"
    return "".join(x if i % 2 else re.sub(number, linked, x) for i, x in enumerate(pieces))


# ------------------------------------------------------------------------------- training


def training(name: str) -> str:
    """Return the command that trains an algorithm, and its configurations with their returns."""
    found = configurations().get(name, {})
    if not found:
        env = registry.tiny(name)[0].name
        return (
            f"    jaxrl train --algorithm {name} --env {env}\n\n"
            "No configuration comes with jaxrl, so nothing was tuned; other environments and "
            "settings work the same way."
        )
    lines = [f"    jaxrl train {shipped}" for shipped in found]
    rows = [
        f"- [{shipped}]({UP}/configs/{shipped}.yaml): {escape(said)}"
        for shipped, said in found.items()
    ]
    return "\n".join([*lines, "", "What the configurations reached:", "", *rows])


@functools.cache
def configurations() -> Mapping[str, Mapping[str, str]]:
    """Return the configurations of each algorithm, with the comment at the head of the file."""
    found: dict[str, dict[str, str]] = {}
    for shipped, file in configuration.shipped_files().items():
        text = file.read_text(encoding="utf-8")
        comment = "".join(itertools.takewhile(lambda x: x[0] == "#", text.splitlines(True)))
        said = " ".join(line.strip("# ") for line in comment.splitlines())
        algorithm = yaml.safe_load(text).get("algorithm", "ppo")
        found.setdefault(algorithm, {})[shipped] = said
    return found


# ------------------------------------------------------------------------------- results


def results(name: str) -> list[str]:
    """Return tables of an algorithm's returns in suites and in claims, with learning curves."""
    found = [x for suite in suites() for x in suite_results(name, suite)]
    rows = list(claim_results(name))
    if rows:
        means = table(["environment", "mean", "side", "metric", "claim"], rows)
        if len(rows) > FOLDED:
            means = f"<details><summary>{len(rows)} means</summary>\n\n{means}\n\n</details>"
        found += [
            "In claims, on seeds that nothing was tuned on: mean over seeds with its 95 % "
            "interval, and in parentheses where it lies between random play (0 %) and the best "
            "known after as many steps (100 %).",
            means,
        ]
    return found


@functools.cache
def suites() -> tuple[str, ...]:
    """Return the names of the suites that have records."""
    return tuple(sorted(file.stem for file in (ROOT / "docs" / "suites").glob("*.json")))


@functools.cache
def suite_records(suite: str) -> list[dict[str, Any]]:
    """Return the records of a suite."""
    return json.loads((ROOT / "docs" / "suites" / f"{suite}.json").read_text(encoding="utf-8"))


def suite_results(name: str, suite: str) -> Iterator[str]:
    """Yield paragraphs about an algorithm's returns in a suite, and the curves in one of its
    environments."""
    known = [x for x in suite_records(suite) if x["config"]["algorithm"] == name]
    if not known:
        return
    rows, declared = [], read_suite(suite)
    for x in known:
        steps, seeds = f"{x['config']['steps']:,}", str(x["config"]["seeds"])
        values = suite_page.finals(x, declared.last)
        value = suite_page.estimate(values, "{:,.0f}" if abs(values).max() >= 1000 else "{:.3g}")
        label = x["environment"]
        where = f"[{label}](../suites/{suite}.md#{label})"
        rows.append([where, value.replace(" ", "&nbsp;"), steps, seeds, x["algorithm"]])
    yield (
        f"In the suite [{suite}](../suites/{suite}.md): {suite_page.policies(declared).lower()} "
        f"{suite_page.when(declared)}, interquartile mean over seeds, with its 95 % interval."
    )
    yield table(["environment", "return", "steps", "seeds", "label"], rows)
    first = known[0]["environment"]
    yield f"![Learning curves in {first}](../suites/{suite}-{first}.svg)"


def claim_results(name: str) -> Iterator[list[str]]:
    """Yield rows of the means that claims report of an algorithm."""
    for claim in all_findings():
        sides = [side for side, algorithm in side_algorithms(claim).items() if algorithm == name]
        for metric, environment, means in findings.means(claim):
            for side in sides:
                if side in means:
                    mean = means[side].replace(" ", "&nbsp;")
                    yield [environment, mean, escape(side), metric, claim_link(claim)]


def side_algorithms(claim: Findings) -> dict[str, str]:
    """Return the algorithm that each side of a claim trains."""
    sides = claim.declared.get("sides", {})
    names = {side: x["algorithm"] for side, x in sides.items()}
    plain = {k: x[-1].rpartition(":")[2] if isinstance(x, list) else x for k, x in names.items()}
    return {side: algorithm.split(" ")[0] for side, algorithm in plain.items()}


# ------------------------------------------------------------------------------- claims


@functools.cache
def all_findings() -> tuple[Findings, ...]:
    """Return every claim with all that came out."""
    return tuple(run.gather(listing.discover(ROOT).values()))


def claim_link(claim: Findings, text: str = "") -> str:
    return f"[{text or claim.id}]({UP}/{claim.file})"


def claims(name: str) -> list[str]:
    """Return a list of an algorithm's papers with the verdicts of their claims."""
    by_id = {claim.id: claim for claim in all_findings()}
    lines = []
    for paper in papers_of(name):
        number = f", [arXiv:{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})"
        about = f'"{escape(paper.title)}"'
        about += f" ({paper.year}{number if paper.arxiv else ''})" if paper.year else ""
        known = [by_id[id] for id in papers.verdicts(paper)]
        verdicts = [
            f"{claim_link(claim, str(claim.standing))}: {escape(claim.declared['claim'])}"
            for claim in known
        ]
        lines.append(f"- {about}. Claim: {'; '.join(verdicts) or 'none tested yet'}")
    others = [
        claim_link(claim) + f" ({claim.standing})"
        for claim in all_findings()
        if name in side_algorithms(claim).values() and claim not in own_claims(name)
    ]
    found = ["\n".join(lines)] if lines else []
    return found + ([f"Other claims that train it: {', '.join(others)}."] if others else [])


def papers_of(name: str) -> list[papers.Paper]:
    """Return an algorithm's papers, first those that its docstring cites at once."""
    found = [
        paper
        for id, paper in papers.papers().items()
        if any(part.name == f"algorithms.{name}" for part in papers.implementations().get(id, ()))
    ]
    first = papers.citations(first_line(describe.text(name)))
    return sorted(found, key=lambda paper: paper.id not in first)


def own_claims(name: str) -> list[Findings]:
    """Return the claims of an algorithm's papers."""
    ids = {id for paper in papers_of(name) for id in papers.verdicts(paper)}
    return [claim for claim in all_findings() if claim.id in ids]


def left_untested(name: str) -> list[str]:
    """Return what the claims of an algorithm's papers leave out, and how their sides deviate."""
    found = []
    for claim in own_claims(name):
        algorithms = side_algorithms(claim)
        if name not in algorithms.values():
            continue
        lines = [f"The claim {claim_link(claim)} leaves out: {plain(claim.declared['left_out'])}"]
        for side, declared in claim.declared["sides"].items():
            if declared.get("deviates") and algorithms[side] == name:
                lines.append(f"Its side *{escape(side)}*: {plain(declared['deviates'])}")
        found.append(" ".join(lines))
    return found


def plain(text: str) -> str:
    """Return a declaration's sentence as one that ends."""
    return escape(todays(text)).rstrip(".") + "."


# ------------------------------------------------------------------------------- details


def details(name: str) -> list[str]:
    """Return what is written by hand about an algorithm, with its settings' defaults filled in."""
    file = DETAILS / f"{name}.md"
    if not file.exists():
        return []
    text = re.sub(r"^# .*\n+", "", file.read_text(encoding="utf-8"))
    text = text.replace("](../", "](")  # a link from the folder of the page
    known = {x.name: x.default for x in describe.settings(registry.default_config(name))}

    def fill(found: re.Match[str]) -> str:
        if found[1] not in known:
            raise KeyError(f"{file.name}: {name} has no setting '{found[1]}'.")
        return f"`{found[1]}` ({known[found[1]]})"

    return [re.sub(r"\{([a-z_0-9.]+)\}", fill, text).strip()]


def update_listing(name: str) -> list[str]:
    """Return the listing of an algorithm's update, folded, with the methods of `net` explained."""
    if name not in DETAILED:
        return []
    text = flatten.text(name)
    used = [x for x in vars(Net) if re.search(rf"\.{x}\(", text) and x in NET_METHODS]
    methods = [f"`net.{x}`: {lower(first_line(doc(getattr(Net, x))))}" for x in used]
    head = (
        "The source of the update, of its losses, and of every function of `jaxrl.algorithms` and "
        "`jaxrl.losses` that they call, in the order of the calls. Names that a function takes "
        "from around it (`config`, `optimizer`) are settings; `net` holds the agent's parts, of "
        f"[jaxrl/kit/net.py]({UP}/jaxrl/kit/net.py)."
    )
    lines = text.count("\n") + 1
    folded = f"<details data-search-exclude markdown><summary>{lines} lines</summary>\n\n"
    folded += f"{fence(text, 'python')}\n\n</details>"
    return [head, "\n".join(f"- {method}" for method in methods), folded]


NET_METHODS = ("descend", "epochs", "minibatches", "update_targets", "report", "with_params", "key")


def doc(value: Any) -> str:
    return inspect.getdoc(value) or ""


def lower(text: str) -> str:
    return text[:1].lower() + text[1:]


# ------------------------------------------------------------------------------- losses


def losses_used(name: str) -> list[str]:
    """Return a list of the losses that an algorithm's code calls, with links."""
    lines = []
    for loss, file in flatten.losses_of(name).items():
        said = first_line(doc(getattr(losses, loss)))
        group = file.split("/")[2].removesuffix(".py")
        lines.append(
            f"- [`{loss}`]({UP}/{file}) in [{group}](../losses.md#{group}): {escape(said)}"
        )
    return ["\n".join(lines)] if lines else []


# ------------------------------------------------------------------------------- settings


def settings_tables(name: str) -> str:
    """Return a table of the settings of each group, the algorithm's own first."""
    config = registry.default_config(name)
    by_group: dict[str, list[describe.Setting]] = {"": []}
    for x in describe.settings(config):
        by_group.setdefault(x.name.rpartition(".")[0], []).append(x)
    why = describe.groups(config)
    sections = [SETTINGS_HEAD]
    for group, rows in by_group.items():
        if not rows:
            continue
        if group:
            said = why.get(group) or first_line(doc(type(settings.lookup(config, group))))
            sections.append(f"**{group}**: {links(escape(said))}")
        cells = [
            [f"`{x.name}`" + r" \*" * x.swept, x.default, x.range, links(escape(x.meaning))]
            for x in rows
        ]
        body = table(["setting", "default", "range", "meaning"], cells)
        sections.append(f'<div class="stacked" markdown="1">\n\n{body}\n\n</div>')
    return "\n\n".join(sections)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(x.replace('|', '&#124;') for x in line)} |" for line in lines)


if __name__ == "__main__":
    made = pages()
    FOLDER.mkdir(exist_ok=True)
    for old in set(FOLDER.glob("*.md")) - made.keys():
        old.unlink()
    for file, text in made.items():
        file.write_text(text, encoding="utf-8")
