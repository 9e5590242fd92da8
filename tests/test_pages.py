"""Tests that pages can be followed: links, paths, counts, Python snippets and command lines."""

from __future__ import annotations

import ast
import json
import re
import shlex
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import jaxrl
from experiments import (
    document_algorithms,
    document_losses,
    document_papers,
    flatten,
    gallery,
)
from experiments.bench import report
from experiments.evidence import records, run
from experiments.evidence.listing import discover
from jaxrl import commands as commands_of_jaxrl
from jaxrl import envs, losses
from jaxrl.algorithms import registry
from jaxrl.commands import command_line
from jaxrl.runtime import configuration
from jaxrl.runtime.members import seed_members

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CLAIMS.md",
    "experiments/bench/README.md",
]
PAGES += sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))
README = (ROOT / "README.md").read_text()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {document_papers.anchor(heading.strip()) for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    headings = {h.strip() for h in re.findall(r"^#+ (.*)", text, re.MULTILINE)}
    headings |= {document_papers.anchor(heading) for heading in headings}
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif "://" not in target:
            path, _, end = target.partition("#")
            assert ((ROOT / page).parent / path).exists(), target
            assert not end or end in anchors((ROOT / page).parent / path), target


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_the_text_exist(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    paths = re.findall(r"\b(?:configs|experiments|jaxrl|notebooks|tests)/[\w/]+\.\w+", text)
    missing = {p for p in paths if not (ROOT / p).exists()}
    assert not missing


def test_the_readme_counts_what_there_is():
    rows = document_losses.index([losses]).count("\n| `")
    algorithms, environments = len(registry.built_in()), len(envs.names())
    assert f"{algorithms} algorithms, {environments} environments and" in README
    assert f"{rows} losses." in README
    others = (ROOT / "docs" / "speed.md").read_text()
    assert (
        f"| algorithms | {algorithms}, " in others
        and f"| losses to import | **{rows}** |" in others
    )
    assert f"| environments of its own | **{environments}**, and adapters |" in others
    claims = len([p for p in ROOT.glob("experiments/claims/*/*.py") if p.name[0] != "_"])
    assert f"{claims} claims of papers" in README


def test_the_pages_of_claims_are_those_of_the_records(tmp_path):
    """`python experiments/evidence/run.py --pages` writes them; `make docs` builds the others."""
    run.write_pages(tmp_path, discover(ROOT).values())
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert {ROOT / path for path in written} == {
        ROOT / "CLAIMS.md", ROOT / records.CLAIMS, ROOT / records.BEST,
        *(ROOT / "docs" / "claims").rglob("*.*"),
    }  # fmt: skip
    for path in written:
        assert (ROOT / path).read_text() == (tmp_path / path).read_text(), path


def test_the_page_of_papers_says_what_is_here():
    """`python experiments/document_papers.py` writes it."""
    assert document_papers.PAGE.read_text() == document_papers.page()


def test_the_pages_of_algorithms_say_what_the_code_says():
    """`python experiments/document_algorithms.py` writes them."""
    made = document_algorithms.pages()
    assert set(document_algorithms.FOLDER.glob("*.md")) == set(made)
    old = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert old == [], "run experiments/document_algorithms.py"


def test_every_algorithm_is_in_the_index_of_algorithms():
    text = (document_algorithms.FOLDER / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^- \[(\w+)\]", text, re.MULTILINE)) == set(registry.names())


def test_the_details_are_about_the_detailed_algorithms_and_name_code_that_exists():
    files = {path.stem: path for path in document_algorithms.DETAILS.glob("*.md")}
    assert set(files) == set(document_algorithms.DETAILED)
    for path in files.values():
        for name, target in re.findall(r"\[`(\w+)`\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            code = (path.parent / target).read_text(encoding="utf-8")
            assert re.search(rf"^(def|class) {name}\b", code, re.MULTILINE), (path.name, name)


@pytest.mark.parametrize("name", document_algorithms.DETAILED)
def test_a_flattened_update_is_python_with_every_loss_that_is_called(name):
    text = flatten.text(name)
    tree = ast.parse(text)
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert defined[0] == "update"
    called = re.findall(r"\blosses_?\.(\w+)\(", text)
    assert called and set(called) <= set(defined)


def test_a_listing_tells_by_which_name_a_function_is_called():
    text = flatten.text("sac")
    assert "# called sample elsewhere in this listing\ndef sample_policy(" in text
    assert '    """Half the squared distance to a target."""' in text  # the first paragraph alone


def test_the_readme_is_short():
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    text = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)  # commands
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 700


def test_the_speed_in_the_readme_is_what_was_recorded():
    file = ROOT / "experiments" / "bench" / "results" / "cpu-2-cores-speed.json"
    found = json.loads(file.read_text())

    def speeds(envs: int, variant: str) -> dict[int, float]:
        where = {"envs": envs, "variant": variant}
        return report.values(found["records"], "median_steps_per_s", **where)

    def ratios(variant: str) -> list[float]:
        return [
            statistics.median(report.ratios(speeds(n, variant), speeds(n, report.PEER)))
            for n in sorted({r["envs"] for r in found["records"]})
        ]

    default, plain = ratios(report.OURS), ratios(report.PLAIN)
    assert f"**{min(default):.1f} to {max(default):.1f} times rejax**" in README
    text = " ".join(README.split())
    assert f"jaxrl is {min(plain):.2f} to {max(plain):.1f} times as fast" in text
    assert "21 November 2026, rejax 0.1.3" in text
    assert found["date"].startswith("2026-11-21") and found["peer"].startswith("rejax 0.1.3")


# ------------------------------------------------------------------------------- Python


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder to work in that looks like the repository's."""
    for name in ("configs", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)])
def test_the_snippets_run_from_top_to_bottom(page, project):
    code = snippets(page)
    if "jaxrl.runtime import host" in "".join(code):
        pytest.importorskip("gymnasium")
    if page.endswith("export.md"):
        pytest.importorskip("flatbuffers")
    if "runs/ppo-cartpole-0001" in "".join(code):  # the first command, but short
        tiny = "--steps 64 --evaluate-episodes 2 --agent.num-envs 4 --agent.num-steps 8 --quiet"
        commands_of_jaxrl.main(["train", "ppo/cartpole", *tiny.split()])
    namespace: dict = {}
    for number, snippet in enumerate(code):
        exec(compile(snippet, f"{page}, snippet {number + 1}", "exec"), namespace)


def test_there_are_snippets_to_run():
    tutorials = {page for page in PAGES if page.startswith("docs/tutorials/")}
    assert len(tutorials) >= 8
    assert tutorials | {"README.md", "docs/index.md"} <= {page for page in PAGES if snippets(page)}


# ------------------------------------------------------------------------- command lines


def commands() -> Iterator[tuple[str, str]]:
    """Page and command, of each indented line that calls the command, a script or make."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
        lines = re.findall(r"^ {4}(jaxrl .*|\S*python experiments/.*|make .*)$", text, re.MULTILINE)
        for line in lines:
            yield page, line.partition("  #")[0]


@pytest.fixture
def strangers(project, monkeypatch):
    """The package of a reader's own that the pages speak of."""
    package = project / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "environments.py").write_text(
        "from jaxrl import envs\nmaze = envs.make('cartpole')\n"
    )
    (package / "algorithms.py").write_text(
        "from jaxrl.algorithms.policy_gradient.ppo import ppo as my_ppo\n"
    )
    monkeypatch.syspath_prepend(project)
    yield
    for name in ("my_package", "my_package.environments", "my_package.algorithms"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("page", "command"), list(commands()))
