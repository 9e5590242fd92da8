"""Parts of a long computation, kept in files, so that an interruption costs one part."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote


class Parts:
    """The finished parts of an attempt, each a file of `folder`.

    `seconds` is the time that all of them took, those of an earlier process included. Parts that
    were made under other `facts` (another commit, another device) are deleted.
    """

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        clock: Callable[[], float] = time.perf_counter,
        tell: Callable[[str], None] = lambda line: None,
    ):
        self.folder, self.clock, self.tell = folder, clock, tell
        self.seconds = 0.0
        stamp = folder / "facts.json"
        if folder.exists() and (not stamp.exists() or _read(stamp) != dict(facts)):
            tell(f"{folder.name} was made by other code or on another machine; it begins anew.")
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        _write(stamp, dict(facts))

    def get(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what `compute` returns, as JSON, or read it from the file of this name.

        A file is written as a whole or not at all.
        """
        path = self.folder / f"{quote(name, safe=' ')}.json"
        if not path.exists():
            began = self.clock()
            value = compute()
            _write(path, {"seconds": self.clock() - began, "value": value})
        part = _read(path)
        self.seconds += part["seconds"]
        self.tell(f"{name}: {part['seconds']:.0f} s, {self.seconds:.0f} s in all")
        return part["value"]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, value: Any) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value), encoding="utf-8")
    os.replace(new, path)
