"""Errors that end a run early, and what they say."""

from __future__ import annotations


class Stopped(Exception):
    """Training could not continue; the message says since when, and where its state is saved."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether NumPy, XLA or the operating system (as for a thread's stack) lacked memory."""
    message = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and ("RESOURCE_EXHAUSTED" in message or "can't start new thread" in message)
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
