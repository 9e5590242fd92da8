import errno
import json
import resource

import numpy as np
import pytest

from jaxrl.runtime import log as logs


def row(steps, **metrics):
    return {"kind": "train", "steps": steps, "updates": steps, "metrics": metrics}


def test_rows_come_back_and_what_is_not_finite_is_null(tmp_path):
    log = logs.Log(tmp_path / "m.jsonl")
    log.write(row(1, x=np.array([1.5, np.nan, np.inf]), y=np.arange(3)))
    log.close()
    assert logs.read(tmp_path / "m.jsonl") == [row(1, x=[1.5, None, None], y=[0, 1, 2])]


def test_numbers_keep_their_bits(tmp_path):
    values = np.random.default_rng(0).normal(size=100).astype(np.float32)
    log = logs.Log(tmp_path / "m.jsonl")
    log.write(row(1, x=values))
    log.close()
    (read,) = logs.read(tmp_path / "m.jsonl")
    assert np.float32(read["metrics"]["x"]).tobytes() == values.tobytes()


def test_a_long_log_is_thinned_evenly_and_in_order(tmp_path):
    log, path = logs.Log(tmp_path / "m.jsonl"), tmp_path / "m.jsonl"
    for step in range(1000):
        log.write(row(step) | {"kind": "evaluation" if step % 10 == 9 else "train"})
    log.close()
    rows = logs.read(path, most=50)
    for kind in ("train", "evaluation"):
        steps = [x["steps"] for x in rows if x["kind"] == kind]
        assert 50 <= len(steps) < 100 and steps[0] < 10
        gaps = np.diff(steps)
        assert gaps.min() > 0 and gaps.max() < 2 * gaps.min()
    assert [x["steps"] for x in rows] == sorted(x["steps"] for x in rows)
    assert logs.read(path, most=1000) == logs.read(path) and len(logs.read(path)) == 1000


def write(path, *steps):
    log = logs.Log(path)
    for step in steps:
        log.write(row(step, x=np.array([float(step)])))
    size = log.size()
    log.close()
    return size


def test_opening_at_a_checkpoint_forgets_what_came_after(tmp_path):
    path, said = tmp_path / "m.jsonl", []
    size = write(path, 1, 2)
    write(path, 3)
    with path.open("a") as file:
        file.write('{"kind": "tra')
    log = logs.Log(path, 2, size, said.append)
    assert log.size() == size
    log.write(row(4))
    log.close()
    assert [r["steps"] for r in logs.read(path)] == [1, 2, 4] and said == []


@pytest.mark.parametrize("left", [None, 0, 60, 130], ids=str)
def test_a_log_that_lost_rows_goes_on_with_those_that_are_there(tmp_path, left):
    path, said = tmp_path / "m.jsonl", []
    size = write(path, 1, 2, 3)
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    assert 60 < first < 130 < size
    path.unlink() if left is None else path.write_bytes(content[:left])
    kept = first if left == 130 else 0
    log = logs.Log(path, 3, size, said.append)
    assert log.size() == kept
    (sentence,) = said
    assert f"'{path}' has lost rows: it had {size} bytes" in sentence
    assert f"has {kept} now" in sentence
    # Resuming from the same checkpoint again cuts off later rows as always.
    for step in (4, 5, 6, 7):
        log.write(row(step, x=np.array([0.0])))
    assert log.size() > size
    log.close()
    logs.Log(path, 3, size, said.append).close()
    assert [r["updates"] for r in logs.read(path)] == ([1] if kept else [])


BAD = [
    "[]", "3", "null", "\"kind\"", "{", "not JSON", "", "[" * 100_000, "\x00\x1b\x07", "{}",
    '{"steps": 1, "updates": 1, "metrics": {}}',
    '{"kind": "train", "steps": 1, "updates": "2", "metrics": {}}',
    '{"kind": "train", "steps": null, "updates": 2, "metrics": {}}',
    '{"kind": "train", "steps": 1, "updates": 2, "metrics": []}',
    '{"kind": "train", "steps": 1, "updates": 2, "metrics": {"x": "high"}}',
    '{"kind": "train", "steps": 1, "updates": 2, "metrics": {"x": [[1.0]]}}',
]  # fmt: skip