def test_command_lines_are_understood(page, command, project, strangers, monkeypatch):
    program, script, *argv = shlex.split(command)
    done = []
    for name in re.findall(r"runs/[\w-]+", command):  # what an earlier command leaves
        (project / name).mkdir(parents=True)
        config = configuration.experiment({})
        configuration.write(config, project / name / "config.yaml")
        seed_members(config).write(project / name / "members.json")
    monkeypatch.setattr("jaxrl.runtime.training.train", lambda config: done.append(config))
    monkeypatch.setattr("jaxrl.sweeps.sweep", lambda *sweep, launch=None: done.append(sweep))
    monkeypatch.setattr("jaxrl.commands.evaluate.evaluate", lambda *options: done.append(options))
    monkeypatch.setattr(
        "jaxrl.commands.evaluate.evaluate_policy", lambda *options: done.append(options)
    )
    monkeypatch.setattr("jaxrl.runtime.forecast.lines", lambda config: done.append(config) or [])
    monkeypatch.setattr("jaxrl.commands.export.export", lambda *options: done.append(options))
    monkeypatch.setattr("experiments.gallery.draw", lambda names, _: done.append(names))
    monkeypatch.setattr(gallery, "PAGE", project / "environments.md")
    if program == "jaxrl":
        assert commands_of_jaxrl.main([script, *argv]) == 0
        assert len(done) == (script not in ("list", "show", "check", "suite", "report"))
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert script in targets
    elif Path(script).stem == "gallery":
        assert gallery.main(argv) == 0 and len(done) == 1
    else:  # other scripts have parsers of their own: the options must at least be theirs
        text = (ROOT / script).read_text()
        assert all(f'"{word}"' in text for word in argv if word.startswith("--"))


@pytest.mark.parametrize(
    "command", [line for page, line in commands() if page == "docs/tutorials/devices.md"]
)
def test_commands_for_several_devices_make_enough_updates_to_learn(command):
    _, script, *argv = shlex.split(command)
    config = command_line.experiment(argv, "")
    rollouts = config.agent.rollouts
    assert script == "train" and config.steps / (rollouts.num_envs * rollouts.num_steps) > 100


def test_there_are_command_lines_to_test():
    called = {Path(command.split()[1]).stem for page, command in commands() if page == "README.md"}
    assert {"train", "evaluate", "sweep", "resume", "list"} <= called


def test_the_tests_run_by_make():
    assert "`make test` runs shapes" in README and "`make test-ci`, as CI," in README
    assert "make test-ci" in (ROOT / ".ci" / "run").read_text()


# ------------------------------------------------------------------------- an open project's files


def test_the_latest_change_is_of_this_version():
    changes = (ROOT / "CHANGELOG.md").read_text()
    (latest, *_) = re.findall(r"^## (\S+)", changes, re.MULTILINE)
    assert latest == jaxrl.__version__


@pytest.mark.parametrize(
    "path", [*(ROOT / ".github").rglob("*.yml"), ROOT / "CITATION.cff"], ids=lambda x: x.name
)
def test_forms_and_workflows_can_be_read(path):
    found = yaml.safe_load(path.read_text())
    if path.parent.name == "workflows":
        steps = [step for job in found["jobs"].values() for step in job["steps"]]
        called = [step["run"] for step in steps if "run" in step]
        targets = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        known = {f"make {name}" for line in targets for name in line.split()} | {".ci/run"}
        assert called and set(called) <= known
    else:
        assert {"name", "description", "body"} <= set(found) or found["title"].startswith("jaxrl")
