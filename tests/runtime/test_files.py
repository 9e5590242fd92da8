"""Files of runs are written whole or not at all."""

import errno

import pytest

from jaxrl.core.errors import UserError
from jaxrl.runtime import files


def test_a_failure_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "records.json"
    files.write_text(path, "old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match=r"records.json"):
        files.write_text(path, "new")
    refused = pytest.raises(UserError, match=r"records.json' cannot be written: No space left")
    with refused, files.explained(tmp_path):
        files.write_text(path, "new")
    assert path.read_text() == "old" and [x.name for x in tmp_path.iterdir()] == ["records.json"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "summary.json"
    victim.write_text("mine")
    path.symlink_to(victim)
    files.write_text(path, "{}")
    assert victim.read_text() == "mine" and not path.is_symlink() and path.read_text() == "{}"


@pytest.mark.parametrize(
    ("text", "said"),
    {
        "[" * 100_000: "nested too deeply",
        "[1" + "0" * 400 + "]": "which is too large",
        "{": "Expecting property name",
    }.items(),
)
def test_json_that_nobody_wrote_is_a_value_error(tmp_path, text, said):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        files.read_json(tmp_path / "x.json")


def test_devices_are_not_read(tmp_path):
    (tmp_path / "x.json").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="not a plain file"):
        files.read_json(tmp_path / "x.json")
