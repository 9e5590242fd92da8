"""English and names by the rules of `tests/style.py`, room by room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import style

# Rooms that still break the rules, one a line; a room that no longer does must be struck out.
OPEN: tuple[str, ...] = (
    "experiments/bench",
    "jaxrl/algorithms/continuous_control",
    "jaxrl/algorithms/evolution",
    "tests/algorithms",
)

FOLDERS = ("jaxrl", "experiments", "tests")
PAGES = ("docs", "configs")
ENDINGS = (".py", ".md", ".yaml")
# What others wrote, or what is written by a command.
NOT_OURS = ("docs/gallery", "docs/papers.md", "experiments/bench/results")
EXAMPLES = ("tests/test_style.py", "tests/style.py")  # the rules, and breaches of them


def rooms() -> dict[str, list[Path]]:
    """Room -> its files: folders of the library (of algorithms: families), of experiments and of
    tests; files beside them; pages and configurations."""
    found: dict[str, list[Path]] = {}
    tops = [style.ROOT / top for top in FOLDERS + PAGES]
    files = [path for top in tops for path in sorted(top.rglob("*")) if path.suffix in ENDINGS]
    files += sorted(style.ROOT.glob("*.md"))
    for path in files:
        name = path.relative_to(style.ROOT).as_posix()
        parts = name.split("/")
        if "__pycache__" in parts or name.startswith(NOT_OURS) or name in EXAMPLES:
            continue
        depth = 3 if name.startswith("jaxrl/algorithms/") else 2 if parts[0] in FOLDERS else 1
        found.setdefault("/".join(parts[:-1][:depth]) or ".", []).append(path)
    return found


ROOMS = rooms()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_keeps_the_rules(room):
    breaches = (
        f"{path.relative_to(style.ROOT)}:{line}: {said}"
        for path in ROOMS[room]
        for line, said in sorted(set(style.lines(path)))
    )
    if room in OPEN:
        assert any(breaches), f"'{room}' keeps the rules now: strike it out of OPEN"
    else:
        found = list(breaches)
        assert not found, "\n".join([f"{len(found)} breaches:", *found[:40]])


def test_only_rooms_that_exist_are_open():
    assert set(OPEN) <= set(ROOMS)
    assert len(ROOMS) > 40 and all(ROOMS.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"""Of what was done."""', "opens with 'Of'"),
        ('"""returns a thing."""', "lower case"),
        ("def drawn():\n    pass", "participle"),
        ("x = 1  # the world it acts in", "environment"),
        ("learnt = 1", "learned"),
        ('class A:\n    x: int = 0\n    """' + "a " * 90 + '"""', "characters, over"),
        ('"""A thing. Whose name is long."""', "opens with 'Whose'"),
        ("optimiser = 1", "-ize"),
    ],
)
def test_a_breach_is_found(text, said, tmp_path):
    path = tmp_path / "made_up.py"
    path.write_text(text)
    assert any(said in found for _, found in style.lines(path))


def test_good_english_is_no_breach(tmp_path):
    path = tmp_path / "made_up.py"
    path.write_text(
        '"""Sample actions of a world model."""\n\n\n'
        "def sample_actions(seed, learned):\n"
        '    """Return the greedy action, as precise as noise allows."""\n'
        "    return seed + learned  # otherwise it would compile twice\n"
    )
    assert list(style.lines(path)) == []
