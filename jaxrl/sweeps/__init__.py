"""Sweeps over settings and seeds: `jaxrl sweep`."""

from jaxrl.sweeps.parts import Search
from jaxrl.sweeps.points import Values, parse
from jaxrl.sweeps.sweeping import is_sweep, sweep

__all__ = ["Search", "Values", "is_sweep", "parse", "sweep"]
