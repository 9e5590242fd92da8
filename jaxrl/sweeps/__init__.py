"""Sweeps over settings and seeds: `jaxrl sweep`."""

from jaxrl.runtime.members import is_sweep
from jaxrl.sweeps.launching import Launch
from jaxrl.sweeps.parts import Search
from jaxrl.sweeps.points import Values, parse
from jaxrl.sweeps.sweeping import sweep

__all__ = ["Launch", "Search", "Values", "is_sweep", "parse", "sweep"]
