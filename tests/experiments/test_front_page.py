"""The README's picture: what is on it, drawn from a tiny run."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from experiments import front_page
from jaxrl import envs
from jaxrl.core.errors import UserError


def test_the_curves_of_a_run_are_its_evaluations(finished_pair):
    steps, returns = front_page.curves(finished_pair)
    assert returns.shape == (2, len(steps))
    assert np.all(np.diff(steps) > 0) and np.all(np.isfinite(returns))


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
    steps, returns = np.array([1000, 2000]), np.array([[1.0, 400.0], [2.0, 500.0]])
    front_page.draw([row, row], {"cartpole": (steps, returns)})
    picture = np.asarray(Image.open(tmp_path / "docs" / "overview.png").convert("RGB"))
    assert picture.shape[1] == front_page.WIDTH
    red = (picture == (255, 0, 0)).all(-1).all(1)
    assert red[:40].all() and not red[40 : 40 + front_page.GAP].any() and red[48:88].all()
    assert (picture[96:] != 255).any()  # the curves


def test_it_shows_environments_that_exist_and_solved_tasks_that_are_configured():
    assert {name for row in front_page.FRAMES for name in row} <= set(envs.names())
    root = front_page.gallery.ROOT
    assert all((root / "configs" / "ppo" / f"{name}.yaml").exists() for name in front_page.SOLVED)


def test_an_option_is_refused_in_one_sentence():
    with pytest.raises(UserError, match="no options, got --quick"):
        front_page.main(["--quick"])
