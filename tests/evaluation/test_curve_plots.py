"""Learning curves: the files are valid, and the lines and bands show the given numbers."""

import subprocess
import sys

import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.evaluation.curve_plots import learning_curves, panels_of_curves
from jaxrl.evaluation.statistics import score_interval
from tests.evaluation.pictures import assert_picture, band, labeled_lines

RNG = np.random.default_rng(0)
STEPS = np.arange(1, 11) * 1000


def test_learning_curves_show_the_mean_its_interval_and_every_seed(tmp_path):
    values = {"a": RNG.normal(size=(5, 10)), "b": RNG.normal(3, 1, (3, 10))}
    path = tmp_path / "made" / "curves.png"
    figure = learning_curves({k: (STEPS, v) for k, v in values.items()}, path, "A title")
    assert_picture(path)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "A title"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "episode return")
    assert set(labeled_lines(axes)) == {"a", "b"} and len(axes.lines) == 2 + 5 + 3
    for i, (label, v) in enumerate(values.items()):
        np.testing.assert_array_equal(labeled_lines(axes)[label].get_xdata(), STEPS)
        np.testing.assert_allclose(labeled_lines(axes)[label].get_ydata(), v.mean(0))
        for step, column in zip(STEPS, v.T, strict=True):
            np.testing.assert_allclose(band(axes, STEPS, i)[step], score_interval(column)[1:])
    assert figure.legends[0].get_title().get_text() == "mean, 75 % interval"  # of three seeds
    thin = [line.get_ydata() for line in axes.lines if line not in labeled_lines(axes).values()]
    np.testing.assert_array_equal(thin, [*values["a"], *values["b"]])


def test_steps_are_logarithmic_where_one_curve_is_much_longer_than_another(tmp_path):
    def draw(*ends: float):
        curves = {str(end): (np.linspace(0, end, 10), RNG.normal(size=(3, 10))) for end in ends}
        (axes,) = learning_curves(curves, tmp_path / "a.svg").axes
        return axes

    assert draw(1e5, 1e6).get_xscale() == "linear"
    axes = draw(1e5, 1.1e6)
    assert axes.get_xscale() == "log" and axes.get_xlim()[0] > 1000
    assert all(len(line.get_xdata()) == 9 for line in labeled_lines(axes).values())


def test_a_panel_for_each_measure_and_a_line_for_each_way_it_was_measured(tmp_path):
    numbers = lambda: (STEPS, RNG.normal(size=(1, 10)))
    panels = {
        "return": {"in training": {"a": numbers(), "b": numbers()}, "evaluated": {"a": numbers()}},
        "coverage": {"evaluated": {"b": numbers()}},
    }
    figure = panels_of_curves(panels, tmp_path / "a.png", "A title")
    above, below = figure.axes
    assert (above.get_ylabel(), below.get_ylabel()) == ("return", "coverage")
    assert (above.get_xlabel(), below.get_xlabel()) == ("", "environment steps")
    (drawn,) = [line for line in below.lines if len(line.get_xdata())]
    np.testing.assert_array_equal(drawn.get_ydata(), panels["coverage"]["evaluated"]["b"][1][0])
    solid_a, solid_b, dashed_a = above.lines
    assert [x.get_linestyle() for x in (*above.lines, drawn)] == ["-", "-", "--", "--"]
    assert solid_a.get_color() == dashed_a.get_color() != solid_b.get_color() == drawn.get_color()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["a", "b", "in training", "evaluated"]

    alone = {"return": {way: {"a": numbers()} for way in ("in training", "evaluated")}}
    figure = panels_of_curves(alone, tmp_path / "alone.png")
    trained, evaluated = figure.axes[0].lines
    assert trained.get_color() != evaluated.get_color()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["in training", "evaluated"]
    assert figure.legends[0].get_title().get_text() == "one seed, no interval"


