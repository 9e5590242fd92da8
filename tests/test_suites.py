"""The command that tests each suite alone: names, packages, and what it prints."""

from __future__ import annotations

import subprocess

import pytest

from jaxrl.envs.adapters import SUITES
from tests import suites


def test_every_suite_has_packages():
    assert suites.names() == SUITES
    assert suites.requirements("playground") == ["playground>=0.2"]
    assert suites.requirements("xland") == ["xminigrid>=0.9.3"]
    assert suites.requirements("brax") == ["brax>=0.14.2"]
    assert all(suites.requirements(suite) for suite in SUITES)
    assert len(suites.project_tools()) == len(suites.TOOLS)


@pytest.mark.parametrize(
    "log,line",
    [
        ("..s\n2 passed, 1 skipped in 3.1s\n", "2 passed, 1 skipped"),
        ("1 failed, 2 passed\nlater\n", "1 failed, 2 passed"),
        ("ERROR: No matching distribution\n", "ERROR: No matching distribution"),
        ("", ""),
    ],
)
def test_the_outcome_is_the_counts_or_the_last_line(log, line, tmp_path):
    path = tmp_path / "log"
    path.write_text(log)
    assert suites._outcome(path) == line


def test_a_suite_that_fails_says_where_and_the_others_go_on(monkeypatch, capsys, tmp_path):
    def run(command, **streams):
        failed = "pip" in command and "pgx>=2.6" in command
        return subprocess.CompletedProcess(command, int(failed))

    monkeypatch.setattr(suites.subprocess, "run", run)
    monkeypatch.setattr(suites, "_versions", lambda python, suite: ["jax 0.10.2"])
    assert suites.main(["pgx", "navix", "gymnasium", "--folder", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("pgx: the installation failed") and "pgx.log" in lines[0]
    assert lines[1].startswith("navix: ") and "jax 0.10.2" in lines[1]
    assert lines[2] == "gymnasium: no tests of its own"


def test_an_unknown_suite_is_an_error(capsys):
    with pytest.raises(SystemExit):
        suites.main(["jumanjy"])
    assert "no suite is called jumanjy" in capsys.readouterr().err
