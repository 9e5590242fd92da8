"""A run's log as a table."""

import json

import numpy as np
import pytest

import jaxrl.runtime
from jaxrl.core.errors import UserError

LABELS = [{"seed": 3, "discount": 0.9}, {"seed": 4, "discount": 0.99}]


def make_folder(folder, rows, labels=LABELS, end="\n"):
    """Make a run's folder with these rows and everything else that the table reads."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("algorithm: their_package.mine:agent\n")
    (folder / "members.json").write_text(json.dumps({"labels": labels, "hyper": {}}))
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + end)
    return folder


def row(kind, updates, time, **metrics):
    return {
        "kind": kind,
        "steps": 8 * updates,
        "updates": updates,
        "time": time,
        "metrics": metrics,
    }


def test_a_row_for_each_row_of_the_log_and_member(tmp_path):
    rows = [
        row("train", 1, 100.0, episode_return=[1.0, None], seed=[0.5, 0.5]),
        row("evaluation", 2, 130.5, **{"return": [7.0, 8.0]}),
    ]
    table = jaxrl.runtime.read(make_folder(tmp_path / "run", rows))
    names = ["kind", "steps", "updates", "seconds", "member", "seed", "discount"]
    assert list(table) == [*names, "episode_return", "metrics.seed", "return"]
    assert all(column.shape == (4,) for column in table.values())
    assert table["kind"].tolist() == ["train", "train", "evaluation", "evaluation"]
    assert table["steps"].tolist() == [8, 8, 16, 16] and table["updates"].tolist() == [1, 1, 2, 2]
    assert table["seconds"].tolist() == [0, 0, 30.5, 30.5]
    assert table["member"].tolist() == [0, 1, 0, 1] and table["seed"].tolist() == [3, 4, 3, 4]
    assert table["discount"].tolist() == [0.9, 0.99, 0.9, 0.99]
    nan = np.nan
    np.testing.assert_array_equal(table["episode_return"], [1, nan, nan, nan])
    np.testing.assert_array_equal(table["metrics.seed"], [0.5, 0.5, nan, nan])
    np.testing.assert_array_equal(table["return"], [nan, nan, 7, 8])
    assert table["steps"].dtype.kind == "i" and table["seed"].dtype.kind == "i"


def test_a_run_that_goes_on_and_one_of_an_older_log(tmp_path):
    """The last line is incomplete; an older log has single values, and its time as `seconds`."""
    old = row("train", 1, 0.0, loss=2.0)
    old["seconds"] = old.pop("time")
    table = jaxrl.runtime.read(
        make_folder(tmp_path / "run", [old, {"kind": "t"}], [{"seed": 0}], end="")
    )
    assert table["loss"].tolist() == [2.0] and table["seconds"].tolist() == [0.0]
    assert table["seed"].tolist() == [0]


def test_what_is_no_table(tmp_path):
    with pytest.raises(UserError, match="There is no run folder"):
        jaxrl.runtime.read(tmp_path / "none")
    run = make_folder(tmp_path / "run", [], end="")
    for _ in range(2):
        with pytest.raises(UserError, match="has logged nothing yet"):
            jaxrl.runtime.read(run)
        (run / "metrics.jsonl").unlink(missing_ok=True)
    make_folder(run, [row("train", 1, 0.0, loss=[1.0])])
    with pytest.raises(UserError, match="loss has 1 values at update 1, and there are 2 members"):
        jaxrl.runtime.read(run)
