"""The segments of a sweep, one after another, as the folders of its runs decide."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from jaxrl.runtime.configuration import Experiment
from jaxrl.sweeps.parts import Part, Sweep, first_parts, next_parts, segment_ends
from jaxrl.sweeps.results import final_scores


def segments(folder: Path, config: Experiment, new: Sweep) -> Iterator[tuple[list[Part], int]]:
    """Yield the parts of each segment, and the environment steps at which they end.

    Where Optuna proposes points, each batch that is known so far is one in this sense.

    The parts of a segment follow from the scores of the one before, so they must have ended when
    the next one is asked for.
    """
    parts, ends = first_parts(config, new), segment_ends(config, new)
    if new.search.optuna:
        for _, batch in itertools.groupby(parts, lambda part: new.batch(part.points[0])):
            yield list(batch), config.steps
        return
    for segment, end in enumerate(ends):
        yield parts, end
        if segment + 1 < len(ends):
            scores = [final_scores(folder, part) for part in parts]
            parts = next_parts(config, new, parts, scores, segment)
