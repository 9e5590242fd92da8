"""The README's picture and table of results, from records of suites."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from experiments import front_page
from jaxrl import envs
from jaxrl.core.errors import UserError

RECORD = {
    "algorithm": "PPO",
    "environment": "cartpole",
    "steps": [50_000, 100_352],
    "returns": [[20.0, 400.0], [30.0, 500.0], [10.0, 450.0]],
}


@pytest.fixture
def one_record(tmp_path, monkeypatch):
    """A suite with one record, which the table and the picture are made from."""
    monkeypatch.setattr(front_page, "RECORDS", tmp_path)
    (tmp_path / "gymnasium_classic.json").write_text(json.dumps([RECORD]))
    row = front_page.Row("gymnasium_classic", "cartpole", "CartPole-v1", "PPO")
    monkeypatch.setattr(front_page, "ROWS", (row,))


def test_curves_are_the_evaluations_of_a_record(one_record):
    ((name, (steps, returns)),) = front_page.curves("gymnasium_classic", "cartpole").items()
    assert name == "PPO" and list(steps) == RECORD["steps"]
    np.testing.assert_array_equal(returns, RECORD["returns"])
    assert front_page.curves("gymnasium_classic", "acrobot") == {}


def test_the_table_has_our_figure_beside_the_published_one_of_the_nearest_budget(one_record):
    *_, row = front_page.table().splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:2] == ["CartPole-v1", "PPO, 100k"]
    assert cells[2] == "450 [400, 500], 3 seeds"  # of the last evaluation
    assert cells[3] == "500 ± 0 (RL Zoo, 100k)"


def test_the_readme_has_the_table_of_the_records():
    text = front_page.README.read_text()
    assert f"{front_page.BEGIN}\n{front_page.table()}\n{front_page.END}" in text


def test_a_row_of_frames_fills_the_width(monkeypatch):
    shapes = {"wide": (50, 100), "tall": (80, 40), "square": (30, 30)}
    monkeypatch.setattr(front_page, "frame", lambda name, _: np.zeros((*shapes[name], 3), np.uint8))
    row = front_page.row_of_frames(dict.fromkeys(shapes, 0.5))
    assert row.shape[1:] == (front_page.WIDTH, 3)
    black = (row == 0).all((0, 2))  # columns of frames; gaps are white
    ends = np.flatnonzero(np.diff(black.astype(int), prepend=0, append=0))
    widths = np.diff(ends)[::2]
    np.testing.assert_allclose(widths / len(row), [2, 0.5, 1], atol=0.01)
    assert list(np.diff(ends)[1::2]) == [front_page.GAP] * 2


def test_the_picture_has_rows_of_frames_above_curves(tmp_path, monkeypatch):
    monkeypatch.setattr(front_page, "PICTURE", tmp_path / "docs" / "overview.png")
    row = np.full((40, front_page.WIDTH, 3), (255, 0, 0), np.uint8)
    curves = np.array([1000, 2000]), np.array([[1.0, 400.0], [2.0, 500.0]])
    front_page.draw([row, row], {"CartPole": {"PPO": curves, "DQN": curves}, "other": {}})
    picture = np.asarray(Image.open(tmp_path / "docs" / "overview.png").convert("RGB"))
    assert picture.shape[1] == front_page.WIDTH
    red = (picture == (255, 0, 0)).all(-1).all(1)
    assert red[:40].all() and not red[40 : 40 + front_page.GAP].any() and red[48:88].all()
    assert (picture[96:] != 255).any()  # the curves


def test_it_shows_what_exists():
    assert {name for row in front_page.FRAMES for name in row} <= set(envs.names())
    for panel in front_page.PANELS:
        assert front_page.curves(panel.suite, panel.environment), panel.title


def test_an_option_is_refused_in_one_sentence():
    with pytest.raises(UserError, match="no options, got --quick"):
        front_page.main(["--quick"])
