"""Pictures of single seeds show every finite one where it ended, and the mean of all of them."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from jaxrl.core.errors import UserError
from jaxrl.evaluation.figures import FAINT, INK
from jaxrl.evaluation.seed_plots import seed_strips
from jaxrl.evaluation.statistics import score_interval
from tests.evaluation.pictures import assert_picture, bars

SCORES = {"new": [0.5, 0.7, np.nan, 0.9], "old": [0.1, 0.1, 0.1], "one seed": [0.4]}


def dots(axes) -> list[np.ndarray]:
    """Return where the dots of each label lie, [seeds, 2]."""
    drawn = [line for line in axes.lines if line.get_marker() == "o"]
    return [np.stack(line.get_data(), -1) for line in drawn]


def diamonds(axes) -> np.ndarray:
    """Return where the means lie, [labels, 2]."""
    drawn = [line for line in axes.lines if line.get_marker() == "D"]
    return np.array([np.ravel(line.get_data()) for line in drawn], np.float64)


def references(axes) -> list[float]:
    """Return where values are marked."""
    return [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"]


def test_every_finite_seed_is_a_dot_in_the_row_of_its_label(tmp_path):
    figure = seed_strips({"score": SCORES}, tmp_path / "seeds.png", title="Seeds")
    assert_picture(tmp_path / "seeds.png", 200)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(SCORES)
    assert axes.get_xlabel() == "score" and axes.get_title(loc="left") == "Seeds"
    assert axes.yaxis_inverted()  # the first label on top
    for i, (drawn, values) in enumerate(zip(dots(axes), SCORES.values(), strict=True)):
        np.testing.assert_array_equal(drawn[:, 0], [x for x in values if np.isfinite(x)])
        assert np.all(abs(drawn[:, 1] - i) < 0.3)
    assert len({y for _, y in dots(axes)[1]}) == 3  # equal seeds do not cover one another
    assert len({line.get_color() for line in axes.lines if line.get_marker() == "o"}) == 3


def test_a_diamond_is_the_mean_with_its_interval():
    (axes,) = seed_strips({"score": SCORES}, None).axes
    expected = [score_interval(x) for x in ([0.5, 0.7, 0.9], [0.1, 0.1, 0.1])]
    np.testing.assert_allclose(diamonds(axes), [[e.estimate, i] for i, e in enumerate(expected)])
    np.testing.assert_allclose(bars(axes)[:, :, 0], [[e.low, e.high] for e in expected])
    assert {to_hex(x.get_color()) for x in axes.lines if x.get_marker() == "D"} == {INK}


def test_each_axis_has_its_own_labels_and_references():
    panels = {"score in catch": SCORES, "final in catch": {"new": [30.0, 50.0, 40.0, 41.0]}}
    marks = {"score in catch": {"random": 0.0, "best known": 2.0}, "elsewhere": {"random": 9.0}}
    first, second = seed_strips(panels, None, references=marks).axes
    assert references(first) == [0.0, 2.0] and references(second) == []
    texts = {text.get_text(): text for text in first.texts}
    assert set(texts) == {"random", "best known"} and not second.texts
    assert texts["best known"].xy[0] == 2.0 and texts["best known"].get_color() == FAINT
    low, high = first.get_xlim()
    assert low <= 0.0 and high >= 2.0  # a mark lies on its axis, wherever the seeds are
    low, high = second.get_xlim()
    assert 9.0 < low < 30.0 and high > 50.0  # no axis is stretched by another
    assert second.get_xlabel() == "final in catch"
    assert [label.get_text() for label in second.get_yticklabels()] == ["new"]


@pytest.mark.filterwarnings("error")
def test_a_logarithmic_axis_has_its_zeros_at_the_left():
    rows = {"error": [1e-12, 0.0, 3e-6, np.nan], "planted": [2.0, 40.0]}
    figure = seed_strips({"error": rows}, None, references={"error": {"effect": 1e-3}},
                         logarithmic=True)  # fmt: skip
    (axes,) = figure.axes
    assert axes.get_xscale() == "log" and references(axes) == [1e-3]
    error, planted = (drawn[:, 0] for drawn in dots(axes))
    np.testing.assert_array_equal(error[[0, 2]], [1e-12, 3e-6])
    np.testing.assert_array_equal(planted, [2.0, 40.0])
    assert len(error) == 3 and axes.get_xlim()[0] < error[1] < 1e-12
    assert not len(diamonds(axes))  # the mean of errors over decades is that of the largest
    (axes,) = seed_strips({"error": {"error": [0.0, 0.0]}}, None, logarithmic=True).axes
    assert len(dots(axes)[0]) == 2  # nothing but zeros has an axis, too


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0], [np.nan, 3.0], [-3e6, 3e6]])
@pytest.mark.filterwarnings("error")
def test_few_seeds_and_equal_ones_have_an_axis(tmp_path, values):
    figure = seed_strips({"score": {"new": values, "lost": [np.nan, np.inf]}}, tmp_path / "a.svg")
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert low < min(x for x in values if np.isfinite(x)) and high > np.nanmax(values)
    assert len(dots(axes)) == 1  # a label without a finite seed keeps its row
    assert [label.get_text() for label in axes.get_yticklabels()] == ["new", "lost"]


def test_no_text_leaves_the_picture_or_covers_another():
    sides = ("the side of a paper with many words", "new", "old", *"abcdefgh")
    rows = {side: np.linspace(0, 94400, 6) for side in sides}
    panels = {"score in a corridor of keys": rows, "final": {"new": [1.0, 2.0, 3.0]}}
    marks = {panel: {"random": 0.0, "best known": 9e4} for panel in panels}
    figure = seed_strips(panels, None, references=marks)
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    for axes in figure.axes:
        low, high = axes.get_xlim()
        ticks = [x for x in axes.get_xticklabels() if low <= x.get_position()[0] <= high]
        texts = [*axes.get_yticklabels(), *ticks, axes.xaxis.label, *axes.texts]
        boxes = [text.get_window_extent() for text in texts]
        for i, box in enumerate(boxes):
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, texts[i]
            assert not any(box.overlaps(other) for other in boxes[:i]), texts[i]


def test_the_same_seeds_are_the_same_file(tmp_path):
    for name in ("one", "two"):
        seed_strips({"score": SCORES}, tmp_path / "new" / f"{name}.svg")
    one, two = ((tmp_path / "new" / f"{name}.svg").read_bytes() for name in ("one", "two"))
    assert one == two and one.startswith(b"<?xml")


@pytest.mark.parametrize("panels", [{}, {"score": {}}, {"score": SCORES, "final": {}}])
def test_nothing_to_draw_is_an_error(tmp_path, panels):
    with pytest.raises(UserError, match="at least one label with scores on each axis"):
        seed_strips(panels, tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()
