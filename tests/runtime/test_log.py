import json

import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.runtime import log as logs


def row(steps, **metrics):
    return {"kind": "train", "steps": steps, "metrics": metrics}


def test_rows_come_back_and_what_is_not_finite_is_null(tmp_path):
    log = logs.Log(tmp_path / "m.jsonl")
    log.write(row(1, x=np.array([1.5, np.nan, np.inf]), y=np.float32(2)))
    log.close()
    assert logs.read(tmp_path / "m.jsonl") == [row(1, x=[1.5, None, None], y=2.0)]


def test_numbers_keep_their_bits(tmp_path):
    values = np.random.default_rng(0).normal(size=100).astype(np.float32)
    log = logs.Log(tmp_path / "m.jsonl")
    log.write(row(1, x=values))
    log.close()
    (read,) = logs.read(tmp_path / "m.jsonl")
    assert np.float32(read["metrics"]["x"]).tobytes() == values.tobytes()


def test_opening_at_a_size_forgets_what_came_after(tmp_path):
    path = tmp_path / "m.jsonl"
    log = logs.Log(path, 0)
    log.write(row(1))
    size = log.size()
    log.write(row(2))
    log.close()
    with path.open("a") as file:
        file.write('{"kind": "tra')
    log = logs.Log(path, size)
    log.write(row(3))
    log.close()
    assert [r["steps"] for r in logs.read(path)] == [1, 3]


def test_a_log_shorter_than_its_checkpoint_says_is_refused(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UserError, match="shorter than its checkpoint says"):
        logs.Log(path, 100)
    assert path.read_text() == "{}\n"


def test_a_half_written_last_line_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(row(1)) + "\n" + json.dumps(row(2))[:-3])
    assert [r["steps"] for r in logs.read(path)] == [1]


def test_kinds_and_series(tmp_path):
    path = tmp_path / "m.jsonl"
    log = logs.Log(path)
    log.write(row(10, x=np.array([1.0, np.nan])))
    log.write(row(15, y=np.array([0.0, 0.0])))
    log.write({"kind": "evaluation", "steps": 20, "metrics": {"x": np.array([9.0, 9.0])}})
    log.write(row(20, x=np.array([3.0, 4.0])))
    log.close()
    steps, values = logs.series(logs.read(path, "train"), "x")
    np.testing.assert_array_equal(steps, [10, 20])
    np.testing.assert_array_equal(values, [[1, 3], [np.nan, 4]])
    assert logs.series([], "x")[1].size == 0
