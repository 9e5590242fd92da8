"""Progress on the screen, so that a run's silence never looks like a hang."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from jaxrl.runtime import processes


class Display:
    """A progress bar on a terminal, or an occasional line elsewhere; nothing if `quiet`."""

    LINE_SECONDS = 10.0

    def __init__(self, quiet: bool = False):
        first = processes.is_first()  # the others show nothing
        self.console = Console(
            stderr=True, quiet=quiet or not first, highlight=False, soft_wrap=True
        )
        self._loud = Console(stderr=True, quiet=not first, highlight=False, soft_wrap=True)
        self._bar: _Bar | None = None
        self._began, self._first, self._last_line = 0.0, 0, 0.0
        self._total, self._members, self._unit = 0, 1, ""
        self._scores: dict[str, dict[bool, str]] = {}  # name -> whether evaluated -> text

    def say(self, message: str) -> None:
        """Print a line, unless `quiet`."""
        self.console.print(message, markup=False)

    def warn(self, message: str) -> None:
        """Print a line even if `quiet`."""
        console = self._loud if self.console.quiet else self.console
        console.print(message, markup=False)

    @contextlib.contextmanager
    def announce(self, what: str, log: dict[str, float]) -> Iterator[None]:
        """Announce that `what` begins, then how long it took; record the seconds in `log`."""
        began = time.perf_counter()
        with self.console.status(f"{what} ..."):
            if not self.console.is_terminal:
                self.say(f"{what} ...")
            yield
        log[what.lower()] = time.perf_counter() - began
        self.say(f"{what}: {log[what.lower()]:.1f} s")

    @contextlib.contextmanager
    def progress(self, steps: int, total: int, members: int, unit: str = "steps") -> Iterator[None]:
        """Show progress while this is open, in environment steps (or `unit`) of each member."""
        self._began = self._last_line = time.perf_counter()
        self._first = steps
        self._total, self._members, self._unit = total, members, unit
        self._scores = {}
        if not self.console.is_terminal:
            yield
            return
        with _Bar(
            BarColumn(None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]} ·", markup=False),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.console,
        ) as self._bar:
            self._bar.add_task("", total=total, completed=steps, text=unit)
            yield
        self._bar = None

    def show(self, scores: Mapping[str, np.ndarray], evaluated: bool = False) -> None:
        """Show scores beside the progress.

        Args:
            scores: name -> current value of each member, not finite where there is none. The first
                name is shown with its spread over the members.
            evaluated: whether the scores are those of an evaluation, shown beside the training's
                own.
        """
        for name, values in scores.items():
            texts = self._scores.setdefault(name, {})
            values = values[np.isfinite(values)]
            if values.size:
                texts[evaluated] = f"{values.mean():.5g}"
            if values.size > 1 and name == next(iter(self._scores)):
                texts[evaluated] += f" ({values.min():.5g} to {values.max():.5g})"

    def _score_texts(self) -> list[str]:
        """Return a text such as `return 23 (20 to 27), evaluated 31` for each name with a value."""
        found = []
        for name, texts in self._scores.items():
            if False in texts:
                evaluated = f", evaluated {texts[True]}" if True in texts else ""
                found.append(f"{name} {texts[False]}{evaluated}")
            elif texts:
                found.append(f"evaluated {name} {texts[True]}")
        return found

    def advance(self, steps: int) -> None:
        """Update the progress: each member has done `steps` steps (or other units) so far."""
        now = time.perf_counter()
        rate = (steps - self._first) * self._members / max(now - self._began, 1e-9)
        speed = f"{per_second(rate)} {self._unit}/s"
        if self._members > 1:
            speed += f" (all {self._members} together)"
        if self._bar is not None:
            self._bar.below = " · ".join(self._score_texts())
            text = f"{self._unit} · {speed}"
            self._bar.update(self._bar.task_ids[0], completed=steps, text=text)
        elif now - self._last_line > self.LINE_SECONDS or steps >= self._total:
            self._last_line = now
            left = (self._total - steps) * self._members / max(rate, 1e-9)
            text = " · ".join([self._unit, speed, *self._score_texts()])
            self.say(f"{steps:,} of {self._total:,} {text} · {left:.0f} s left")


class _Bar(Progress):
    """A progress bar with a text below it if it has room."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(self.below)


def per_second(rate: float) -> str:
    """Format a rate with two or three digits, such as 0.4, 12, 1.2k and 3.45M."""
    if rate >= 999_950:
        return f"{rate / 1e6:.2f}M"
    if rate >= 999.5:
        return f"{rate / 1e3:.1f}k"
    return f"{rate:.0f}" if rate >= 9.95 else f"{rate:.2g}"
