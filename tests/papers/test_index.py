"""The index of papers agrees with itself, with the code, and with the claims."""

import ast
import collections
import importlib
import re
from pathlib import Path

import pytest

from jaxrl import envs
from jaxrl.algorithms import registry
from jaxrl.algorithms.families import NAMES
from jaxrl.papers import index

ROOT = Path(__file__).resolve().parents[2]
PAPERS, PARTS = index.papers(), {part.name: part for part, _ in index.candidates()}
UNPUBLISHED = {"token_supervised"}  # a warm-up of the others that no paper proposes


def test_every_entry_is_read_once():
    """YAML keeps the last of two equal keys in silence."""
    text = (index.PACKAGE / "papers" / "index.yaml").read_text()
    ids = re.findall(r"^  ([a-z0-9-]+):$", text, re.MULTILINE)
    assert ids == list(PAPERS) and len(ids) == text.count("\n    title: ")
    titles = collections.Counter(paper.title.lower() for paper in PAPERS.values())
    numbers = collections.Counter(paper.arxiv for paper in PAPERS.values() if paper.arxiv)
    assert max(titles.values()) == 1 and max(numbers.values()) == 1


def test_fields_are_in_range():
    for paper in PAPERS.values():
        assert paper.tier in ("A", "B", "C", ""), paper
        assert paper.year is None or 1950 < paper.year < 2030, paper
        assert not paper.arxiv or re.fullmatch(index.NUMBER, paper.arxiv), paper
        assert "  " not in paper.title and paper.title == paper.title.strip(" ."), paper


def test_a_paper_without_a_claim_is_here_and_was_not_tested():
    for paper in PAPERS.values():
        if paper.no_claim:
            assert paper.id in index.implementations() and not index.verdicts(paper), paper.id
            assert paper.no_claim.endswith(".") and "|" not in paper.no_claim, paper.id


def test_a_paper_without_a_class_is_here():
    beyond = {paper.id for paper in PAPERS.values() if not paper.tier}
    assert beyond and beyond <= set(index.implementations())


def test_families_are_listed_in_their_order():
    families = list(dict.fromkeys(paper.family for paper in PAPERS.values()))
    assert families == list(NAMES)


def test_what_the_index_names_exists_and_is_needed():
    texts = {part.name: text for part, text in index.candidates()}
    for paper in PAPERS.values():
        assert set(paper.here) <= set(PARTS), paper.id
        assert not [x for x in paper.here if paper.id in index.citations(texts[x])], paper.id
        for name in paper.only_cites:
            assert paper.id in index.citations(texts[name]), f"{name} does not cite {paper.id}"


def test_parts_are_called_by_their_names():
    for name in {part.name for parts in index.implementations().values() for part in parts}:
        room, _, rest = name.partition(".")
        if PARTS[name].is_algorithm:
            assert rest in registry.built_in()
        elif rest in envs.names() and room == "envs":
            continue
        else:
            assert _resolves(f"jaxrl.{name}"), name


def _resolves(name: str) -> bool:
    """Tell if a dotted name is a module or something in one."""
    module, _, last = name.rpartition(".")
    if importlib.util.find_spec(module) is None:
        return False
    return hasattr(importlib.import_module(module), last) or bool(importlib.util.find_spec(name))


def test_parts_have_one_name_each():
    names = collections.Counter(part.name for part, _ in index.candidates())
    assert [name for name, count in names.items() if count > 1] == []


def test_every_algorithm_implements_a_paper_of_its_family():
    listed = collections.defaultdict(set)
    for id, parts in index.implementations().items():
        for part in parts:
            if part.is_algorithm:
                listed[part.name.removeprefix("algorithms.")].add(PAPERS[id].family)
    assert set(registry.built_in()) - set(listed) == UNPUBLISHED
    for name, families in listed.items():
        assert registry.built_in()[name].split(".")[2] in families, name