def test_lines_that_are_no_rows_are_passed_over_and_counted(tmp_path):
    path, said = tmp_path / "m.jsonl", []
    good = [json.dumps(row(i, x=[1.0])) for i in (1, 2)]
    bad = [line.encode() for line in BAD] + [b"\xff\xfe"]
    path.write_bytes(b"\n".join([good[0].encode(), *bad, good[1].encode(), b""]))
    sentence = f"In the log '{path}' {len(bad)} lines are not rows; skipped."
    assert [r["steps"] for r in logs.read(path, "train", said.append)] == [1, 2]
    assert said == [sentence]
    before = path.read_bytes()
    logs.Log(path, 2, len(before), said.append).close()  # bad lines stay in the file
    assert said == [sentence] and path.read_bytes() == before
    path.write_text(f"{good[0]}\n[]\n")
    with pytest.warns(UserWarning, match="1 line is not a row"):
        assert logs.read(path, "evaluation") == []


def test_no_log_has_no_rows(tmp_path):
    with pytest.warns(UserWarning, match="There is no log"):
        assert logs.read(tmp_path / "m.jsonl") == []


def test_rows_of_a_log_that_was_deleted_are_not_written_to_nowhere(tmp_path):
    path = tmp_path / "m.jsonl"
    log = logs.Log(path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"m\.jsonl"):
        log.write(row(1))
    log.close()


def test_a_row_that_does_not_fit_is_an_error_once(tmp_path):
    """A row that the disk refused is not written again when the log is closed."""
    path = tmp_path / "m.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = write(path, 1)
    log = logs.Log(path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        with pytest.raises(OSError, match="too large") as error:
            log.write(row(2))
        log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.errno == errno.EFBIG and error.value.filename == str(path)
    assert [r["steps"] for r in logs.read(path)] == [1]


def test_a_half_written_last_line_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(row(1)) + "\n" + json.dumps(row(2))[:-3])
    assert [r["steps"] for r in logs.read(path)] == [1]


def test_what_a_run_is_judged_by():
    scores = {"qd_score": "QD-score", "success": "success"}
    metrics = ("loss", "episode_return", "qd_score", "coverage")
    found = logs.score_names("train", metrics, scores)
    assert list(found.items()) == [("return", "episode_return"), ("QD-score", "qd_score")]
    game = ("return_0", "return_1", "success")
    assert logs.score_names("evaluation", game, scores) == {
        "return of agent 0": "return_0",
        "success": "success",
    }
    assert logs.score_names("train", ("loss",), scores) == {}


def test_curves_of_what_a_run_is_judged_by():
    rows = [
        row(10, episode_return=[None, None], success=[0.0, 0.5]),
        row(20, episode_return=[None, None], success=[0.5, None]),
        row(20, **{"return": [3.0, 4.0]}) | {"kind": "evaluation"},
    ]
    found = logs.curves(rows, {"success": "success", "regret": "regret"})
    assert {label: list(kinds) for label, kinds in found.items()} == {
        "success": ["train"],  # no episode ended in training
        "return": ["evaluation"],
    }
    np.testing.assert_array_equal(found["success"]["train"][1], [[0, 0.5], [0.5, np.nan]])
    np.testing.assert_array_equal(found["return"]["evaluation"][0], [20])


def test_kinds_and_series(tmp_path):
    path = tmp_path / "m.jsonl"
    log = logs.Log(path)
    log.write(row(10, x=np.array([1.0, np.nan])))
    log.write(row(15, y=np.array([0.0, 0.0])))
    log.write(
        {"kind": "evaluation", "steps": 20, "updates": 20, "metrics": {"x": np.array([9.0, 9.0])}}
    )
    log.write(row(20, x=np.array([3.0, 4.0])))
    log.close()
    steps, values = logs.series(logs.read(path, "train"), "x")
    np.testing.assert_array_equal(steps, [10, 20])
    np.testing.assert_array_equal(values, [[1, 3], [np.nan, 4]])
    assert logs.series([], "x")[1].size == 0
