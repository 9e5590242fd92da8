"""Orbax without its log lines."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import jax


@contextlib.contextmanager
def quiet_orbax() -> Iterator[Any]:
    """Return an orbax checkpointer that logs nothing: errors are raised, so they need no log.

    Orbax is imported here, since that is slow. It logs through absl, which gives a root logger
    without handlers one that prints every library's lines from then on. A temporary handler, which
    does what Python does without any, keeps absl from that.
    """
    root, absl = logging.getLogger(), logging.getLogger("absl")
    stand_in, quiet = logging.StreamHandler(), lambda record: not _is_from_orbax()
    stand_in.setLevel(logging.WARNING)
    if not root.handlers:
        root.addHandler(stand_in)
    absl.addFilter(quiet)
    try:
        import orbax.checkpoint as orbax

        # Each process reads or writes for itself; orbax would let it wait for the others.
        alone = orbax.options.MultiprocessingOptions(
            primary_host=jax.process_index(), active_processes={jax.process_index()}
        )
        checkpointer = orbax.Checkpointer(
            orbax.PyTreeCheckpointHandler(multiprocessing_options=alone),
            multiprocessing_options=alone,
        )
        try:
            yield checkpointer
        finally:
            checkpointer.close()
    finally:
        absl.removeFilter(quiet)
        root.removeHandler(stand_in)


def _is_from_orbax() -> bool:
    """Return whether orbax is making this log record; the record itself names only absl."""
    frame = sys._getframe(1)
    while frame is not None:
        if f"{os.sep}orbax{os.sep}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