def test_claims_agree_with_their_papers():
    owners = {id: paper for paper in PAPERS.values() for id in index.verdicts(paper)}
    files = sorted((ROOT / "experiments" / "claims").glob("*/[!_]*.py"))
    assert {file.stem.replace("_", "-") for file in files} == set(owners)
    assert {paper.id for paper in owners.values()} <= set(index.implementations())
    for file in files:
        paper = owners[file.stem.replace("_", "-")]
        assert file.parent.name == paper.family
        if stated := _paper_of(file):
            title, _, year, arxiv = stated
            assert paper.id in index.citations(f'2000, "{title}"') and paper.arxiv == arxiv
            assert paper.year == year


def _paper_of(file: Path) -> list | None:
    """Title, authors, year and arXiv number of a claim's paper; None if another file has them."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Paper" and node.args:
            return [ast.literal_eval(argument) for argument in node.args[:4]]
    return None


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ('Rafailov et al., 2023, "Direct preference optimization: your language model is\n'
         '    secretly a reward model", eq. 5.', {"dpo"}),
        ('Such et al. (2017), "Deep neuroevolution"', {"deep-neuroevolution"}),
        ("Schulman et al., 2017, arXiv:1707.06347; Oh et al., arXiv 2007.08794", {"ppo", "lpg"}),
        ('Haarnoja et al., 2018, "Soft actor-critic algorithms and applications"', {"sac"}),
        ('Liu et al., 2025, "SPIRAL"', {"spiral"}),
        ('Hejna et al., 2024, "CPL"', set()),  # begins the title of another paper
        ('not "SPIRAL", since no year is before it', set()),
        ('Ho and Ermon, 2016, "Generative adversarial\n imitation learning"',
         {"generative-adversarial-imitation"}),  # and not the paper whose title ends so
        ("arXiv:9999.99999", set()),
    ],
)  # fmt: skip
def test_citations(text, ids):
    assert index.citations(text) == ids


def test_no_title_goes_unread():
    """A title that a docstring names in another way than as a citation would be lost."""
    for part, text in index.candidates():
        read = index.citations(text)
        rest = index._plain(text)
        for title in (title for id in read for title in (PAPERS[id].title, *PAPERS[id].also)):
            rest = rest.replace(index._plain(title), "")
        unread = {paper.id for paper in PAPERS.values() if index._plain(paper.title) in rest}
        assert not unread, f"{part.name} names {unread}"


def test_parts_by_hand():
    """Read in the papers and in the code, not derived."""
    expected = {
        "dpo": {"losses.dpo", "losses.implicit_reward"},
        "iqn": {"algorithms.iqn", "losses.quantile_huber", "losses.cosine_features"},
        "muzero": {"algorithms.muzero", "losses.muzero", "losses.two_hot"},
        "uni-o4": {"algorithms.uni_o4", "algorithms.uni_o4_improvement", "losses.amq_estimate"},
        "dreamer-4": {"algorithms.dreamer4_world_model", "losses.pmpo", "losses.shortcut_forcing"},
        "egpo": {"solvers.egpo", "losses.online_ipo"},
        "lifelong-metrics": {"evaluation.lifelong"},
        "hra": {"algorithms.hra", "envs.fruit_collection", "losses.hybrid_reward_target"},
        "sac": {"algorithms.sac", "losses.sac_actor", "losses.sac_target"},
        "pgd": {"diffusion.policy_guidance"},
        "barfi": {"gradients.neumann_inverse"},
    }
    for id, names in expected.items():
        assert names <= {part.name for part in index.implementations()[id]}, id
    td3 = {part.name for part in index.implementations()["td3"]}
    assert "algorithms.td3" in td3 and "algorithms.td3_bc" not in td3
    for id in ("xland", "civrealm", "libero"):
        assert id in PAPERS and id not in index.implementations()


def test_a_claim_has_a_verdict():
    assert set(index.verdicts(PAPERS["dreamer-4"])) == {"dreamer-4", "shortcut-forcing"}
    assert index.verdicts(PAPERS["civrealm"]) == {}
