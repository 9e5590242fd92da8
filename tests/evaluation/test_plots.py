"""Pictures: written, of a sane size, and drawn from the numbers that they claim to show."""

import struct
import subprocess
import sys

import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.evaluation import plots
from jaxrl.evaluation.statistics import mean_interval

RNG = np.random.default_rng(0)
STEPS = np.arange(1, 11) * 1000


def assert_picture(path, min_height: int = 300) -> None:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) > 5000
    width, height = struct.unpack(">II", content[16:24])
    assert 600 < width < 2000 and min_height < height < 3000


def thick(axes) -> dict:
    """The labeled lines by their labels."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def band(axes, i: int = 0) -> dict:
    """x -> (low, high) of a shaded band."""
    (corners,) = [p.vertices for p in axes.collections[i].get_paths()]
    return {x: (y.min(), y.max()) for x in STEPS if (y := corners[corners[:, 0] == x, 1]).size}


def test_learning_curves_show_the_mean_its_interval_and_every_seed(tmp_path):
    values = {"a": RNG.normal(size=(5, 10)), "b": RNG.normal(3, 1, (3, 10))}
    path = tmp_path / "made" / "curves.png"
    figure = plots.learning_curves({k: (STEPS, v) for k, v in values.items()}, path, "A title")
    assert_picture(path)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "A title"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "episode return")
    assert set(thick(axes)) == {"a", "b"} and len(axes.lines) == 2 + 5 + 3
    for i, (label, v) in enumerate(values.items()):
        np.testing.assert_array_equal(thick(axes)[label].get_xdata(), STEPS)
        np.testing.assert_allclose(thick(axes)[label].get_ydata(), v.mean(0))
        for step, column in zip(STEPS, v.T, strict=True):
            np.testing.assert_allclose(band(axes, i)[step], mean_interval(column)[1:])
    thin = [line.get_ydata() for line in axes.lines if line not in thick(axes).values()]
    np.testing.assert_array_equal(thin, [*values["a"], *values["b"]])


def test_steps_are_logarithmic_where_one_curve_is_much_longer_than_another(tmp_path):
    def drawn(*ends: float):
        curves = {str(end): (np.linspace(0, end, 10), RNG.normal(size=(3, 10))) for end in ends}
        (axes,) = plots.learning_curves(curves, tmp_path / "a.svg").axes
        return axes

    assert drawn(1e5, 1e6).get_xscale() == "linear"
    axes = drawn(1e5, 1.1e6)
    assert axes.get_xscale() == "log" and axes.get_xlim()[0] > 1000
    assert all(len(line.get_xdata()) == 9 for line in thick(axes).values())


def test_a_panel_for_each_measure_and_a_line_for_each_way_it_was_measured(tmp_path):
    numbers = lambda: (STEPS, RNG.normal(size=(1, 10)))
    panels = {
        "return": {"in training": {"a": numbers(), "b": numbers()}, "evaluated": {"a": numbers()}},
        "coverage": {"evaluated": {"b": numbers()}},
    }
    figure = plots.panels_of_curves(panels, tmp_path / "a.png", "A title")
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
    figure = plots.panels_of_curves(alone, tmp_path / "alone.png")
    trained, evaluated = figure.axes[0].lines
    assert trained.get_color() != evaluated.get_color()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["in training", "evaluated"]


def test_seeds_without_a_value_are_left_out_of_their_columns(tmp_path):
    values = RNG.normal(size=(4, 10))
    values[0, 5:] = np.nan
    values[1:, 8] = np.inf  # diverged
    values[1:3, 9] = np.nan
    figure = plots.learning_curves({"a": (STEPS, values)}, tmp_path / "a.png")
    mean = thick(figure.axes[0])["a"].get_ydata()
    np.testing.assert_allclose(mean[:5], values[:, :5].mean(0))
    np.testing.assert_allclose(mean[5:8], values[1:, 5:8].mean(0))
    assert np.isnan(mean[8]) and mean[9] == values[3, 9]
    drawn = band(figure.axes[0])
    np.testing.assert_allclose(drawn[STEPS[6]], mean_interval(values[1:, 6])[1:])
    assert STEPS[9] not in drawn  # one seed has no interval


def test_column_intervals():
    values = RNG.normal(size=(6, 4))
    for got, expected in zip(plots.column_intervals(values), mean_interval(values), strict=True):
        np.testing.assert_allclose(got, expected)
    many = np.append(np.arange(8.0), np.nan)[:, None] ** 2
    robust = plots.column_intervals(many, robust=True)
    assert robust.estimate == np.mean([4, 9, 16, 25])  # of 8, the two at each end are left out
    assert 0 < robust.low[0] < robust.estimate < robust.high[0] < 49
    nothing = plots.column_intervals(np.array([[1.0, np.inf], [-np.inf, np.nan]]))
    np.testing.assert_array_equal(nothing, [[1, np.nan], [np.nan, np.nan], [np.nan, np.nan]])


def test_profiles_are_exact_steps_with_bands_but_of_one_run():
    scores = {"a": np.array([1.0, 2.0, 2.0, 5.0]), "b": np.array([[2.0, 4.0]])}
    figure = plots.performance_profiles(scores, None, colors={"a": "red", "b": "blue"})
    (axes,) = figure.axes
    drawn = {label: line for label, line in thick(axes).items() if label in scores}
    for label, line in drawn.items():
        assert line.get_drawstyle() == "steps-post"
        for x, share in zip(*line.get_data(), strict=True):
            assert share == np.mean(scores[label] > x)
    np.testing.assert_allclose(drawn["a"].get_xdata(), [0.8, 1, 2, 4, 5, 5.2])
    assert len(axes.collections) == 1 and drawn["a"].get_color() == "red"
    plots.performance_profiles({"a": [3.0, 3.0]}, None)  # of no width
    with pytest.raises(UserError, match="no scores"):
        plots.performance_profiles({}, None)


def test_narrow_pictures_have_their_legend_below_and_grow_with_it():
    few, many = (
        plots.learning_curves(
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
    figure = plots.learning_curves(curves, tmp_path / "many.png")
    assert_picture(tmp_path / "many.png")
    lines = figure.axes[0].lines
    assert len(lines) == 40 and len({tuple(line.get_color()) for line in lines}) == 40


@pytest.mark.parametrize(
    "values", [[[1.0]], [[np.nan, np.nan]], [[5.0, 5.0]], [[0.0], [0.0]]], ids=str
)
def test_degenerate_curves_are_drawn_without_a_warning(tmp_path, values, recwarn):
    figure = plots.learning_curves({"a": (np.arange(len(values[0])), values)}, tmp_path / "a.png")
    assert_picture(tmp_path / "a.png")
    low, high = figure.axes[0].get_ylim()
    assert low < high and not recwarn.list
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["a (no value)" if np.isnan(values).all() else "a"]


def test_wide_intervals_do_not_flatten_the_data(tmp_path):
    values = np.array([[0.0, 100.0], [1.0, 40.0]])  # the second interval is 762 wide
    figure = plots.learning_curves({"a": ([0, 1], values)}, tmp_path / "a.png")
    low, high = figure.axes[0].get_ylim()
    assert -120 < low < 0 and 100 < high < 220


RATES = [1e-2, 1e-4, 1e-3]


def bars(axes) -> np.ndarray:
    """[n, 2, 2]: the end points of each vertical or horizontal interval."""
    return np.array([p for c in axes.collections for p in c.get_segments() if len(p)])


def test_a_sweep_of_one_hyper_parameter(tmp_path):
    scores = RNG.normal(size=(3, 5))
    scores[0, 0] = np.nan
    settings = {"rate": RATES, "gamma": [0.99] * 3}
    figure = plots.sweep_picture(settings, scores, tmp_path / "sweep.png", "A sweep")
    assert_picture(tmp_path / "sweep.png")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "rate" and not figure.legends
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), sorted(RATES))
    expected = [mean_interval(scores[i][np.isfinite(scores[i])]) for i in (1, 2, 0)]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [e.estimate for e in expected])
    np.testing.assert_allclose(bars(axes)[:, :, 1], [e[1:] for e in expected])


@pytest.mark.filterwarnings("error")
def test_a_setting_without_a_score_does_not_stretch_the_axis(tmp_path):
    scores = [[9.0, 10.0], [np.nan, np.nan]]
    figure = plots.sweep_picture({"rate": [1e-3, 1e30]}, scores, tmp_path / "a.png")
    assert figure.axes[0].get_xscale() == "linear"


@pytest.mark.parametrize(
    "values, scale",
    [([1, 2, 10], "linear"), ([1, 2, 11], "log"), ([0, 1, 11], "symlog"), ([-1, 1, 99], "linear")],
)
def test_the_axis_of_a_sweep(tmp_path, values, scale):
    figure = plots.sweep_picture({"a": values}, RNG.normal(size=(3, 2)), tmp_path / "a.png")
    assert figure.axes[0].get_xscale() == scale


def test_a_sweep_of_two_hyper_parameters(tmp_path):
    pairs = [(rate, norm) for norm in (True, False) for rate in RATES]
    scores = RNG.normal(size=(6, 4))
    settings = {"norm": [n for _, n in pairs], "rate": [r for r, _ in pairs]}
    figure = plots.sweep_picture(settings, scores, tmp_path / "a.png")
    assert_picture(tmp_path / "a.png")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "rate" and figure.legends[0].get_title().get_text() == "norm"
    assert set(thick(axes)) == {"True", "False"}
    for label, rows in (("True", [1, 2, 0]), ("False", [4, 5, 3])):
        np.testing.assert_allclose(thick(axes)[label].get_ydata(), scores[rows].mean(1))
        np.testing.assert_allclose(thick(axes)[label].get_xdata(), sorted(RATES), rtol=0.05)


@pytest.mark.parametrize(
    "settings",
    [
        {"net": ["small", "large", "huge"]},
        {"rate": [1, 2, 3], "net": ["a", "b", "c"], "flag": [True, False, True]},
        {"rate": [1e-3, 1e-3, 1e-4]},  # a setting twice
        {},
    ],
    ids=["one of words", "three", "repeated", "none"],
)
def test_any_other_sweep_becomes_bars(tmp_path, settings):
    scores = np.array([[3.0, 4.0, 5.0], [0.0, 1.0, 2.0], [np.nan] * 3])
    figure = plots.sweep_picture(settings, scores, tmp_path / "a.png")
    assert_picture(tmp_path / "a.png")
    (axes,) = figure.axes
    np.testing.assert_allclose([p.get_width() for p in axes.patches], [np.nan, 1.0, 4.0])
    segments = bars(axes)
    np.testing.assert_allclose(segments[:, :, 0], [mean_interval(s)[1:] for s in scores[1::-1]])
    labels = [t.get_text() for t in axes.get_yticklabels()]
    for name, values in settings.items():
        assert f"{name}={plots._show(values[0])}" in labels[2]


def test_bad_input_is_said(tmp_path):
    path = tmp_path / "a.png"
    with pytest.raises(UserError, match="no learning curve"):
        plots.learning_curves({}, path)
    with pytest.raises(UserError, match=r"curve 'a' needs .* not shapes \[3\] and \[2, 4\]"):
        plots.learning_curves({"a": (np.arange(3), np.ones((2, 4)))}, path)
    with pytest.raises(UserError, match=r"\[settings, seeds\], not \[0\]"):
        plots.sweep_picture({"a": []}, [], path)
    with pytest.raises(UserError, match=r"sweep of 2 settings .* 'a' has 3"):
        plots.sweep_picture({"a": [1, 2, 3]}, np.ones((2, 4)), path)
    assert not path.exists()


@pytest.mark.slow
def test_matplotlib_is_imported_late_and_pyplot_never(tmp_path):
    program = f"""
import sys
from jaxrl.evaluation import plots
assert "matplotlib" not in sys.modules
plots.learning_curves(dict(a=([0, 1], [[0, 1]])), {str(tmp_path / "a.png")!r})
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_same_picture_is_the_same_svg(tmp_path):
    for name in ("a.svg", "b.svg"):
        plots.learning_curves({"a": (STEPS, np.ones((2, len(STEPS))))}, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
