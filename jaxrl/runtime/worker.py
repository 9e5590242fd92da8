"""A thread for calls that may never return."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any


class Call:
    """A call that was asked for: `done` is set when `value` or `error` is there."""

    def __init__(self, function: Callable[[], Any]):
        self.function = function
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None


class Worker:
    """One thread that makes calls in the order in which they are asked for.

    It is a daemon, so a call that hangs keeps no process from ending. It ends with its `Worker`.
    """

    def __init__(self):
        calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(calls,), daemon=True).start()
        self._calls = calls
        weakref.finalize(self, calls.put, None)

    def begin(self, function: Callable[[], Any]) -> Call:
        """Ask for `function()`; who wants its result waits for `done`, as long as they please."""
        call = Call(function)
        self._calls.put(call)
        return call


def _work(calls: queue.SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        try:
            call.value = call.function()
        except BaseException as error:  # SystemExit too: who waits must learn of it
            call.error = error
        call.done.set()
        del call  # or what it holds would live until the next one
