"""A thread for calls that may never return."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any


class Call:
    """A requested call: `done` is set once `value` or `error` is there."""

    def __init__(self, function: Callable[[], Any]):
        self.function = function
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None


class Worker:
    """One thread that makes calls in the order in which they are requested.

    It is a daemon, so a call that hangs does not keep the process from ending. The thread ends with
    its `Worker`.
    """

    def __init__(self):
        calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(calls,), daemon=True)
        self._thread.start()
        self._calls = calls
        weakref.finalize(self, calls.put, None)

    @property
    def is_here(self) -> bool:
        """True in the worker's own thread."""
        return threading.current_thread() is self._thread

    def begin(self, function: Callable[[], Any]) -> Call:
        """Request `function()`; to get its result, wait for `done`."""
        call = Call(function)
        self._calls.put(call)
        return call


def _work(calls: queue.SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        try:
            call.value = call.function()
        except BaseException as error:  # SystemExit too, since the caller waits for an answer
            call.error = error
        call.done.set()
        del call  # else its result would live until the next call
