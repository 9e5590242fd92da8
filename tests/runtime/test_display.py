"""The display, on a terminal and in a file."""

import os
import pty
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxrl.runtime.display import Display, per_second
from tests.runtime import tiny


def test_lines_where_there_is_no_terminal(capsys):
    display, seconds = Display(), {}
    with display.announce("Compiling", seconds):
        pass
    with display.progress(0, 1000, 2):
        display.advance(500)  # too early for a line
        display.show({"return": np.array([1.0, np.nan, 3.0]), "coverage": np.array([0.25, 0.5])})
        display.show({"return": np.array([5.0, 7.0])}, evaluated=True)
        display.show({"exploitability": np.array([0.5])}, evaluated=True)
        display.advance(1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Compiling ..." and re.fullmatch(r"Compiling: \d+\.\d s", lines[1])
    assert re.fullmatch(
        r"1,000 of 1,000 steps · \S+ steps/s \(all 2 together\) · return 2 \(1 to 3\), "
        r"evaluated 6 \(5 to 7\) · coverage 0\.375 · evaluated exploitability 0\.5 · 0 s left",
        lines[2],
    )
    assert len(lines) == 3 and seconds.keys() == {"compiling"}


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        (0.0, "0"), (0.04, "0.04"), (0.4, "0.4"), (3.26, "3.3"), (9.96, "10"), (12.4, "12"),
        (999.4, "999"), (999.6, "1.0k"), (1234.0, "1.2k"), (999_940.0, "999.9k"),
        (999_960.0, "1.00M"), (3_450_000.0, "3.45M"), (2e9, "2000.00M"),
    ],
)  # fmt: skip
def test_rates_of_any_size(rate, shown):
    assert per_second(rate) == shown


def test_what_a_rate_is_of(capsys, monkeypatch):
    """A rate is summed over members, and the display says so if there are several."""
    for members, said in ((1, "12 steps/s ·"), (8, "96 steps/s (all 8 together) ·")):
        moments = iter([0.0, 50.0])
        monkeypatch.setattr(time, "perf_counter", lambda: next(moments))  # noqa: B023
        display = Display()
        with display.progress(0, 600, members):
            display.advance(600)
        assert f"600 of 600 steps · {said}" in capsys.readouterr().err


def test_a_line_now_and_then(capsys, monkeypatch):
    display = Display()
    monkeypatch.setattr(Display, "LINE_SECONDS", -1.0)
    with display.progress(100, 1000, 1):
        display.advance(550)
    # There is no return yet, so none is shown.
    assert re.match(r"550 of 1,000 steps · \S+ steps/s · \d+ s left", capsys.readouterr().err)


def test_returns_that_are_not_there_leave_the_last_one(capsys):
    display = Display()
    with display.progress(0, 10, 1):
        display.show({"return": np.array([5.0])})
        display.show({"return": np.array([np.nan])})
        display.advance(10)
    assert "return 5 ·" in capsys.readouterr().err


def test_what_is_counted_may_be_other_than_steps(capsys):
    display = Display()
    with display.progress(0, 40, 1, "episodes"):
        display.advance(40)
    assert re.match(r"40 of 40 episodes · \S+ episodes/s · 0 s left", capsys.readouterr().err)


def test_quiet_silences_all_but_warnings(capsys):
    display = Display(quiet=True)
    display.say("progress")
    with display.announce("Compiling", {}), display.progress(0, 10, 1):
        display.advance(10)
    display.warn("a checkpoint [bold]is not whole")
    assert capsys.readouterr().err == "a checkpoint [bold]is not whole\n"


def test_messages_are_printed_as_they_are(capsys):
    Display().say("Saved in runs/[red]x[/red] at 'a' " + "x" * 200)
    assert capsys.readouterr().err == "Saved in runs/[red]x[/red] at 'a' " + "x" * 200 + "\n"


@pytest.mark.slow
def test_a_bar_on_a_terminal():
    code = (
        "import numpy as np\nfrom jaxrl.runtime.display import Display\n"
        "d = Display()\n"
        "with d.announce('Compiling', {}): pass\n"
        "with d.progress(0, 1000, 1):\n"
        "    d.show({'return': np.array([7.0])})\n    d.advance(1000)\n    d.say('in between')\n"
    )
    master, slave = pty.openpty()
    env = os.environ | {"PYTHONPATH": str(tiny.ROOT), "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=slave, env=env) as run:
        os.close(slave)
        shown = b""
        try:
            while part := os.read(master, 4096):
                shown += part
        except OSError:  # how Linux says that a terminal was closed
            pass
    os.close(master)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert run.returncode == 0
    assert re.search(r"Compiling: \d+\.\d s", text) and "in between" in text
    assert re.search(r"1000/1000 steps · \S+ steps/s · 0:00:00 left\s+return 7", text)