def test_seeds_without_a_value_are_left_out_of_their_columns(tmp_path):
    values = RNG.normal(size=(4, 10))
    values[0, 5:] = np.nan
    values[1:, 8] = np.inf  # diverged
    values[1:3, 9] = np.nan
    figure = learning_curves({"a": (STEPS, values)}, tmp_path / "a.png")
    mean = labeled_lines(figure.axes[0])["a"].get_ydata()
    np.testing.assert_allclose(mean[:5], values[:, :5].mean(0))
    np.testing.assert_allclose(mean[5:8], values[1:, 5:8].mean(0))
    assert np.isnan(mean[8]) and mean[9] == values[3, 9]
    drawn = band(figure.axes[0], STEPS)
    np.testing.assert_allclose(drawn[STEPS[6]], score_interval(values[1:, 6])[1:])
    assert STEPS[9] not in drawn  # one seed has no interval


def test_narrow_pictures_have_their_legend_below_and_grow_with_it():
    few, many = (
        learning_curves(
            {f"{i} " + "words " * n: ([1, 2], [[i, 2]]) for i in range(n)}, None, narrow=True
        )
        for n in (2, 20)
    )
    many.draw_without_rendering()
    legend, axes = (x.get_window_extent() for x in (many.legends[0], many.axes[0]))
    assert legend.y1 < axes.y0 and axes.height > 1.5 * many.dpi and legend.y0 > 0
    assert legend.x0 > 0 and legend.x1 < many.bbox.x1
    assert few.get_figwidth() == many.get_figwidth() < 5
    assert many.get_figheight() > few.get_figheight() + 2


def test_many_labels_have_a_color_each_and_no_lines_for_seeds(tmp_path):
    curves = {f"rate={i}": (STEPS, RNG.normal(i, 1, (3, 10))) for i in range(40)}
    figure = learning_curves(curves, tmp_path / "many.png")
    assert_picture(tmp_path / "many.png")
    lines = figure.axes[0].lines
    assert len(lines) == 40 and len({tuple(line.get_color()) for line in lines}) == 40


@pytest.mark.parametrize(
    "values", [[[1.0]], [[np.nan, np.nan]], [[5.0, 5.0]], [[0.0], [0.0]]], ids=str
)
def test_degenerate_curves_are_drawn_without_a_warning(tmp_path, values, recwarn):
    figure = learning_curves({"a": (np.arange(len(values[0])), values)}, tmp_path / "a.png")
    assert_picture(tmp_path / "a.png")
    low, high = figure.axes[0].get_ylim()
    assert low < high and not recwarn.list
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["a (no value)" if np.isnan(values).all() else "a"]


def test_wide_intervals_do_not_flatten_the_data(tmp_path):
    values = np.array([[0.0, 100.0], [1.0, 40.0]])  # the second interval is 762 wide
    figure = learning_curves({"a": ([0, 1], values)}, tmp_path / "a.png")
    low, high = figure.axes[0].get_ylim()
    assert -120 < low < 0 and 100 < high < 220


def test_bad_curves_raise_an_error(tmp_path):
    path = tmp_path / "a.png"
    with pytest.raises(UserError, match="no learning curve"):
        learning_curves({}, path)
    with pytest.raises(UserError, match=r"curve 'a' needs .* not shapes \[3\] and \[2, 4\]"):
        learning_curves({"a": (np.arange(3), np.ones((2, 4)))}, path)
    assert not path.exists()


@pytest.mark.slow
def test_matplotlib_is_imported_late_and_pyplot_never(tmp_path):
    program = f"""
import sys
from jaxrl.evaluation import curve_plots, figures, score_plots
assert "matplotlib" not in sys.modules
curve_plots.learning_curves(dict(a=([0, 1], [[0, 1]])), {str(tmp_path / "a.png")!r})
score_plots.sweep_picture(dict(a=[0, 1]), [[0, 1], [1, 2]], {str(tmp_path / "b.png")!r})
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_same_picture_is_the_same_svg(tmp_path):
    for name in ("a.svg", "b.svg"):
        learning_curves({"a": (STEPS, np.ones((2, len(STEPS))))}, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
