"""Profiles and sweeps: the files are valid, and the pictures show the given numbers."""

import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.evaluation.score_plots import format_value, performance_profiles, sweep_picture
from jaxrl.evaluation.statistics import score_interval
from tests.evaluation.pictures import assert_picture, bars, labeled_lines

RNG = np.random.default_rng(0)
RATES = [1e-2, 1e-4, 1e-3]


def test_profiles_are_exact_steps_with_bands_except_for_one_run():
    scores = {"a": np.array([1.0, 2.0, 2.0, 5.0]), "b": np.array([[2.0, 4.0]])}
    figure = performance_profiles(scores, None, colors={"a": "red", "b": "blue"})
    (axes,) = figure.axes
    drawn = {label: line for label, line in labeled_lines(axes).items() if label in scores}
    for label, line in drawn.items():
        assert line.get_drawstyle() == "steps-post"
        for x, share in zip(*line.get_data(), strict=True):
            assert share == np.mean(scores[label] > x)
    np.testing.assert_allclose(drawn["a"].get_xdata(), [0.8, 1, 2, 4, 5, 5.2])
    assert len(axes.collections) == 1 and drawn["a"].get_color() == "red"
    performance_profiles({"a": [3.0, 3.0]}, None)  # the axis would have no width
    with pytest.raises(UserError, match="no scores"):
        performance_profiles({}, None)


def test_a_sweep_of_one_hyperparameter(tmp_path):
    scores = RNG.normal(size=(3, 5))
    scores[0, 0] = np.nan
    settings = {"rate": RATES, "gamma": [0.99] * 3}
    figure = sweep_picture(settings, scores, tmp_path / "sweep.png", title="A sweep")
    assert_picture(tmp_path / "sweep.png")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "rate" and not figure.legends
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), sorted(RATES))
    expected = [score_interval(scores[i][np.isfinite(scores[i])]) for i in (1, 2, 0)]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [e.estimate for e in expected])
    np.testing.assert_allclose(bars(axes)[:, :, 1], [e[1:] for e in expected])


@pytest.mark.filterwarnings("error")
def test_a_setting_without_a_score_does_not_stretch_the_axis(tmp_path):
    scores = [[9.0, 10.0], [np.nan, np.nan]]
    figure = sweep_picture({"rate": [1e-3, 1e30]}, scores, tmp_path / "a.png")
    assert figure.axes[0].get_xscale() == "linear"


@pytest.mark.parametrize(
    "values, scale",
    [([1, 2, 10], "linear"), ([1, 2, 11], "log"), ([0, 1, 11], "symlog"), ([-1, 1, 99], "linear")],
)
def test_the_axis_of_a_sweep(tmp_path, values, scale):
    figure = sweep_picture({"a": values}, RNG.normal(size=(3, 2)), tmp_path / "a.png")
    assert figure.axes[0].get_xscale() == scale


def test_the_axis_of_a_log_scaled_setting(tmp_path):
    rates, scores = [1e-4, 3e-4, 1e-3], RNG.normal(size=(3, 2))
    figure = sweep_picture({"rate": rates}, scores, tmp_path / "a.png", log_scaled={"rate"})
    assert figure.axes[0].get_xscale() == "log"


def test_a_sweep_of_two_hyperparameters(tmp_path):
    pairs = [(rate, norm) for norm in (True, False) for rate in RATES]
    scores = RNG.normal(size=(6, 4))
    settings = {"norm": [n for _, n in pairs], "rate": [r for r, _ in pairs]}
    figure = sweep_picture(settings, scores, tmp_path / "a.png")
    assert_picture(tmp_path / "a.png")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "rate" and figure.legends[0].get_title().get_text() == "norm"
    assert set(labeled_lines(axes)) == {"True", "False"}
    for label, rows in (("True", [1, 2, 0]), ("False", [4, 5, 3])):
        np.testing.assert_allclose(labeled_lines(axes)[label].get_ydata(), scores[rows].mean(1))
        np.testing.assert_allclose(labeled_lines(axes)[label].get_xdata(), sorted(RATES), rtol=0.05)


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
    figure = sweep_picture(settings, scores, tmp_path / "a.png")
    assert_picture(tmp_path / "a.png")
    (axes,) = figure.axes
    np.testing.assert_allclose([p.get_width() for p in axes.patches], [np.nan, 1.0, 4.0])
    segments = bars(axes)
    np.testing.assert_allclose(segments[:, :, 0], [score_interval(s)[1:] for s in scores[1::-1]])
    labels = [t.get_text() for t in axes.get_yticklabels()]
    for name, values in settings.items():
        assert f"{name}={format_value(values[0])}" in labels[2]


def test_bad_sweeps_raise_an_error(tmp_path):
    path = tmp_path / "a.png"
    with pytest.raises(UserError, match=r"\[settings, seeds\], not \[0\]"):
        sweep_picture({"a": []}, [], path)
    with pytest.raises(UserError, match=r"sweep of 2 settings .* 'a' has 3"):
        sweep_picture({"a": [1, 2, 3]}, np.ones((2, 4)), path)
    assert not path.exists()
