"""Points that Optuna proposes: within what is varied, better than chance, the same when resumed."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from jaxrl.commands import command_line
from jaxrl.runtime.session import Session
from jaxrl.sweeps import proposals
from jaxrl.sweeps.points import Values
from tests.runtime import tiny
from tests.sweeps.test_launching import assert_same_sweep

pytest.importorskip("optuna")

VARIED = {
    "rate": Values((), 1e-5, 1e-1, log=True),
    "clip": Values((), -1.0, 1.0),
    "width": Values.of([64, 16, 32]),
    "hidden": Values(((4,), (8, 8))),
    "name": Values(("relu", "tanh")),
    "flag": Values((False, True)),
}


def propose(points=(), scores=(), count=5, seed=0, varied=VARIED):
    return proposals.propose(varied, points, scores, count=count, seed=seed)


def test_points_are_within_what_is_varied_and_all_of_it_is_proposed():
    points = propose(count=60)
    for point in points:
        assert list(point) == list(VARIED)
        for name, value in point.items():
            values = VARIED[name]
            is_in = value in values.listed if values.listed else values.clip(value) == value
            assert is_in and type(value) in {type(x) for x in values.listed or (0.0,)}
    for name in ("width", "hidden", "name", "flag"):
        assert {point[name] for point in points} == set(VARIED[name].listed)
    below = np.mean([point["rate"] < 1e-3 for point in points])
    assert 0.3 < below < 0.7  # uniform in the logarithm


def test_proposals_depend_on_the_seed_the_points_and_the_scores():
    first = propose()
    assert first == propose() and first != propose(seed=1)
    # A batch as JSON holds it is the same one.
    read = [x | {"hidden": tuple(x["hidden"])} for x in json.loads(json.dumps(first))]
    assert propose(first, range(5)) == propose(read, range(5)) != first
    twenty = propose(count=20)
    rates = [-abs(np.log(point["rate"] / 1e-3)) for point in twenty]
    assert propose(twenty, rates) != propose(twenty, [-x for x in rates])


def test_points_are_not_proposed_twice_while_there_are_others():
    varied = {"clip": Values.of([0.1, 0.2, 0.3]), "hidden": Values(((4,), (8,)))}
    points = propose(count=6, varied=varied)
    assert len({tuple(point.values()) for point in points}) == 6
    more = propose(points, range(6), count=2, varied=varied)  # there are no others
    assert len(more) == 2 and all(point in points for point in more)


def search(score, seed, batches=6, size=5, varied=VARIED):
    points, scores = [], []
    for _ in range(batches):
        new = propose(points, scores, count=size, seed=seed, varied=varied)
        points += new
        scores += [score(point) for point in new]
    return points, scores


def test_later_batches_are_better_than_chance():
    score = lambda point: -abs(np.log10(point["rate"] / 1e-2)) + 2 * point["flag"]
    late, early = [], []
    for seed in range(5):
        _, scores = search(score, seed)
        early.append(np.mean(scores[:10]))
        late.append(np.mean(scores[-10:]))
    assert np.mean(late) > np.mean(early) + 0.5


def test_points_that_diverge_are_left():
    score = lambda point: np.nan if point["rate"] > 1e-3 else 1.0
    found = [search(score, seed)[0] for seed in range(5)]
    above = lambda points: np.mean([point["rate"] > 1e-3 for point in points])
    assert np.mean([above(x[-10:]) for x in found]) < np.mean([above(x[:10]) for x in found])
    assert len(propose(propose(), [np.nan] * 5)) == 5  # all of them


# ------------------------------------------------------------------------------------- sweeps

WORDS = ["--vary", "learning-rate=log(1e-4,1e-2)", "hidden=4/8", "--samples", "5", "--optuna", "2"]


def sweep(out: Path) -> int:
    return tiny.call("sweep", out, "--name", "sweep", "--quiet", "--seeds", "2", *WORDS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert sweep(out) == 0
    return out / "sweep"


def points_in(folder: Path) -> list:
    return json.loads((folder / "sweep.json").read_text())["points"]


@pytest.mark.slow
def test_batches_are_proposed_from_the_returns_before(whole):
    points = points_in(whole)
    assert len(points) == 5 and not list(whole.glob(".sweep.json*"))
    text = (whole / "sweep.csv").read_text().splitlines()
    last = {}
    for row in text[1:]:
        point, seed, *_, score = row.split(",")
        last[int(point), int(seed)] = float(score)
    scores = [np.mean([last[i, 0], last[i, 1]]) for i in range(5)]
    as_points = [x | {"torso.hidden": tuple(x["torso.hidden"])} for x in points]
    varied = {
        "optimizer.learning_rate": Values((), 1e-4, 1e-2, log=True),
        "torso.hidden": Values(((4,), (8,))),
    }
    for begin, count in ((0, 2), (2, 2), (4, 1)):
        batch = proposals.propose(varied, as_points[:begin], scores[:begin], count=count, seed=0)
        assert batch == as_points[begin : begin + count]
    # Points of a batch with the same structure are members of one program.
    members = [len(tiny.summary(run.parent)["members"]) for run in whole.glob("*/members.json")]
    assert sum(members) == 5 * 2


@pytest.mark.slow
def test_a_point_that_was_changed(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "sweep")
    record = json.loads((folder / "sweep.json").read_text())
    record["points"][0]["optimizer.learning_rate"] = 0.5
    (folder / "sweep.json").write_text(json.dumps(record))
    words = ["--resume", str(folder), "--quiet"]
    assert command_line.call(tiny.sweep_script.main, words) == 2
    assert "cannot be read: it has a point with a value that is" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_sweep_that_was_interrupted_proposes_the_same_points(batch, whole, tmp_path, monkeypatch):
    happen, folder = Session._on_event, tmp_path / "sweep"

    def interrupt(self, name, step, progress):
        if len(points_in(folder)) == (2, 4, 5)[batch] and self.interrupt.number is None:
            signal.raise_signal(signal.SIGINT)
        return happen(self, name, step, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_on_event", interrupt)
        with pytest.raises(SystemExit):
            sweep(tmp_path)
    assert points_in(folder) == points_in(whole)[: (2, 4, 5)[batch]]
    assert command_line.call(tiny.train_script.main, ["--resume", str(folder), "--quiet"]) == 0
    assert_same_sweep(folder, whole)
    assert (folder / "sweep.json").read_text() == (whole / "sweep.json").read_text()
