"""The built site: whole, strict, and nothing in it is fetched from elsewhere."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

from experiments import document_losses, documentation
from experiments.evidence import findings, listing, run
from jaxrl.algorithms import registry

ROOT = Path(__file__).resolve().parents[1]


def test_docstrings_become_markdown():
    docstring = """What it is.

x[t] = a * x[t + 1]

Part     a thing
Recipe   things, and
         how

Args:
  x, y: [T], some of which
    go on.
  z: [...].
Returns: [T], or
  nothing.
Example: `f(x)`"""
    assert documentation.as_markdown(docstring).split("\n\n") == [
        "What it is.",
        "````text\nx[t] = a * x[t + 1]\n````",
        "- `Part`: a thing\n- `Recipe`: things, and how",
        "**Args**",
        "- `x, y`: [T], some of which go on.\n- `z`: [...].",
        "**Returns:** [T], or nothing.",
        "**Example:** `f(x)`",
    ]


@pytest.mark.parametrize(
    ("uri", "text", "there"),
    [
        ("losses.md", "[a](../CLAIMS.md#x)", "[a](claims.md#x)"),
        ("claims/c51.md", "[a](../../README.md)", "[a](../index.md)"),
        ("claims.md", "[a](docs/claims/failures.md)", "[a](claims/failures.md)"),
        ("claims.md", "[a](experiments/claims/value/i_qn.py)", "[a](claims/i-qn.md)"),
        ("claims/failures.md", "[a](../../experiments/claims/value)", "[a](value.md)"),
        (
            "claims/c51.md",
            "[a](../../experiments/claims/value/c51.jsonl)",
            "[a](../files/experiments/claims/value/c51.jsonl)",
        ),
        ("a.md", "[a](../Makefile)", "[a](files/Makefile.md)"),
        ("a.md", "[a](../jaxrl/kit/net.py)", "[a](reference/kit/net.md#jaxrl.kit.net)"),
        (
            "a.md",
            "[`gae`](../jaxrl/losses/advantages/returns.py)",
            "[`gae`](reference/losses/advantages.md#jaxrl.losses.advantages.returns.gae)",
        ),
        (
            "a.md",
            "[`agents.iqn`](../jaxrl/algorithms/value/iqn.py)",
            "[`agents.iqn`](algorithms/iqn.md)",
        ),
        ("a.md", "[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        ("a.md", "```\n[a](../CLAIMS.md)\n```", "```\n[a](../CLAIMS.md)\n```"),
    ],
)  # fmt: skip
def test_links_lead_where_the_site_has_what_they_mean(uri, text, there):
    assert documentation.relink(text, uri) == there


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site, once for all workers."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder, done = shared / "site", shared / "site-is-built"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    more = {"JAX_PLATFORMS": "cpu", "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    with open(shared / "site-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            env = os.environ | more
            built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
            assert built.returncode == 0, built.stderr
            done.touch()
    return folder


class Resources(HTMLParser):
    """Return what a browser fetches for a page without being asked to."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.found += [given[x] for x in ("src", "srcset", "poster", "data") if x in given]
        if tag == "link":
            self.found.append(given.get("href", ""))
        if "style" in given:
            self.found += re.findall(r"url\(([^)]*)\)", given["style"])


def fetch(site: Path) -> Iterator[tuple[str, str]]:
    for page in site.rglob("*.html"):
        for address in Resources(page.read_text()).found:
            yield page.name, address
    for sheet in site.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import )[\"']?(?!url)([^)\"';]*)", sheet.read_text()):
            yield sheet.name, address


def away(site: Path) -> list[tuple[str, str]]:
    return [x for x in fetch(site) if re.match(r"\s*(?:[a-z]+:)?//", x[1])]


def test_what_is_fetched_from_elsewhere_is_seen(tmp_path):
    page = '<a href="//a.b/c"><img src="x.png"><script src="https://a.b/c.js"></script></a>'
    (tmp_path / "page.html").write_text(page)
    (tmp_path / "style.css").write_text("@import url(//a.b/c.css); b {background: url('d.png')}")
    assert away(tmp_path) == [("page.html", "https://a.b/c.js"), ("style.css", "//a.b/c.css")]


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site):
    assert len(list(fetch(site))) > 1000
    assert away(site) == []
    # The theme's program would fetch these two, where a page asks for them.
    pages = "".join(page.read_text() for page in site.rglob("*.html"))
    assert 'class="mermaid"' not in pages and 'data-md-component="source"' not in pages


@pytest.mark.slow
def test_every_claim_has_its_page_with_its_declaration(site):
    found = listing.discover(ROOT)
    assert found
    for claim in found.values():
        page = (site / "claims" / f"{claim.id}.html").read_text()
        text = re.sub(r"<[^>]*>", "", page)
        assert f"{claim.family}.html" in page and "CLAIM = " in text, claim.id
        assert (site / "claims" / f"{claim.family}.html").exists()
    pictures = {path.stem for path in (site / "claims" / "pictures").glob("*.svg")}
    drawn = {claim.id for claim in run.gather(found.values()) if findings.strips(claim)}
    assert pictures == drawn and len(drawn) > 30  # those with reported seeds


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site):
    missing = []
    for path in documentation.modules():
        page = site / documentation.reference_uri(path).replace(".md", ".html")
        ids = set(re.findall(r'id="([^"]+)"', page.read_text()))
        defined = [
            node.name
            for node in ast.parse((ROOT / path).read_text()).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"
        ]
        missing += [
            x for n in defined if (x := f"{documentation.dotted_name(path)}.{n}") not in ids
        ]
    assert missing == []


@pytest.mark.slow
def test_every_algorithm_has_its_page_in_the_site(site):
    for name in registry.names():
        page = (site / "algorithms" / f"{name}.html").read_text()
        assert f">{name}<" in page and 'id="settings"' in page, name
    assert not list((site / "algorithms" / "details").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["UPGO", "SAC", "CISPO", "SimPO", "V-trace", "TD(lambda)"])
def test_the_search_finds_what_people_type(site, name):
    docs = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    (found,) = [
        x for x in docs if x["title"] == name and x["location"].startswith("losses_by_name")
    ]
    page, _, anchor = found["location"].partition("#")
    assert found["text"] and f'<span id="{anchor}"></span>{name}' in (site / page).read_text()


def test_every_name_of_a_loss_has_an_anchor_of_its_own():
    rows = documentation.ALIAS.findall(document_losses.by_name())
    assert [name for name, _ in rows][:1] != ["name"]
    assert {name for name, _ in rows} == set(document_losses.aliases())
    assert len({documentation.slug(name) for name, _ in rows}) == len(rows)
