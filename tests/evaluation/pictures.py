"""Helpers that check pictures: their files, and the numbers drawn in them."""

import struct

import numpy as np


def assert_picture(path, min_height: int = 300) -> None:
    """Assert that the file is a PNG of a sensible size."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) > 5000
    width, height = struct.unpack(">II", content[16:24])
    assert 600 < width < 2000 and min_height < height < 3000


def labeled_lines(axes) -> dict:
    """Return label -> line, without the unlabeled lines of single seeds."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def band(axes, steps: np.ndarray, i: int = 0) -> dict:
    """Return x -> (low, high) of a shaded band, for the x among `steps`."""
    (corners,) = [p.vertices for p in axes.collections[i].get_paths()]
    return {x: (y.min(), y.max()) for x in steps if (y := corners[corners[:, 0] == x, 1]).size}


def bars(axes) -> np.ndarray:
    """Return the end points of each vertical or horizontal interval, [n, 2, 2]."""
    return np.array([p for c in axes.collections for p in c.get_segments() if len(p)])
